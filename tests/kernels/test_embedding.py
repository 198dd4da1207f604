"""Look-up kernels against eager mode."""

import pytest
import torch

from tests.kernels.record_runner import run_record, serves
from torchipu._kernels.abi import KernelTrap

aten = torch.ops.aten
GENERATOR = torch.Generator().manual_seed(3)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def indices(high, *shape, low=0):
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(high))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize(("rows", "width", "shape"), [(11, 8, (2, 5)), (3, 1, (7,)), (5, 129, ()), (4, 3, (0,))])
def test_embedding_takes_rows(dtype, index, rows, width, shape):
    table, ids = normal(rows, width).to(dtype), indices(rows, *shape).to(index)
    wanted = aten.embedding(table, ids)
    found, = run_record("aten.embedding.default", {"weight": table, "indices": ids}, {"padding_idx": -1}, [wanted])
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize(
    ("outer", "rows", "count"), [(1, 9, 7), (1, 9, 70), (5, 13, 8), (33, 4, 19), (3, 1, 40), (3, 7, 2500)],
)
def test_rows_of_one_element_are_taken(dtype, index, outer, rows, count):
    table, ids = (normal(outer, rows) * 50).to(dtype), indices(rows, count).to(index)
    wanted = aten.index_select(table, 1, ids)
    for threads in (1, 2, 3):
        found, = run_record("aten.index_select.default", {"self": table, "index": ids}, {"dim": 1}, [wanted], threads)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("index", [torch.int64, torch.int32])
@pytest.mark.parametrize("width", [2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 49])
def test_short_rows_are_taken(dtype, index, width):
    table, ids = (normal(13, width) * 50).to(dtype), indices(13, 700).to(index)
    wanted = aten.index_select(table, 0, ids)
    for threads in (1, 2):
        found, = run_record("aten.index_select.default", {"self": table, "index": ids}, {"dim": 0}, [wanted], threads)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("width", [1, 4, 8])
@pytest.mark.parametrize("wrong", [-1, 6, 2**40])
def test_short_rows_that_are_not_there_stop_the_program(wrong, width):
    ids = indices(6, 300)
    ids[211] = wrong
    operands = {"self": normal(6, width), "index": ids}
    with pytest.raises(KernelTrap):
        run_record("aten.index_select.default", operands, {"dim": 0}, [torch.empty(300, width)])


@pytest.mark.parametrize("wrong", [-1, 6, 2**40])
@pytest.mark.parametrize("place", [0, 7, 18])
def test_rows_of_one_element_that_are_not_there_stop_the_program(wrong, place):
    ids = indices(6, 19)
    ids[place] = wrong
    with pytest.raises(KernelTrap):
        run_record("aten.index_select.default", {"self": normal(4, 6), "index": ids}, {"dim": 1}, [torch.empty(4, 19)])


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize(
    ("rows", "width", "shape"), [(11, 8, (2, 5)), (3, 1, (70,)), (50, 130, (31, 3)), (4, 3, (0,)), (5, 37, (7, 9))],
)
def test_embedding_gradient_agrees_with_float64(padding, rows, width, shape):
    ids, dy = indices(rows, *shape), normal(*shape, width)
    wanted = aten.embedding_dense_backward(dy.double(), ids, rows, padding, False)
    attrs = {"num_weights": rows, "padding_idx": padding, "scale_grad_by_freq": False}
    runs = [run_record("aten.embedding_dense_backward.default", {"grad_output": dy, "indices": ids}, attrs,
                       [(wanted.shape, dy.dtype)], threads)[0] for threads in (1, 2, 4)]
    torch.testing.assert_close(runs[0].double(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("bad", [-1, 5])
def test_index_out_of_range_traps(bad):
    table, ids = normal(5, 4), torch.tensor([0, bad])
    with pytest.raises(KernelTrap, match="index is out of range"):
        run_record("aten.embedding.default", {"weight": table, "indices": ids}, {}, [((2, 4), table.dtype)])
    with pytest.raises(KernelTrap, match="index is out of range"):
        run_record("aten.embedding_dense_backward.default", {"grad_output": normal(2, 4), "indices": ids},
                   {"padding_idx": -1}, [table])
    with pytest.raises(KernelTrap, match="index is out of range"):
        run_record("aten.gather.default", {"self": table, "index": ids[:, None]}, {"dim": 0}, [((2, 1), table.dtype)])
    with pytest.raises(KernelTrap, match="index is out of range"):
        run_record("aten.scatter.value", {"self": table, "index": ids[:, None]}, {"dim": 0, "value": 1.0}, [table])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.uint8, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, 2, -1])
