"""Look-ups by index: embedding, gather, scatter, index, index_put and their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels import embedding as kernels
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.lowering import FILL, MULTI_SLICE, MULTI_UPDATE_ADD, copy_set, elementwise_set, gather_set
from torchipu.ops.spec import Emitter, HostPlanner, HostTensor, OpSpec, Vertices, register
from torchipu.target import Target

INDEX_BYTES = {DType.INT: 4, DType.LONG: 8}
MAX_DIMS, MAX_INDICES = 8, 6  # as in embedding_body.h
GRAIN_BYTES, BLOCK_BYTES = 65536, 65536
PUT, ADD = 0, 1


# --------------------------------------------------------------------------- device side
def _row_of(op: Op) -> int:
    """Return the elements that one index selects."""
    if op.target == "aten.embedding.default":
        return op.outputs[0].shape[-1]
    if op.target == "aten.embedding_dense_backward.default":
        return op.outputs[0].shape[-1]
    if op.target in ("aten.index_select.default", "aten.index_add.default"):
        shape = op.inputs[0].shape
        return prod(shape[_dim(op, len(shape)) + 1 :])
    if op.target in ("aten.index.Tensor", "aten.index_put.default"):
        lead, count = _indexed_dims(op)
        return prod(op.inputs[0].shape[lead + count :])
    return 1


def _lower_take(op: Op, target: Target) -> tuple[Vertices, ...]:
    result, row = op.outputs[0], max(1, _row_of(op))
    if result.num_elements == 0:
        return ()
    rows = op.inputs[0].num_elements // row
    return (gather_set(target, MULTI_SLICE, result.num_elements // row, row, result.dtype, table_rows=rows),)


def _lower_update(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower a write by index: the old value is copied, or zeros are filled in, then rows are added."""
    result, row = op.outputs[0], max(1, _row_of(op))
    index = op.operand("index") or op.operand("indices") or next(t for t in op.operand_list("indices") if t is not None)
    if result.num_elements == 0:
        return ()
    if op.operand("self") is None:
        first = elementwise_set(target, FILL, result.num_elements, result.dtype)
    else:
        first = copy_set(target, result.num_elements, result.dtype, moved=False)
    rows = max(1, result.num_elements // row)
    second = gather_set(target, MULTI_UPDATE_ADD, max(1, index.num_elements), row, result.dtype, table_rows=rows)
    return first, second


# --------------------------------------------------------------------------- host side
def _dim(op: Op, rank: int) -> int:
    dim = op.attrs["dim"]
    assert isinstance(dim, int)
    return dim % max(1, rank)


def _needed(op: Op, name: str) -> Tensor:
    tensor = op.operand(name)
    assert tensor is not None, f"{op.target} without {name}"
    return tensor


def _take(
    plan: HostPlanner, out: HostTensor, table: HostTensor, index: HostTensor, *, outer: int, rows: int, row_bytes: int,
    wrap: bool,
) -> None:
    """Copy the rows that ``index`` names from ``table [outer, rows, ...]``."""
    count = index.num_elements
    ints = (rows, count, row_bytes, INDEX_BYTES[index.dtype], int(wrap))
    plan.step(kernels.TAKE_ROWS, [out], [table, index], ints=ints,
              items=outer * count if row_bytes else 0, grain=max(1, GRAIN_BYTES // max(1, row_bytes)))


def _bucket(
    plan: HostPlanner, index: HostTensor, rows: int, *, wrap: bool, skipped: int = -1,
) -> tuple[HostTensor, HostTensor]:
    """Order the positions of an index by the row that they name; returns where each row's begin, and the order."""
    offsets, order = plan.scratch((rows + 1,), DType.LONG), plan.scratch((max(1, index.num_elements),), DType.LONG)
    plan.step(kernels.BUCKET, [offsets, order], [index],
              ints=(rows, index.num_elements, INDEX_BYTES[index.dtype], int(wrap), skipped))
    return offsets, order


def _emit_embedding(op: Op, plan: HostPlanner) -> None:
    table, index = plan.value(_needed(op, "weight")), plan.value(_needed(op, "indices"))
    out = plan.output(op.outputs[0])
    row_bytes = table.shape[1] * table.dtype.host_bytes
    _take(plan, out, table, index, outer=1, rows=table.shape[0], row_bytes=row_bytes, wrap=False)


def _emit_embedding_grad(op: Op, plan: HostPlanner) -> None:
    dy, index = plan.value(_needed(op, "grad_output"), DType.FLOAT), plan.value(_needed(op, "indices"))
    out = plan.output(op.outputs[0], DType.FLOAT)
    rows, width = out.shape
    padding = op.attrs["padding_idx"]
    assert isinstance(padding, int)
    buckets = _bucket(plan, index, rows, wrap=False, skipped=padding)
    plan.step(kernels.SUM_ROWS, [out], [dy, dy, *buckets], ints=(rows, index.num_elements, width, 0, width, 1),
              scalars=(1.0,), items=rows, grain=max(1, 16384 // max(1, width)))


def _emit_index_select(op: Op, plan: HostPlanner) -> None:
    table, index = plan.value(_needed(op, "self")), plan.value(_needed(op, "index"))
    dim = _dim(op, len(table.shape))
    row_bytes = prod(table.shape[dim + 1 :]) * table.dtype.host_bytes
    _take(plan, plan.output(op.outputs[0]), table, index, outer=prod(table.shape[:dim]), rows=table.shape[dim],
          row_bytes=row_bytes, wrap=False)


def _emit_index_add(op: Op, plan: HostPlanner) -> None:
    base, source = (plan.value(_needed(op, name), DType.FLOAT) for name in ("self", "source"))
    index, alpha = plan.value(_needed(op, "index")), op.attrs["alpha"]
    assert isinstance(alpha, (int, float))
    dim = _dim(op, len(base.shape))
    rows, inner = base.shape[dim], prod(base.shape[dim + 1 :])
    buckets = _bucket(plan, index, rows, wrap=False)
    plan.step(kernels.SUM_ROWS, [plan.output(op.outputs[0], DType.FLOAT)], [base, source, *buckets],
              ints=(rows, index.num_elements, inner, 1, inner, 1), scalars=(float(alpha),),
              items=prod(base.shape[:dim]) * rows, grain=max(1, 16384 // max(1, inner)))


def _padded(sizes: Sequence[int]) -> tuple[int, ...]:
    return (*sizes, *(0 for _ in range(MAX_DIMS - len(sizes))))


def _line_ints(
    element: DType, index: HostTensor, dim: int, extent: int, strides: Sequence[Sequence[int]],
) -> tuple[int, ...]:
    """Return the ints of gather_lines and scatter_lines for tensors with these strides."""
    laid = tuple(stride for three in strides for stride in _padded(three))
    return (element.host_bytes, INDEX_BYTES[index.dtype], extent, len(index.shape), dim, *_padded(index.shape), *laid)


def _lines(index: HostTensor, dim: int) -> tuple[int, int]:
    """Return how many lines an index has along a dimension, and how many make a chunk."""
    extent = index.shape[dim]
    return (index.num_elements // extent if extent else 0), max(1, 8192 // max(1, extent))


def _emit_gather(op: Op, plan: HostPlanner) -> None:
    table, index = plan.value(_needed(op, "self")), plan.value(_needed(op, "index"))
    dim = _dim(op, len(index.shape))
    ints = _line_ints(table.dtype, index, dim, table.shape[dim], (table.strides, index.strides, ()))
    items, grain = _lines(index, dim)
    plan.step(kernels.GATHER_LINES, [plan.output(op.outputs[0])], [table, index], ints=ints, items=items, grain=grain)


def _emit_scatter(mode: int) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        asked = DType.FLOAT if mode == ADD else None
        base, index = plan.value(_needed(op, "self"), asked), plan.value(_needed(op, "index"))
        values = op.operand("src")
        if values is None:
            number = op.attrs["value"]
            assert isinstance(number, (int, float))
            source, strides = plan.constant((number,), base.dtype), (0,) * len(index.shape)
        else:
            source = plan.value(values, base.dtype)
            strides = source.strides
        out = plan.output(op.outputs[0], asked)
        _copy(plan, out, base)
        dim = _dim(op, len(index.shape))
        ints = _line_ints(base.dtype, index, dim, base.shape[dim], (base.strides, index.strides, strides))
        items, grain = _lines(index, dim)
        plan.step(kernels.SCATTER_LINES, [out], [index, source], ints=(*ints, mode), items=items, grain=grain,
                  reads_outputs=True)

    return emit


def _copy(plan: HostPlanner, out: HostTensor, source: HostTensor) -> None:
    num_bytes = source.num_elements * source.dtype.host_bytes
    plan.step(kernels.COPY_BYTES, [out], [source], ints=(num_bytes,), items=-(-num_bytes // BLOCK_BYTES))


def _indexed_dims(op: Op) -> tuple[int, int]:
    """Return the position of the first index tensor, and how many follow it without a gap; (0, 0) with a gap."""
    marks = [tensor is not None for tensor in op.operand_list("indices")]
    if True not in marks:
        return 0, 0
    lead = marks.index(True)
    count = sum(marks)
    return (lead, count) if all(marks[lead : lead + count]) else (0, 0)


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that index tensors broadcast to."""
    rank = max(len(shape) for shape in shapes)
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*aligned, strict=True))


def _flat_index(op: Op, plan: HostPlanner) -> tuple[HostTensor, tuple[int, ...]]:
    """Return the row number that the index tensors name together, and their common shape."""
    tensors = [plan.value(t) for t in op.operand_list("indices") if t is not None]
    lead, count = _indexed_dims(op)
    shape = _broadcast([t.shape for t in tensors])
    if count == 1:
        return tensors[0], shape
    ints = [prod(shape), count, len(shape), *_padded(shape)]
    for position, held in enumerate(tensors):
        missing = len(shape) - len(held.shape)
        strides = [0] * missing + [
            0 if n == 1 else stride for n, stride in zip(held.shape, held.strides, strict=True)
        ]
        ints += [_needed(op, "self").shape[lead + position], INDEX_BYTES[held.dtype], *_padded(strides)]
    flat = plan.scratch((prod(shape),), DType.LONG)
    plan.step(kernels.FLATTEN_INDEX, [flat], tensors, ints=ints, items=prod(shape), grain=4096)
    return flat, shape


def _emit_index(op: Op, plan: HostPlanner) -> None:
    table = plan.value(_needed(op, "self"))
    lead, count = _indexed_dims(op)
    flat, _ = _flat_index(op, plan)
    row_bytes = prod(table.shape[lead + count :]) * table.dtype.host_bytes
    _take(plan, plan.output(op.outputs[0]), table, flat, outer=prod(table.shape[:lead]),
          rows=prod(table.shape[lead : lead + count]), row_bytes=row_bytes, wrap=True)


def _emit_index_put(op: Op, plan: HostPlanner) -> None:
    accumulate = bool(op.attrs["accumulate"])
    asked = DType.FLOAT if accumulate else None
    base, values = plan.value(_needed(op, "self"), asked), plan.value(_needed(op, "values"), asked)
    out = plan.output(op.outputs[0], asked)
    _, count = _indexed_dims(op)
    flat, _ = _flat_index(op, plan)
    rows, inner = prod(base.shape[:count]), prod(base.shape[count:])
    step, lane = _value_strides(op)
    offsets, order = _bucket(plan, flat, rows, wrap=True)
    if accumulate:
        plan.step(kernels.SUM_ROWS, [out], [base, values, offsets, order],
                  ints=(rows, flat.num_elements, inner, 1, step, lane), scalars=(1.0,), items=rows,
                  grain=max(1, 16384 // max(1, inner)))
    else:
        plan.step(kernels.PUT_ROWS, [out], [base, values, offsets, order],
                  ints=(rows, flat.num_elements, inner, base.dtype.host_bytes, step, lane), items=rows,
                  grain=max(1, 16384 // max(1, inner)))


def _value_strides(op: Op) -> tuple[int, int]:
    """Return the strides of the values of index_put along the indices and along a row."""
    values, base = _needed(op, "values"), _needed(op, "self")
    _, count = _indexed_dims(op)
    row = base.shape[count:]
    inner = prod(row)
    if values.num_elements == 1:
        return 0, 0
    shape = _broadcast([t.shape for t in op.operand_list("indices") if t is not None])
    return (inner, 1) if values.shape == (*shape, *row) else (0, 1)


# --------------------------------------------------------------------------- what the kernels serve
def _serves_embedding(op: Op) -> bool:
    """Plain look-ups; gradients scaled by frequency go generic."""
    is_plain = not op.attrs.get("scale_grad_by_freq") and not op.attrs.get("sparse")
    return is_plain and _needed(op, "indices").dtype in INDEX_BYTES


def _serves_lines(op: Op) -> bool:
    """Gather and scatter: real dimensions, not too many; floats where values are added."""
    index, base = _needed(op, "index"), _needed(op, "self")
    return index.dtype in INDEX_BYTES and 1 <= len(index.shape) == len(base.shape) <= MAX_DIMS


def _serves_scatter_add(op: Op) -> bool:
    return _serves_lines(op) and _needed(op, "self").dtype.is_floating


def _serves_rows(op: Op) -> bool:
    index, base = _needed(op, "index"), _needed(op, "self")
    return index.dtype in INDEX_BYTES and len(base.shape) >= 1 and len(index.shape) <= 1


def _serves_index_add(op: Op) -> bool:
    return _serves_rows(op) and _needed(op, "self").dtype.is_floating


def _serves_index(op: Op) -> bool:
    """Index tensors on neighbouring dimensions; boolean masks have no fixed shape and go generic."""
    tensors = [t for t in op.operand_list("indices") if t is not None]
    return (
        0 < len(tensors) <= MAX_INDICES and _indexed_dims(op)[1] == len(tensors)
        and all(t.dtype in INDEX_BYTES and len(t.shape) <= MAX_DIMS for t in tensors)
    )


def _serves_index_put(op: Op) -> bool:
    """As index, from the first dimension, with values that fill whole rows, one row for all, or one number."""
    if not _serves_index(op) or _indexed_dims(op)[0] != 0:
        return False
    values, base = _needed(op, "values"), _needed(op, "self")
    if op.attrs["accumulate"] and not base.dtype.is_floating:
        return False
    shape = _broadcast([t.shape for t in op.operand_list("indices") if t is not None])
    row = base.shape[_indexed_dims(op)[1] :]
    return values.num_elements == 1 or values.shape in ((*shape, *row), row)


register(
    OpSpec("aten.embedding.default", "embedding", _lower_take, _emit_embedding, supports=_serves_embedding),
    OpSpec("aten.embedding_dense_backward.default", "embedding_grad", _lower_update, _emit_embedding_grad,
           supports=_serves_embedding),
    OpSpec("aten.index_select.default", "index_select", _lower_take, _emit_index_select, supports=_serves_rows),
    OpSpec("aten.index_add.default", "index_add", _lower_update, _emit_index_add, supports=_serves_index_add),
    OpSpec("aten.gather.default", "gather", _lower_take, _emit_gather, supports=_serves_lines),
    OpSpec("aten.scatter.value", "scatter", _lower_update, _emit_scatter(PUT), supports=_serves_lines),
    OpSpec("aten.scatter.src", "scatter", _lower_update, _emit_scatter(PUT), supports=_serves_lines),
    OpSpec("aten.scatter_add.default", "scatter_add", _lower_update, _emit_scatter(ADD), supports=_serves_scatter_add),
    OpSpec("aten.index.Tensor", "index", _lower_take, _emit_index, supports=_serves_index),
    OpSpec("aten.index_put.default", "index_put", _lower_update, _emit_index_put, supports=_serves_index_put),
)
