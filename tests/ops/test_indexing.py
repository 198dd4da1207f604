"""Gather, scatter and index ops, embeddings and bags: values, gradients, types, and refused indices."""

import re

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed
from torch.nn import functional as F

import torchipu
from tests.ops.judge import check, run
from torchipu.errors import ExecutionError

ALL_DTYPES = [torch.float16, torch.float32, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))
    return (values * 3).abs().to(dtype) if dtype in (torch.uint8, torch.bool) else (values * 3).to(dtype)


def indices(high: int, *shape: int, low: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(high + len(shape)))


def distinct(high: int, *shape: int) -> torch.Tensor:
    """Indices without repetitions along the first dimension."""
    generator = torch.Generator().manual_seed(high)
    return torch.rand(high, *shape[1:], generator=generator).argsort(0)[: shape[0]].contiguous()


def assert_agrees(function, *arguments, grads=True):
    """Check values, and the gradients of all floating arguments."""
    check(function, *(a.detach().requires_grad_() if grads and a.is_floating_point() else a for a in arguments))


# --------------------------------------------------------------------------- gather and scatter
@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("shape", [(7, 5, 6), (3, 5, 4), (7, 33, 6), (0, 5, 6)])
def test_gather_takes_from_lines(dtype, dim, shape):
    table = normal(7, 5, 6, dtype=dtype)
    if shape[1] > 5 and dim != 1:
        shape = (shape[0], 5, shape[2])
    index = indices(table.shape[dim], *shape)
    assert_agrees(lambda t, i: t.gather(dim, i), table, index, grads=dtype is torch.float32)


@pytest.mark.parametrize("taken", [1, 3, 8, 19])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.float16])
def test_gather_of_a_few_from_each_of_many_lines(dtype, taken):
    # parts of threads begin between lines and within them
    table = normal(1501, 23, 7, dtype=dtype)
    assert_agrees(lambda t, i: t.gather(2, i), table, indices(7, 1501, 23, taken))
    assert_agrees(lambda t, i: t.gather(1, i), table, indices(23, 1501, taken, 7))


def test_gather_of_strided_expanded_and_scalar_operands():
    table, index = normal(6, 9), indices(6, 4, 9)
    assert_agrees(lambda t, i: t.t().gather(1, i.t()), table, index)
    assert_agrees(lambda t, i: t.gather(0, i[:, :1].expand(-1, 9)), table, index)
    assert_agrees(lambda t, i: t.gather(0, i), torch.tensor(3.0), torch.tensor(0))
    assert_agrees(lambda t, i: t.gather(0, i), normal(5), indices(5, 0))


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_puts_values(dtype, dim):
    table, source = normal(9, 70, dtype=dtype), normal(4, 70, dtype=dtype)
    index = distinct(9, 4, 70)
    if dim:
        table, source, index = table.t(), source.t(), index.t()
    assert_agrees(lambda t, i, s: t.scatter(dim, i, s), table, index, source, grads=dtype is torch.float32)
    assert_agrees(lambda t, i: t.scatter(dim, i, 1), table, index, grads=False)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("dim", [0, 1])
def test_scatter_add_sums_repeated_indices(dtype, dim):
    table, source = normal(5, 7, dtype=dtype), normal(11, 13, dtype=dtype)
    shape = (11, 7) if dim == 0 else (5, 13)
    index = indices(table.shape[dim], *shape)
    assert_agrees(lambda t, i, s: t.scatter_add(dim, i, s), table, index, source, grads=False)
    if dtype is torch.float32:  # eager has no gradient for a source larger than the index
        assert_agrees(lambda t, i, s: t.scatter_add(dim, i, s), table, index, source[: shape[0], : shape[1]].clone())


