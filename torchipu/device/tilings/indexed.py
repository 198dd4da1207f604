"""Which lines ops of indices look up or update; see ``look_ups`` and ``updates``."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.lines import Index, Lines
from torchipu.device.tilings.look_ups import Look
from torchipu.device.tilings.partials import LAST, SUM, Reduction
from torchipu.device.tilings.updates import Join, Taken, Update
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.region import Numbers
from torchipu.ir.types import DType

SHARED_INDEX = "shared_index"
"""Attribute of a ``scatter_add`` whose index says the same for all lines: it was expanded."""


def offsets(sizes: Sequence[int], strides: Sequence[int]) -> Numbers:
    """Return where elements of a strided array lie, counted from its first one, in row-major order."""
    found = np.zeros(1, np.int64)
    for size, stride in zip(sizes, strides, strict=True):
        found = (found[:, None] + np.arange(size, dtype=np.int64) * stride).reshape(-1)
    return found


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _aligned(shape: Sequence[int], wanted: Sequence[int]) -> tuple[int, ...]:
    """Return strides with which a row-major array shows a shape that it is broadcast to."""
    shown = shape[max(0, len(shape) - len(wanted)) :]  # leading dimensions of size 1
    strides = [0 if size == 1 else stride for size, stride in zip(shown, _strides(shown), strict=True)]
    return (*(0,) * (len(wanted) - len(shown)), *strides)


def _around(name: str, shape: Sequence[int], dim: int, places: int, *, of: Sequence[int] | None = None) -> Lines:
    """Return the lines of a dimension, so many places of each, of all others what a smaller array reaches."""
    reached, strides = shape if of is None else of, _strides(shape)
    others = [other for other in range(len(shape)) if other != dim]
    starts = offsets([reached[other] for other in others], [strides[other] for other in others])
    return Lines(name, starts, offsets([places], [strides[dim]]))


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tensor.shape or (1,)


def _dim(op: Op, shape: Sequence[int]) -> int:
    return op.integer("dim") % len(shape)


def _of_all_lines(name: str, tensor: Tensor, extent: int, *, wraps: bool = False) -> Index:
    """Return an index that all lines share."""
    steps = np.arange(tensor.num_elements, dtype=np.int64)
    return Index(Lines(name, np.zeros(1, np.int64), steps, is_shared=True), tensor, extent, wraps=wraps)


def _flat(name: str, count: int) -> Lines:
    """Return all elements of a value as one line."""
    return Lines(name, np.zeros(1, np.int64), np.arange(count, dtype=np.int64))


# --------------------------------------------------------------------------- look-ups
def embedding(op: Op) -> Look:
    """Rows of a table."""
    table, index = op.needed("weight"), op.needed("indices")
    rows, width = table.shape
    result = _around("out", (index.num_elements, width), 0, index.num_elements)
    return Look(_around("weight", table.shape, 0, rows), table, (_of_all_lines("indices", index, rows),), result)


def index_select(op: Op) -> Look:
    """Places along a dimension."""
    table, index, result = op.needed("self"), op.needed("index"), op.outputs[0]
    shape = _shape(table)
    dim = _dim(op, shape)
    return Look(
        _around("self", shape, dim, shape[dim]), table, (_of_all_lines("index", index, shape[dim]),),
        _around("out", _shape(result), dim, index.num_elements),
    )


def gather(op: Op) -> Look:
    """Places along a dimension, of each line its own."""
    table, index = op.needed("self"), op.needed("index")
    shape, chosen = _shape(table), _shape(index)
    dim = _dim(op, shape)
    number = Index(_around("index", chosen, dim, chosen[dim]), index, shape[dim])
    return Look(
        _around("self", shape, dim, shape[dim], of=chosen), table, (number,), _around("out", chosen, dim, chosen[dim])
    )


def take(op: Op) -> Look:
    """Places in the flattened tensor."""
    table, index = op.needed("self"), op.needed("index")
    number = _of_all_lines("index", index, table.num_elements, wraps=True)
    return Look(_flat("self", table.num_elements), table, (number,), _flat("out", index.num_elements))


def index_tensors(op: Op) -> Look:
    """Places along several dimensions."""
    table, result = op.needed("self"), op.outputs[0]
    dims, shape, numbers = _index_of(op)
    strides = _strides(result.shape)
    lead = _leading(dims)
    here = range(lead, lead + len(shape))
    others = [dim for dim in range(len(result.shape)) if dim not in here]
    lines = Lines(
        "out", offsets([result.shape[dim] for dim in others], [strides[dim] for dim in others]),
        offsets(shape, [strides[dim] for dim in here]),
    )
    return Look(_of_dims("self", table.shape, dims), table, numbers, lines)


def _index_of(op: Op) -> tuple[list[int], tuple[int, ...], tuple[Index, ...]]:
    """Return the dimensions that index tensors choose from, the shape that these go to, and the tensors."""
    given = op.operand_list("indices")
    dims = [dim for dim, tensor in enumerate(given) if tensor is not None]
    tensors = [tensor for tensor in given if tensor is not None]
    shape = np.broadcast_shapes(*(tensor.shape for tensor in tensors))
    extents = [op.needed("self").shape[dim] for dim in dims]
    numbers = []
    for place, tensor in enumerate(tensors):
        steps = offsets(shape, _aligned(tensor.shape, shape))
        lines = Lines(f"indices.{place}", np.zeros(1, np.int64), steps, is_shared=True)
        numbers.append(Index(lines, tensor, extents[place], prod(extents[place + 1 :]), wraps=True))
    return dims, shape, tuple(numbers)


def _leading(dims: Sequence[int]) -> int:
    """Return how many dimensions lie before those of the index: none where the indexed ones are not neighbours."""
    return dims[0] if list(dims) == list(range(dims[0], dims[0] + len(dims))) else 0


def _of_dims(name: str, shape: Sequence[int], dims: Sequence[int]) -> Lines:
    """Return the lines of several dimensions together."""
    strides = _strides(shape)
    others = [dim for dim in range(len(shape)) if dim not in dims]
    return Lines(
        name, offsets([shape[dim] for dim in others], [strides[dim] for dim in others]),
        offsets([shape[dim] for dim in dims], [strides[dim] for dim in dims]),
    )


# --------------------------------------------------------------------------- updates
def embedding_gradient(op: Op) -> Update:
    """Sum rows of a gradient into those of a table."""
    grad, index, result = op.needed("grad_output"), op.needed("indices"), op.outputs[0]
    rows, width = result.shape

    def join(code: Code, base: Tensor, number: Tensor, source: Tensor | None, before: int) -> Tensor:
        assert source is not None
        lines, places = base.shape
        padding = op.integer("padding_idx") - before
        if not 0 <= padding < places:
            padding = -1
        summed, = code.again(
            op, [code.turned(source), number], (places, lines), num_weights=places, padding_idx=padding
        )
        return code.binary("add", base, code.turned(summed))

    def taken(code: Code, number: Tensor, source: Tensor | None, before: int) -> tuple[Tensor, Tensor | None]:
        padding = op.integer("padding_idx")
        if padding < 0:
            return number, source
        is_padding = code.compared("eq", number, padding - before)
        return code.chosen(is_padding, code.full(0, number.dtype, *number.shape), number), source

    return Update(
        _around("out", result.shape, 0, rows), (_of_all_lines("indices", index, rows),),
        _around("grad_output", (index.num_elements, width), 0, index.num_elements), grad, join,
        reduction=Reduction("mean", has_old=False) if op.flag("scale_grad_by_freq") else SUM, taken=taken,
    )


REDUCTIONS = {"add": "sum", "multiply": "prod"}
"""Reductions by the names that ``scatter`` has for them."""


def _reduction(op: Op) -> Reduction:
    """Return how an op that names its reduction, or writes, joins results of some of the indices each."""
    reduce = op.attrs.get("reduce")
    if reduce is None:
        return LAST
    return Reduction(REDUCTIONS.get(str(reduce), str(reduce)), op.flag("include_self", True))


def _scaled(op: Op) -> Taken:
    """Return code that scales what is added."""

    def taken(code: Code, number: Tensor, source: Tensor | None, before: int) -> tuple[Tensor, Tensor | None]:
        assert source is not None
        alpha = op.number("alpha", 1)
        if source.dtype.is_floating:
            return number, code.binary("mul", code.cast(source, DType.FLOAT), alpha)
        return number, source if alpha == 1 else code.binary("mul", source, int(alpha))

    return taken


def _of_a_number(op: Op, dtype: DType) -> Taken:
    """Return code that makes a source of the number that an op has."""

    def taken(code: Code, number: Tensor, source: Tensor | None, before: int) -> tuple[Tensor, Tensor | None]:
        return number, code.full(op.number("value"), dtype, *number.shape)

    return taken


def _rows_added(code: Code, base: Tensor, number: Tensor, source: Tensor | None, before: int) -> Tensor:
    """Add rows by an index that all lines share."""
    assert source is not None
    return code.added_by_index(base, number, source)


def _itself(op: Op) -> Join:
    """Return code that runs the op itself along lines."""

    def join(code: Code, base: Tensor, number: Tensor, source: Tensor | None, before: int) -> Tensor:
        return code.again(op, [base, number, *([] if source is None else [source])], base.shape, dim=1)[0]

    return join


def along(op: Op) -> Update:
    """Join lines into places along a dimension, or fill these: the ``index_`` ops that have one index."""
    tensor, index = op.needed("self"), op.needed("index")
    shape = _shape(tensor)
    dim = _dim(op, shape)
    source, value = op.operand("source"), op.operand("value")
    wraps, is_sum = op.target.startswith("aten.index_fill"), op.kind == "index_add"
    lines = None
    if source is not None:
        lines = _around("source", (*shape[:dim], index.num_elements, *shape[dim + 1 :]), dim, index.num_elements)
    elif value is not None:
        lines = Lines("value", np.zeros(1, np.int64), np.zeros(1, np.int64), is_shared=True)
    return Update(
        _around("out", shape, dim, shape[dim]), (_of_all_lines("index", index, shape[dim], wraps=wraps),), lines,
        source or value, _itself(op), reduction=SUM if is_sum else _reduction(op),
        taken=_scaled(op) if is_sum else None,
    )


def scatter(op: Op) -> Update:
    """Join elements into places along a dimension, of each line its own."""
    tensor, index, source = op.needed("self"), op.needed("index"), op.operand("src")
    shape, chosen = _shape(tensor), _shape(index)
    dim = _dim(op, shape)
    lines = None if source is None else _around("src", _shape(source), dim, chosen[dim], of=chosen)
    number, join = _around("index", chosen, dim, chosen[dim]), _itself(op)
    if op.flag(SHARED_INDEX):
        number, join = Lines("index", np.zeros(1, np.int64), number.steps, is_shared=True), _rows_added
    return Update(
        _around("out", shape, dim, shape[dim], of=chosen), (Index(number, index, shape[dim]),), lines, source, join,
        reduction=SUM if op.kind == "scatter_add" else _reduction(op),
        taken=_of_a_number(op, tensor.dtype) if source is None and "reduce" in op.attrs else None,
    )


def unpooled(op: Op) -> Update:
    """Put values into images, where the indices say."""
    index, values, result = op.needed("indices"), op.needed("self"), op.outputs[0]
    dimensions = int(op.kind.removeprefix("max_unpool")[0])
    images = prod(result.shape[: len(result.shape) - dimensions])
    shape, chosen = (images, result.num_elements // images), (images, index.num_elements // images)

    def join(code: Code, base: Tensor, number: Tensor, source: Tensor | None, before: int) -> Tensor:
        attrs = {"dim": 1}
        return code.run(
            "aten.scatter.src", [(base.dtype, base.shape)], attrs, self=base, index=number, src=source,
        )[0]

    return Update(
        _around("out", shape, 1, shape[1]), (Index(_around("indices", chosen, 1, chosen[1]), index, shape[1]),),
        _around("self", chosen, 1, chosen[1]), values, join, has_old=False, reduction=LAST,
    )


def _added_or_put(op: Op) -> Join:
    """Return code that writes rows of lines, or adds them where the op accumulates."""

    def join(code: Code, base: Tensor, number: Tensor, source: Tensor | None, before: int) -> Tensor:
        kind, attrs = ("index_add", {"alpha": 1}) if op.flag("accumulate") else ("index_copy", {})
        return code.run(
            f"aten.{kind}.default", [(base.dtype, base.shape)], {**attrs, "dim": 1}, self=base, index=number,
            source=source,
        )[0]

    return join


def put(op: Op) -> Update:
    """Write places in the flattened tensor."""
    tensor, index, source = op.needed("self"), op.needed("index"), op.needed("source")
    count = tensor.num_elements
    return Update(
        _flat("out", count), (_of_all_lines("index", index, count, wraps=True),), _flat("source", index.num_elements),
        source, _added_or_put(op), reduction=SUM if op.flag("accumulate") else LAST,
    )


def index_put(op: Op) -> Update:
    """Write places along several dimensions."""
    tensor, values = op.needed("self"), op.needed("values")
    dims, shape, numbers = _index_of(op)
    rest = [size for dim, size in enumerate(tensor.shape) if dim not in dims]
    lead = _leading(dims)
    wanted = (*rest[:lead], *shape, *rest[lead:])
    strides = _aligned(values.shape, wanted)
    behind = lead + len(shape)
    source = Lines(
        "values", offsets(rest, (*strides[:lead], *strides[behind:])), offsets(shape, strides[lead:behind])
    )
    return Update(
        _of_dims("out", tensor.shape, dims), numbers, source, values, _added_or_put(op),
        reduction=SUM if op.flag("accumulate") else LAST,
    )