def test_gather_and_scatter_agree_with_eager_mode(dtype, dim):
    table = (normal(4, 5, 6) * 9).to(dtype)
    index = indices(4, 3, 4, 4)
    if dim == 2:  # no duplicates, since eager mode does not say which one wins
        index = torch.arange(4).expand(3, 4, 4).contiguous()
    wanted = aten.gather(table, dim, index)
    found, = run_record("aten.gather.default", {"self": table, "index": index}, {"dim": dim}, [wanted])
    assert torch.equal(found, wanted)
    wanted = aten.scatter.value(table, dim, index, 1)
    found, = run_record("aten.scatter.value", {"self": table, "index": index}, {"dim": dim, "value": 1}, [table])
    assert torch.equal(found, wanted)
    if dim == 2:
        source = (normal(3, 5, 6) * 5).to(dtype)
        wanted = aten.scatter.src(table, dim, index, source)
        found, = run_record("aten.scatter.src", {"self": table, "index": index, "src": source}, {"dim": dim}, [table])
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_scatter_add_sums_duplicates(dim):
    table, index, source = normal(4, 5, 6), indices(4, 3, 4, 4), normal(3, 5, 6)
    wanted = aten.scatter_add(table.double(), dim, index, source.double())
    runs = [run_record("aten.scatter_add.default", {"self": table, "index": index, "src": source}, {"dim": dim},
                       [table], n)[0]
            for n in (1, 2, 4)]
    torch.testing.assert_close(runs[0].double(), wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(runs[0], runs[2])


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select_and_index_add_work_along_any_dimension(dim):
    table = normal(4, 5, 6)
    index = indices(4, 9)
    wanted = aten.index_select(table, dim, index)
    found, = run_record("aten.index_select.default", {"self": table, "index": index}, {"dim": dim}, [wanted])
    assert torch.equal(found, wanted)
    source = normal(*wanted.shape)
    wanted = aten.index_add(table.double(), dim, index, source.double(), alpha=0.5)
    found, = run_record("aten.index_add.default", {"self": table, "index": index, "source": source},
                        {"dim": dim, "alpha": 0.5}, [table])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)


INDEXED = [
    [indices(4, 7, low=-4)], [indices(4, 2, 3)], [None, indices(5, 3, low=-5)], [indices(4, 3), indices(5, 3)],
    [indices(4, 3, 1), indices(5, 2)], [None, indices(5, 3), indices(6, 3)],
    [indices(4, 3), indices(5, 1), torch.tensor(2)], [None, None, indices(6, 2)],
]
SCATTERED = [indices(4, 3), None, indices(6, 3)]


@pytest.mark.parametrize("given", [*INDEXED, SCATTERED], ids=str)
def test_index_agrees_with_eager_mode(given):
    table = normal(4, 5, 6)
    wanted = aten.index(table, given)
    found, = run_record("aten.index.Tensor", {"self": table, "indices": given}, {}, [wanted])
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("given", [g for g in INDEXED if g[0] is not None], ids=str)
@pytest.mark.parametrize("form", ["full", "row", "number"])
def test_index_put_sums_duplicates_or_keeps_the_last(given, form):
    table = normal(4, 5, 6)
    picked = table[tuple(given)]
    row = table.shape[len(given):]
    values = {"full": normal(*picked.shape) + 1, "row": normal(*row), "number": torch.tensor(3.0)}[form]
    wanted = aten.index_put(table.double(), given, values.double(), True)
    found, = run_record("aten.index_put.default", {"self": table, "indices": given, "values": values},
                        {"accumulate": True}, [table], 2)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)
    wanted = table.clone()
    positions = torch.arange(table.numel()).reshape(table.shape)[tuple(given)].reshape(-1, *row)
    for at, value in zip(positions, values.expand(picked.shape).reshape(-1, *row), strict=True):
        wanted.view(-1)[at] = value
    found, = run_record("aten.index_put.default", {"self": table, "indices": given, "values": values},
                        {"accumulate": False}, [table], 2)
    assert torch.equal(found, wanted)


def test_index_put_takes_indices_of_dimensions_that_do_not_adjoin():
    table, values = normal(4, 5, 6), normal(3, 5)
    wanted = aten.index_put(table.double(), SCATTERED, values.double(), True)
    found, = run_record("aten.index_put.default", {"self": table, "indices": SCATTERED, "values": values},
                        {"accumulate": True}, [table], 2)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)


def test_masks_are_left_to_aten():
    table = normal(4, 5, 6)
    assert not serves("aten.index.Tensor", {"self": table, "indices": [table > 0]}, {})