@pytest.mark.parametrize("with_self", [True, False])
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8, torch.uint8])
def test_scatter_reduce_has_all_reductions(dtype, reduce, with_self):
    # Eager has no gradient for a source larger than the index.
    columns = 3 if dtype is torch.float32 else 5
    table, source, index = normal(6, 4, dtype=dtype), normal(9, columns, dtype=dtype), indices(6, 9, 3)
    # The gradient of a product asks for values on the host and cannot be captured.
    grads = dtype is torch.float32 and reduce != "prod"
    assert_agrees(
        lambda t, i, s: t.scatter_reduce(0, i, s, reduce, include_self=with_self), table, index, source, grads=grads,
    )
    row = indices(6, 9)[:, None].expand(-1, 4)
    assert_agrees(
        lambda t, i, s: t.scatter_reduce(0, i, s, reduce, include_self=with_self), table, row,
        normal(9, 4, dtype=dtype), grads=grads,
    )


def test_largest_and_smallest_keep_nan():
    table, index = torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([0, 1, 2, 2])
    source = torch.tensor([float("nan"), 5.0, 9.0, 2.0])
    for reduce in ("amax", "amin"):
        assert_agrees(lambda t, i, s: t.scatter_reduce(0, i, s, reduce), table, index, source, grads=False)  # noqa: B023


# --------------------------------------------------------------------------- rows along a dimension
@pytest.mark.parametrize("dtype", ALL_DTYPES)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_rows_are_selected_added_copied_filled_and_reduced(dtype, dim):
    table = normal(6, 5, 7, dtype=dtype)
    index = indices(5, 4)
    source = normal(*(4 if d == dim % 3 else n for d, n in enumerate(table.shape)), dtype=dtype)
    grads = dtype is torch.float32
    assert_agrees(lambda t, i: t.index_select(dim, i), table, index, grads=grads)
    if dtype is not torch.bool:
        assert_agrees(lambda t, i, s: t.index_add(dim, i, s, alpha=2), table, index, source, grads=grads)
    assert_agrees(lambda t, i, s: t.index_copy(dim, i, s), table, distinct(5, 4), source, grads=grads)
    assert_agrees(lambda t, i: t.index_fill(dim, i - 5, 1), table, index, grads=grads)
    if dtype is torch.bool:
        return
    for reduce in REDUCTIONS[1:]:
        assert_agrees(
            lambda t, i, s: t.index_reduce(dim, i, s, reduce, include_self=False), table, index, source,  # noqa: B023
            grads=grads and reduce != "prod",
        )


def test_take_and_put_number_the_flattened_elements():
    table, index, source = normal(4, 5), indices(20, 3, 2, low=-20), normal(3, 2)
    assert_agrees(torch.take, table, index)
    assert_agrees(lambda t, i, s: t.put(i, s, accumulate=True), table, index, source)
    assert_agrees(lambda t, i, s: t.put(i, s), table, distinct(20, 6).reshape(3, 2), source)


# --------------------------------------------------------------------------- index tensors
MIXTURES = {
    "first": lambda i, j: (i,), "two": lambda i, j: (i, j), "behind": lambda i, j: (slice(None), j),
    "last": lambda i, j: (slice(None), slice(None), i[:, None]), "gap": lambda i, j: (i, slice(None), j),
    "outer": lambda i, j: (i[:, None], j[None, :]), "middle": lambda i, j: (slice(None), i[:, None], j),
    "number": lambda i, j: (2, slice(None), j), "negative": lambda i, j: (i - 4, j - 4),
    "four": lambda i, j: (i, slice(None), j, slice(None)),
}


@pytest.mark.parametrize("which", MIXTURES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.uint8])
def test_any_mixture_of_index_tensors(which, dtype):
    table = normal(4, 5, 6, 3, dtype=dtype)
    i, j, pick = indices(4, 7), indices(4, 7), MIXTURES[which]
    assert_agrees(lambda t, i, j: t[pick(i, j)], table, i, j, grads=dtype is torch.float32)
    assert_agrees(lambda t, i, j: t.permute(1, 2, 0, 3)[pick(i, j)], table, i, j, grads=False)


