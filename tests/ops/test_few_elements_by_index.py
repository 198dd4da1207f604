"""Single elements that indices name are put to their places one by one, in the order of indices."""

import pytest
import torch

import torchipu
from tests.host.planned import planned_kernels
from tests.kernels.elem_planner import run_op


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int32, torch.bool])
@pytest.mark.parametrize("is_one", [False, True])
def test_elements_named_by_several_index_tensors_are_those_of_eager_pytorch(accumulate, dtype, is_one):
    if accumulate and dtype is torch.bool:
        pytest.skip("truth values are not added")
    torch.manual_seed(0)
    x = torch.randint(0, 5, (40, 1, 70)).to(dtype)
    rows, columns = torch.randint(-40, 40, (6, 9)), torch.randint(-70, 70, (9,))
    values = torch.randint(0, 2, () if is_one else (6, 9)).to(dtype)
    if not accumulate:  # where a place is named twice eager leaves open which value stays
        rows, columns = torch.randperm(40)[:6, None].expand(6, 9) - 40, torch.randperm(70)[:9]
    indices = [rows, torch.zeros(1).long(), columns]
    (found,), (wanted,) = run_op("aten.index_put.default", x, indices, values, accumulate)
    assert torch.equal(found, wanted)


def test_gradients_of_named_elements_sort_nothing(monkeypatch):
    names = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    x = torch.randn(64, 100, requires_grad=True)
    rows, columns = torch.randint(64, (200,)), torch.randint(100, (200,))
    weights = torch.randn(200)
    (found,) = torch.autograd.grad(torch.compile(lambda x: x[rows, columns] * weights, backend="ipu")(x).sum(), [x])
    wanted = torch.zeros(64, 100, dtype=torch.double).index_put((rows, columns), weights.double(), accumulate=True)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    assert "bucket" not in names
    assert "scatter_block" in names


ONE_BY_ONE = {
    "take": (lambda x, k: x.take(k).square(), True), "index": (lambda x, k: x.flatten()[k].square(), True),
    "index_add": (lambda x, k: x.flatten().index_add(0, k, torch.arange(len(k)) / 8), False),
    "index_copy": (lambda x, k: x.flatten().index_copy(0, k, torch.arange(len(k)) / 8), False),
    "index_fill": (lambda x, k: x.flatten().index_fill(0, k, 3.0), True),
    "put": (lambda x, k: x.put(k, torch.arange(len(k)) / 8), True),
    "put_add": (lambda x, k: x.put(k, torch.arange(len(k)) / 8, accumulate=True), True),
    "index_put_one": (lambda x, k: x.flatten().index_put((k,), torch.tensor(2.0), accumulate=True), True),
}
"""What names single elements of one table, and whether negative numbers count from its end."""


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_single_elements_of_one_table_sort_no_index(name, monkeypatch):
    names = planned_kernels(monkeypatch)
    torch._dynamo.reset()
    function, wraps = ONE_BY_ONE[name]
    torch.manual_seed(1)
    x = torch.randn(30, 50, requires_grad=True)
    unique = torch.randperm(1500)[:900]
    k = unique if name in ("index_copy", "put") else torch.cat([unique, unique[:300]])  # eager leaves open who is last
    k = torch.where(torch.arange(len(k)) % 3 == 0, k - 1500, k) if wraps else k
    found = torch.compile(function, backend="ipu")(x, k)
    weights = torch.randn(found.shape)
    (gradient,) = torch.autograd.grad(found, x, weights)
    exact = x.detach().double().requires_grad_()
    torch.set_default_dtype(torch.double)
    try:
        wanted = function(exact, k)
    finally:
        torch.set_default_dtype(torch.float)
    (its,) = torch.autograd.grad(wanted, exact, weights.double())
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-5)
    torch.testing.assert_close(gradient.double(), its, rtol=1e-6, atol=1e-5)
    assert "bucket" not in names
    assert "scatter_block" in names


@pytest.mark.parametrize("wrong", [-41, 40])
def test_elements_beyond_the_table_are_refused(wrong):
    with pytest.raises(torchipu.errors.IpuError):
        torch.compile(lambda x, k: x.put(k, torch.ones(2)), backend="ipu")(torch.zeros(40), torch.tensor([3, wrong]))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32], ids=str)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_whole_numbers_are_joined_along_any_dimension_and_wrap(dim, dtype):
    torch.manual_seed(dim)
    shape, taken = (7, 9, 40), (33,)
    index = torch.randint(shape[dim], taken)
    x, source = (
        torch.randint(-100, 100, tuple(33 if of_source and d == dim else n for d, n in enumerate(shape))).to(dtype)
        for of_source in (False, True)
    )
    distinct = torch.randperm(shape[dim])[:5]
    calls = [
        ("aten.index_add.default", x, dim, index, source), ("aten.index_copy.default", x, dim, distinct,
                                                            source.narrow(dim, 0, 5).contiguous()),
        ("aten.index_fill.int_Scalar", x, dim, distinct - shape[dim], 3),
        *(("aten.index_reduce.default", x, dim, index, source, how) for how in ("prod", "amax", "amin")),
    ]
    for threads in (1, 2, 4):
        for call in calls:
            (found,), (wanted,) = run_op(*call, threads=threads)
            assert found.dtype == wanted.dtype
            if dtype.is_floating_point:
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
            else:
                assert torch.equal(found, wanted)
        if not dtype.is_floating_point:
            (found,), (wanted,) = run_op("aten.index_add.default", x, dim, index, source, alpha=3, threads=threads)
            assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32], ids=str)
@pytest.mark.parametrize("reduce", ["sum", "prod", "amax", "amin"])
@pytest.mark.parametrize("with_self", [True, False])
def test_scattered_whole_numbers_are_joined_in_their_own_type(reduce, with_self, dtype):
    torch.manual_seed(0)
    limits = torch.iinfo(dtype)
    x, source = (torch.randint(limits.min, limits.max, shape).to(dtype) for shape in ((20, 70), (30, 70)))
    index = torch.randint(20, (30, 70))
    for threads in (1, 2):
        (found,), (wanted,) = run_op("aten.scatter_reduce.two", x, 0, index, source, reduce, include_self=with_self,
                                     threads=threads)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("layout", [(), (1,), (300,), (7, 50), (3, 1, 90)])
def test_positions_that_several_tensors_name_are_found_in_runs(layout):
    torch.manual_seed(0)
    x = torch.randn(11, 13, 17)
    rows, columns = torch.randint(-11, 11, layout), torch.randint(-13, 13, layout[-1:])
    for threads in (1, 2):
        for indices in ([rows.int(), columns], [rows, columns, torch.tensor([-3])]):
            (found,), (wanted,) = run_op("aten.index.Tensor", x, indices, threads=threads)
            assert torch.equal(found, wanted)