@pytest.mark.parametrize("which", MIXTURES)
@pytest.mark.parametrize("form", ["full", "row", "number"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int32, torch.bool])
def test_index_put_with_any_mixture(which, form, dtype):
    pick, table = MIXTURES[which], normal(4, 5, 6, 3, dtype=dtype)
    i, j = indices(4, 7), indices(3, 7)
    shape = torch.ops.aten.index(table, _aten(pick(i, j), table)).shape
    values = normal(*{"full": shape, "row": shape[-1:], "number": (1,)}[form], dtype=dtype)

    def put(table, i, j, values):
        # The method refuses the absent indices that a slice becomes.
        return torch.ops.aten.index_put(table, _aten(pick(i, j), table), values, True)

    assert_agrees(put, table, i, j, values, grads=dtype is torch.float32)


def _aten(picked, table):
    return tuple(None if part == slice(None) else torch.tensor(part) if isinstance(part, int) else part
                 for part in picked)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_index_put_keeps_the_last_of_repeated_rows(dtype):
    table, index, values = normal(5, 33, dtype=dtype), torch.tensor([3, 1, 3, 3, 0]), normal(5, 33, dtype=dtype)
    wanted = table.clone()
    for place, row in zip(index.tolist(), values, strict=True):
        wanted[place] = row
    for threads in (1, 3):
        (found,) = run(lambda t, i, v: t.index_put((i,), v), table, index, values, threads=threads)
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", ALL_DTYPES)
def test_boolean_masks_choose_what_is_written(dtype):
    table = normal(4, 5, 6, dtype=dtype)
    whole, rows = normal(4, 5, 6) > 0, normal(4) > 0
    number, row = normal(1, dtype=dtype), normal(6, dtype=dtype)
    assert_agrees(lambda t, m, v: t.index_put((m,), v), table, whole, number, grads=False)
    assert_agrees(lambda t, m, v: t.index_put((m,), v), table, rows, row, grads=False)
    assert_agrees(lambda t, m, v: t.masked_fill(m, 1), table, whole, number, grads=False)
    count = int(whole.sum())
    assert_agrees(lambda t, m, v: t.index_put((m,), v), table, whole, normal(count, dtype=dtype), grads=False)
    picked = normal(int(rows.sum()), 5, 6, dtype=dtype)
    assert_agrees(lambda t, m, v: t.index_put((m,), v), table, rows, picked, grads=False)


@pytest.mark.parametrize("count", [1, 4095, 4096, 20_001])
def test_masked_scatter_takes_its_source_in_order(count):
    table, mask, source = normal(count), normal(count) > 0, normal(count + 3)
    assert_agrees(lambda t, m, s: t.masked_scatter(m, s), table, mask, source)


@pytest.mark.parametrize("size", [0, 3, 40])
def test_nonzero_static_lists_positions(size):
    mask = normal(5, 4) > 0
    assert_agrees(lambda m: torch.nonzero_static(m, size=size, fill_value=-7), mask)


# --------------------------------------------------------------------------- embeddings
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_embedding_scales_gradients_by_frequency_and_skips_padding(padding, scaled, dtype):
    assert_agrees(
        lambda w, i: F.embedding(i, w, padding, scale_grad_by_freq=scaled), normal(7, 5, dtype=dtype), indices(7, 4, 9),
        grads=dtype is torch.float32,
    )


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("last", [False, True])
def test_bags_of_embeddings(mode, padding, last):
    offsets = torch.tensor([0, 2, 2, 7, 11]) if last else torch.tensor([0, 2, 2, 7])

    def bag(weight, index, offsets):
        return F.embedding_bag(index, weight, offsets, mode=mode, padding_idx=padding, include_last_offset=last)

    assert_agrees(bag, normal(9, 5), indices(9, 11), offsets)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("width", [5, 16, 37])
def test_bags_of_rows_of_halves(mode, width):
    def bag(weight, index, offsets):
        return F.embedding_bag(index, weight, offsets, mode=mode, padding_idx=1)

    offsets = torch.tensor([0, 2, 2, 7])
    assert_agrees(bag, normal(9, width, dtype=torch.float16), indices(9, 11), offsets, grads=False)


def test_bags_weigh_their_members():
    assert_agrees(
        lambda w, i, o, s: F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s), normal(9, 5), indices(9, 11),
        torch.tensor([0, 3, 7]), normal(11),
    )


def test_embedding_scales_long_rows_down_in_the_table():
    weight, index = normal(6, 4), torch.tensor([[0, 3], [3, 5]])
    wanted, kept = weight.double(), weight.clone()
    rows = F.embedding(index, wanted, max_norm=1.5)
    compiled = torch.compile(lambda i, w: F.embedding(i, w, max_norm=1.5), backend="ipu")
    torch.testing.assert_close(compiled(index, kept).double(), rows, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(kept.double(), wanted, rtol=1e-5, atol=1e-6)
    assert torch.equal(kept[1], weight[1])


@pytest.mark.parametrize("classes", [5, 9])
def test_one_hot(classes):
    assert_agrees(lambda i: F.one_hot(i, classes), indices(5, 3, 4))


# --------------------------------------------------------------------------- indices out of range
BAD = {
    "gather": lambda t, i: t.gather(0, i[:, None].expand(-1, 4)),
    "scatter": lambda t, i: t.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda t, i: t.scatter_add(1, i[None, :], t[:1, :2]),
    "scatter_reduce": lambda t, i: t.scatter_reduce(0, i[:, None], t[:2, :1], "amax"),
    "index_select": lambda t, i: t.index_select(0, i),
    "index_add": lambda t, i: t.index_add(0, i, t[:2]),
    "index_copy": lambda t, i: t.index_copy(0, i, t[:2]),
    "index": lambda t, i: t[i, :, None][:, i],
    "index_put": lambda t, i: t.index_put((i,), t[0]),
    "take": lambda t, i: t.take(i * 40),
    "put": lambda t, i: t.put(i * 40, t[0, :2]),
    "embedding": lambda t, i: F.embedding(i, t),
    "embedding_bag": lambda t, i: F.embedding_bag(i, t, torch.tensor([0])),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("wrong", [77, -77])
def test_index_out_of_range_names_op_and_line_and_leaves_operands(name, wrong):
    torch._dynamo.reset()
    table, index = normal(5, 4), torch.tensor([1, wrong])
    kept = table.clone()
    compiled = torch.compile(BAD[name], backend="ipu", fullgraph=True)
    with pytest.raises(ExecutionError, match="index is out of range") as caught:
        compiled(table, index)
    assert name.split("_")[0] in str(caught.value)
    assert "test_indexing.py" in str(caught.value)
    assert torch.equal(table, kept)


@pytest.mark.parametrize(("call", "words"), [
    (lambda table, index: table.gather(1, index[None]), r"expected 'index' from 0 to 3, of a tensor of \[5, 4\]"),
    (lambda table, index: table.index_select(0, index), r"expected 'index' from 0 to 4, of a tensor of \[5, 4\]"),
    (lambda table, index: torch.embedding(table, index), r"expected 'indices' from 0 to 4, of a tensor of \[5, 4\]"),
    (lambda table, index: table[index], "out of range$"),
], ids=["gather", "index_select", "embedding", "index"])
def test_index_out_of_range_says_which_there_are(call, words):
    torch._dynamo.reset()
    with pytest.raises(ExecutionError) as caught:
        torch.compile(call, backend="ipu", fullgraph=True)(normal(5, 4), torch.tensor([1, 77]))
    assert re.search(words, caught.value.message)


def test_masked_scatter_with_too_short_a_source_is_refused():
    compiled = torch.compile(lambda t, m, s: t.masked_scatter(m, s), backend="ipu")
    with pytest.raises(torchipu.ExecutionError, match="range"):
        compiled(normal(6), torch.ones(6, dtype=torch.bool), normal(5))


def test_mask_as_an_index_is_refused_where_the_program_must_be_whole():
    with pytest.raises(BackendCompilerFailed, match="the size of index is not known before the program runs"):
        torch.compile(lambda t: t[t > 0], backend="ipu", fullgraph=True)(normal(6))
