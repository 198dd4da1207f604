"""Gather, scatter and index ops: what is read from, written to and reduced into a tensor by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf, prod

from torchipu._kernels.table import embedding as row_kernels
from torchipu._kernels.table import indexing as kernels
from torchipu._kernels.table.embedding import (
    MAX_INDEX_DIMS,
    MAX_INDICES,
    FlattenIndexInts,
    IndexLayout,
)
from torchipu._kernels.table.indexing import (
    SCATTER_PANEL,
    DivideCountsInts,
    GatherBlockInts,
    Join,
    ScatterBlockInts,
    TakeStridedInts,
)
from torchipu.device.row_access import lower_take, lower_update
from torchipu.device.tilings import indexed
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.host.emit.joined_rows import SourceRows, as_rows, join_rows, row_major, sums_rows
from torchipu.host.emit.rows import INDEX_BYTES, arithmetic_type, bucket, outer_of, take_rows, takes_apart
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.arguments import AS_MANY_AS_INDICES, ONE_ROW_OF_INDICES, ROWS_LIKE_SELF, of_one_type
from torchipu.optable.host_tensor import HostTensor, broadcast, collapse, contiguous_strides
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import Constraint, OpSpec, register

BLOCK_SHARE = 8192  # positions of one thread's share
REDUCTIONS = {
    "add": Join.ADD, "sum": Join.ADD, "multiply": Join.MULTIPLY, "prod": Join.MULTIPLY, "amax": Join.MAX,
    "amin": Join.MIN, "mean": Join.MEAN,
}
LIMITS = {DType.LONG: (-(2**63), 2**63 - 1), DType.INT: (-(2**31), 2**31 - 1), DType.UNSIGNED_CHAR: (0, 255)}


# --------------------------------------------------------------------------- blocks: gather and scatter
def dim_of(op: Op, rank: int) -> int:
    """Return the attribute ``dim`` as a non-negative number; 0 for 0-d tensors."""
    return op.integer("dim") % max(1, rank)


def _whole(held: HostTensor) -> HostTensor:
    """Return a 0-d tensor as one of one dimension."""
    return held if held.shape else replace(held, shape=(1,), strides=(1,))


def _cropped(held: HostTensor, shape: Sequence[int], dim: int) -> HostTensor:
    """Return the part of a tensor that an index of a shape reaches: all of ``dim``, the beginning of the others."""
    held = _whole(held)
    return replace(held, shape=(*shape[:dim], held.shape[dim], *shape[dim + 1 :]))


def _shared_index(index: HostTensor, dim: int) -> HostTensor | None:
    """Return ``[outer, n]`` of an index that is the same for all elements behind ``dim``, or None."""
    behind = prod(index.shape[dim + 1 :])
    if behind <= 1 or any(s != 0 for n, s in zip(index.shape[dim + 1 :], index.strides[dim + 1 :], strict=True)
                          if n > 1):
        return None
    return replace(index, shape=index.shape[: dim + 1], strides=index.strides[: dim + 1])


def _emit_gather(op: Op, plan: HostPlanner) -> None:
    out = plan.output(op.outputs[0])
    if out.num_elements == 0:
        return
    held = _whole(plan.value(op.needed("index"), contiguous=False))
    dim = dim_of(op, len(held.shape))
    table = row_major(plan, _cropped(plan.value(op.needed("self"), contiguous=False), held.shape, dim))
    outer, extent, inner = outer_of(table.shape, dim)
    shared = _shared_index(held, dim)
    if shared is not None:
        take_rows(plan, out, table, row_major(plan, shared), outer=outer, rows=extent,
                  row_bytes=inner * table.dtype.host_bytes, wrap=False, count=held.shape[dim])
        return
    index = row_major(plan, held)
    ints = GatherBlockInts(
        element_bytes=table.dtype.host_bytes, index_bytes=INDEX_BYTES[index.dtype], index_rows=index.shape[dim],
        inner=inner, extent=extent,
    )
    plan.step(kernels.GATHER_BLOCK, [out], [table, index], ints=ints, items=outer * index.shape[dim],
              grain=max(1, BLOCK_SHARE // inner))


def _scatter(
    plan: HostPlanner, out: HostTensor, index: HostTensor, source: HostTensor | None, number: float, dim: int,
    how: Join,
) -> None:
    """Join a source, or a number, into row-major ``out`` where an index says."""
    outer, extent, inner = outer_of(out.shape, dim)
    source_rows = 0 if source is None else source.shape[dim]
    given = plan.constant((_as_element(number, out.dtype),), out.dtype) if source is None else source
    n = index.shape[dim]
    ints = ScatterBlockInts(
        element_bytes=out.dtype.host_bytes, is_float=out.dtype is DType.FLOAT, index_bytes=INDEX_BYTES[index.dtype],
        index_rows=n, inner=inner, extent=extent, source_rows=source_rows, how=how, wraps=False, shares_index=False,
    )
    plan.step(kernels.SCATTER_BLOCK, [out], [index, given], ints=ints, items=outer * -(-inner // SCATTER_PANEL),
              grain=max(1, BLOCK_SHARE // max(1, n * min(inner, SCATTER_PANEL))), reads_outputs=True)


def _join_elements(
    plan: HostPlanner, out: HostTensor, base: HostTensor, index: HostTensor, source: HostTensor, *,
    source_rows: int, how: Join, wraps: bool, outer: int = 1,
) -> None:
    """Join elements of a source, or its only one where it has 0 rows, into those of a base; all are row-major.

    Of several outer rows each is joined by the same index. Elements go to their places one by one, in the order of the
    index: to order an index by its rows goes to as many places.
    """
    emit_copy(plan, _whole(out), _whole(base))
    ints = ScatterBlockInts(
        element_bytes=out.dtype.host_bytes, is_float=out.dtype is DType.FLOAT, index_bytes=INDEX_BYTES[index.dtype],
        index_rows=index.num_elements, inner=1, extent=out.num_elements // outer, source_rows=source_rows, how=how,
        wraps=wraps, shares_index=True,
    )
    plan.step(kernels.SCATTER_BLOCK, [out], [index, source], ints=ints, items=outer,
              grain=max(1, BLOCK_SHARE // index.num_elements), reads_outputs=True)


def _identity(how: Join, dtype: DType) -> float:
    """Return what leaves any value as it is when joined with it."""
    if how == Join.MULTIPLY:
        return 1
    if how in (Join.ADD, Join.MEAN):
        return 0
    if dtype.is_floating:
        return -inf if how == Join.MAX else inf
    least, most = LIMITS[dtype]
    return least if how == Join.MAX else most


def _joining_type(dtype: DType, how: Join) -> DType:
    """Return the type in which elements are joined: their own where it has sums that wrap as eager's do."""
    return dtype if how == Join.PUT or (how != Join.MEAN and dtype in LIMITS) else arithmetic_type(dtype)


def _as_element(number: float, dtype: DType) -> float:
    """Return a number as an element of a type has it, where whole ones wrap."""
    if dtype not in LIMITS:
        return number
    least, most = LIMITS[dtype]
    return (int(number) - least) % (most - least + 1) + least


def _reduction(op: Op) -> tuple[Join, bool]:
    """Return how values are joined, and whether the old value takes part."""
    if op.target == "aten.scatter_add.default":
        return Join.ADD, True
    reduce = op.attrs.get("reduce")
    if reduce is None:
        return Join.PUT, True
    assert isinstance(reduce, str)
    return REDUCTIONS[reduce], op.flag("include_self", True)


def _emit_scatter(op: Op, plan: HostPlanner) -> None:
    """Emit scatter in all its forms: a tensor or a number, put or reduced."""
    how, with_base = _reduction(op)
    base_tensor, index_tensor, values = op.needed("self"), op.needed("index"), op.operand("src")
    dtype = _joining_type(base_tensor.dtype, how)
    out = plan.output(op.outputs[0], dtype)
    if _emit_shared_scatter(op, plan, out, how, with_base):
        return
    emit_copy(plan, out, plan.value(base_tensor, dtype, contiguous=False))
    if index_tensor.num_elements == 0:
        return
    index = _whole(plan.value(index_tensor))
    dim = dim_of(op, len(index.shape))
    source = None
    if values is not None:
        source = row_major(plan, _cropped(plan.value(values, dtype, contiguous=False), index.shape, dim))
    number = op.attrs.get("value", 0)
    assert isinstance(number, (int, float))
    # Where the index is smaller than the tensor in other dimensions, the part that it reaches is updated apart.
    reached = _cropped(out, index.shape, dim)
    part = reached
    if not reached.is_contiguous:
        part = plan.scratch(reached.shape, dtype)
        emit_copy(plan, part, reached)
    _reduce_scattered(plan, part, index, source, number, dim, how, with_base)
    if how == Join.MEAN and not base_tensor.dtype.is_floating:
        part = _wrapped(plan, part, base_tensor.dtype)
    if how == Join.MEAN:
        counts = plan.scratch(part.shape, dtype)
        emit_fill(plan, counts, int(with_base))
        _scatter(plan, counts, index, None, 1, dim, Join.ADD)
        plan.step(kernels.DIVIDE_COUNTS, [part], [counts], ints=DivideCountsInts(dtype is DType.LONG),
                  items=part.num_elements, grain=BLOCK_SHARE, reads_outputs=True)
    if part is not reached:
        emit_copy(plan, reached, part)


def _emit_shared_scatter(op: Op, plan: HostPlanner, out: HostTensor, how: Join, with_base: bool) -> bool:
    """Join whole rows where one index serves all elements of a row, as after ``index[:, None].expand(-1, n)``."""
    index, values = plan.value(op.needed("index"), contiguous=False), op.operand("src")
    dim = dim_of(op, len(index.shape))
    if values is None or not index.shape or dim != 0 or index.shape[1:] != out.shape[1:]:
        return False
    shared = _shared_index(index, dim)
    wraps = how == Join.MEAN and out.dtype is DType.LONG  # sums of short types overflow before they are divided
    if shared is None or wraps or index.num_elements == 0 or values.shape[1:] != index.shape[1:]:
        return False
    base = plan.value(op.needed("self"), out.dtype)
    rows, inner = out.shape[0], prod(out.shape[1:])
    held = replace(plan.value(values, out.dtype, contiguous=False), shape=index.shape)
    source = as_rows(plan, held, inner, takes_parts=with_base and sums_rows(how, out.dtype))
    buckets = bucket(plan, row_major(plan, shared), rows, wrap=False)
    join_rows(plan, out, base, source, buckets, sizes=(1, rows, inner), count=index.shape[0], how=how,
              with_base=with_base)
    return True


def _reduce_scattered(
    plan: HostPlanner, out: HostTensor, index: HostTensor, source: HostTensor | None, number: float, dim: int,
    how: Join, with_base: bool,
) -> None:
    if how != Join.PUT and not with_base:
        _scatter(plan, out, index, None, _identity(how, out.dtype), dim, Join.PUT)
    _scatter(plan, out, index, source, number, dim, Join.ADD if how == Join.MEAN else how)


def _wrapped(plan: HostPlanner, held: HostTensor, dtype: DType) -> HostTensor:
    """Let 64-bit sums overflow as those of a shorter type do."""
    if dtype is DType.LONG:
        return held
    narrow = plan.scratch(held.shape, dtype)
    emit_copy(plan, narrow, held)
    emit_copy(plan, held, narrow)
    return held


# --------------------------------------------------------------------------- rows along one dimension
def _emit_index_select(op: Op, plan: HostPlanner) -> None:
    table, index = plan.value(op.needed("self")), plan.value(op.needed("index"))
    outer, rows, inner = outer_of(table.shape, dim_of(op, len(table.shape)))
    take_rows(plan, plan.placed_output(op.outputs[0]), table, index, outer=outer, rows=rows,
              row_bytes=inner * table.dtype.host_bytes, wrap=False)


def _places_selected(op: Op, held: HostTensor) -> bool:
    shape = op.needed("self").shape
    return takes_apart(op, held, outer_of(shape, dim_of(op, len(shape)))[2])


def _emit_along(op: Op, plan: HostPlanner) -> None:
    """Emit index_add, index_copy, index_fill and index_reduce."""
    name = op.target.split(".")[1]
    how, with_base, alpha = Join.PUT, True, 1.0
    if name == "index_add":
        how, alpha = Join.ADD, float(op.number("alpha"))
    elif name == "index_reduce":
        how, with_base = _reduction(op)
    tensor = op.needed("self")
    dtype = _joining_type(tensor.dtype, how)
    base, index = _whole(plan.value(tensor, dtype)), plan.value(op.needed("index"))
    sizes = outer_of(base.shape, dim_of(op, len(base.shape)))
    inner = sizes[2]
    values = op.operand("source") or op.operand("value")
    is_sum = sums_rows(how, dtype)
    if values is None:
        source = SourceRows(plan.constant((op.number("value"),), dtype), 0, 0)
    elif op.operand("source") is None:
        source = SourceRows(plan.value(values, dtype), 0, 0)
    else:
        held = plan.value(values, dtype, contiguous=False)
        source = as_rows(plan, held, inner, takes_parts=is_sum and sizes[0] == 1 and with_base)
    if alpha != 1.0 and not dtype.is_floating:
        source, alpha = replace(source, held=_scaled(plan, source.held, int(alpha))), 1.0
    out = plan.output(op.outputs[0], dtype)
    wraps = name == "index_fill"
    # Of several rows the kernel of sums has some side by side.
    if (inner == 1 and how != Join.MEAN and with_base and alpha == 1.0 and index.num_elements and base.num_elements
            and (sizes[0] == 1 or not is_sum)):
        source_rows = index.num_elements if source.row else 0
        _join_elements(
            plan, out, base, index, source.held, source_rows=source_rows, how=how, wraps=wraps, outer=sizes[0],
        )
        return
    buckets = bucket(plan, index, sizes[1], wrap=wraps)
    join_rows(plan, out, base, source, buckets, sizes=sizes, count=index.num_elements, how=how,
              with_base=with_base, alpha=alpha)


def _scaled(plan: HostPlanner, source: HostTensor, factor: int) -> HostTensor:
    """Return whole numbers times a factor."""
    count = source.num_elements
    product, index = plan.scratch(source.shape, source.dtype), plan.scratch((1, count), DType.LONG)
    emit_copy(plan, product, source)
    emit_fill(plan, index, 0)
    _scatter(plan, replace(product, shape=(1, count), strides=(count, 1)), index, None, factor, 0, Join.MULTIPLY)
    return product


# --------------------------------------------------------------------------- index tensors
def _marks(op: Op) -> list[int]:
    """Return the dimensions that index tensors select from."""
    return [dim for dim, tensor in enumerate(op.operand_list("indices")) if tensor is not None]


def _is_adjacent(dims: Sequence[int]) -> bool:
    return list(dims) == list(range(dims[0], dims[0] + len(dims)))


def _broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the shape that index tensors broadcast to."""
    rank = max(len(shape) for shape in shapes)
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    return tuple(next((n for n in column if n != 1), 1) for column in zip(*aligned, strict=True))


def _index_shape(op: Op) -> tuple[int, ...]:
    return _broadcast_shape([t.shape for t in op.operand_list("indices") if t is not None])


def _of_all_dims(numbers: Sequence[int]) -> tuple[int, int, int, int, int, int, int, int]:
    """Return a number for each dimension that an index may have."""
    a, b, c, d, e, f, g, h = (*numbers, *(0,) * (MAX_INDEX_DIMS - len(numbers)))
    return a, b, c, d, e, f, g, h


def _flat_index(op: Op, plan: HostPlanner, extents: Sequence[int], factors: Sequence[int]) -> HostTensor:
    """Return the sum of the index tensors times factors, for every position."""
    tensors = [plan.value(t, contiguous=False) for t in op.operand_list("indices") if t is not None]
    shape = _index_shape(op)
    merged, layouts = _collapsed(shape, [broadcast(held, shape).strides for held in tensors])
    ints = FlattenIndexInts(
        tensors=len(tensors), dims=len(merged), sizes=_of_all_dims(merged),
        layouts=tuple(
            IndexLayout(extent, factor, INDEX_BYTES[held.dtype], _of_all_dims(strides))
            for held, extent, factor, strides in zip(tensors, extents, factors, layouts, strict=True)
        ),
    )
    flat = plan.scratch((prod(shape),), DType.LONG)
    plan.step(row_kernels.FLATTEN_INDEX, [flat], tensors, ints=ints, items=prod(shape), grain=4096)
    return flat


def _row_numbers(op: Op, plan: HostPlanner, extents: Sequence[int]) -> HostTensor:
    """Return for every position the number of the row that the index tensors name; negative where one tensor has it."""
    tensors = [t for t in op.operand_list("indices") if t is not None]
    if len(tensors) == 1:
        return plan.value(tensors[0])
    return _flat_index(op, plan, extents, contiguous_strides(extents))


def _emit_index(op: Op, plan: HostPlanner) -> None:
    dims, result = _marks(op), op.outputs[0]
    if result.num_elements == 0:
        plan.output(result)
        return
    held = plan.value(op.needed("self"), contiguous=False)
    lead, last = dims[0], dims[-1] + 1
    extents = [held.shape[dim] for dim in dims]
    if _is_adjacent(dims) and held.is_contiguous:
        row_bytes = prod(held.shape[last:]) * held.dtype.host_bytes
        index = _row_numbers(op, plan, extents)
        take_rows(plan, plan.placed_output(result), held, index, outer=prod(held.shape[:lead]), rows=prod(extents),
                  row_bytes=row_bytes, wrap=True)
        return
    out = plan.output(result)
    offsets = _flat_index(op, plan, extents, [held.strides[dim] for dim in dims])
    outside = range(lead) if _is_adjacent(dims) else range(0)
    inside = [dim for dim in range(len(held.shape)) if dim not in dims and dim not in outside]
    outer, (outer_strides,) = _collapsed(*_layout(held, outside))
    inner, (inner_strides,) = _collapsed(*_layout(held, inside))
    ints = TakeStridedInts(
        element_bytes=held.dtype.host_bytes, taken=offsets.num_elements, outside=len(outer), inside=len(inner),
        inner=prod(inner), layout=(*outer, *outer_strides, *inner, *inner_strides),
    )
    plan.step(kernels.TAKE_STRIDED, [out], [held, offsets], ints=ints, items=prod(outer) * offsets.num_elements,
              grain=max(1, BLOCK_SHARE // max(1, prod(inner))))


def _places_indexed(op: Op, held: HostTensor) -> bool:
    dims = _marks(op)
    return _is_adjacent(dims) and takes_apart(op, held, prod(op.needed("self").shape[dims[-1] + 1 :]))


def _layout(held: HostTensor, dims: Sequence[int]) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    return tuple(held.shape[dim] for dim in dims), [tuple(held.strides[dim] for dim in dims)]


def _collapsed(
    shape: Sequence[int], layouts: Sequence[Sequence[int]],
) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    return collapse(shape, *layouts)


def _emit_index_put(op: Op, plan: HostPlanner) -> None:
    """Bring the indexed dimensions to the front, write rows there, and show the result in the order asked for."""
    tensor, dims = op.needed("self"), _marks(op)
    how = Join.ADD if op.flag("accumulate") else Join.PUT
    dtype = _joining_type(tensor.dtype, how)
    order = [*dims, *(dim for dim in range(len(tensor.shape)) if dim not in dims)]
    base = row_major(plan, _permuted(plan.value(tensor, dtype, contiguous=False), order))
    extents, row = base.shape[: len(dims)], base.shape[len(dims) :]
    source = _put_values(op, plan, dtype, dims, row, takes_parts=sums_rows(how, dtype))
    rows, inner = prod(extents), prod(row)
    index = _row_numbers(op, plan, extents)
    is_plain = order == list(range(len(order)))
    out = plan.output(op.outputs[0], dtype) if is_plain else plan.scratch(base.shape, dtype)
    if base.num_elements and inner == 1 and index.num_elements and (source.row or source.held.num_elements == 1):
        _join_elements(plan, out, base, index, source.held, source_rows=index.num_elements if source.row else 0,
                       how=how, wraps=True)
    elif base.num_elements:
        buckets = bucket(plan, index, rows, wrap=True)
        join_rows(plan, out, base, source, buckets, sizes=(1, rows, inner), count=index.num_elements, how=how)
    if is_plain:
        return
    shown = _permuted(out, [order.index(dim) for dim in range(len(order))])
    if dtype is tensor.dtype:
        plan.alias(op.outputs[0], shown)
    else:
        emit_copy(plan, plan.output(op.outputs[0]), shown)


def _permuted(held: HostTensor, order: Sequence[int]) -> HostTensor:
    return replace(held, shape=tuple(held.shape[d] for d in order), strides=tuple(held.strides[d] for d in order))


def _put_values(
    op: Op, plan: HostPlanner, dtype: DType, dims: Sequence[int], row: tuple[int, ...], *, takes_parts: bool,
) -> SourceRows:
    """Return the values of index_put as rows."""
    tensor, shape = op.needed("values"), _index_shape(op)
    if tensor.num_elements == 1:
        return SourceRows(plan.value(tensor, dtype), 0, 0)
    inner = prod(row)
    leading = dims[0] if _is_adjacent(dims) else 0
    if leading == 0 and tensor.shape == row:
        return SourceRows(plan.value(tensor, dtype), 0, 1)
    held = plan.value(tensor, dtype, contiguous=False)
    lead_sizes = row[:leading]
    whole = broadcast(held, (*lead_sizes, *shape, *row[leading:]))
    order = [*range(leading, leading + len(shape)), *range(leading), *range(leading + len(shape), len(whole.shape))]
    return as_rows(plan, _permuted(whole, order), inner, takes_parts=takes_parts)


# --------------------------------------------------------------------------- positions in the flattened tensor
def _emit_take(op: Op, plan: HostPlanner) -> None:
    table, index = plan.value(op.needed("self")), plan.value(op.needed("index"))
    take_rows(plan, plan.output(op.outputs[0]), table, index, outer=1, rows=table.num_elements,
              row_bytes=table.dtype.host_bytes, wrap=True)


def _emit_put(op: Op, plan: HostPlanner) -> None:
    tensor = op.needed("self")
    how = Join.ADD if op.flag("accumulate") else Join.PUT
    dtype = _joining_type(tensor.dtype, how)
    base, index = plan.value(tensor, dtype), plan.value(op.needed("index"))
    source, out = plan.value(op.needed("source"), dtype), plan.output(op.outputs[0], dtype)
    if index.num_elements and base.num_elements:
        _join_elements(plan, out, base, index, source, source_rows=index.num_elements, how=how, wraps=True)
    else:
        emit_copy(plan, _whole(out), _whole(base))


def _puts_what_it_names(op: Op) -> bool:
    """Whether values broadcast to what indices name."""
    named = [dim for dim, index in enumerate(op.operand_list("indices")) if index is not None]
    if not _has_index_tensors(op):
        return True  # a mask names as many as its values say
    leading = named[0] if _is_adjacent(named) else 0
    kept = [size for dim, size in enumerate(op.needed("self").shape) if dim not in named]
    shape = (*kept[:leading], *_index_shape(op), *kept[leading:])
    values = op.needed("values").shape
    return len(values) <= len(shape) and all(
        mine in (1, other) for mine, other in zip(reversed(values), reversed(shape), strict=False)
    )


_PUTS_WHAT_IT_NAMES = Constraint(
    _puts_what_it_names, "'values' do not broadcast to what the indices name", "expand 'values' to that shape",
)


# --------------------------------------------------------------------------- what the kernels serve
def _has_index(op: Op) -> bool:
    return op.needed("index").dtype in INDEX_BYTES


def _has_lines(op: Op) -> bool:
    """As `_has_index`; eager mode takes an empty index of any type."""
    return _has_index(op) or op.needed("index").num_elements == 0


def _has_index_tensors(op: Op) -> bool:
    """Whether all index tensors hold numbers; boolean masks have no fixed shape and go generic."""
    tensors = [t for t in op.operand_list("indices") if t is not None]
    return 0 < len(tensors) <= MAX_INDICES and all(t.dtype in INDEX_BYTES for t in tensors)


def _serves_scatter(op: Op) -> bool:
    """Whether eager mode's reduction has a counterpart; a source of another type is converted there too."""
    return _has_lines(op) and op.attrs.get("reduce", "sum") in REDUCTIONS


# --------------------------------------------------------------------------- records
def _scatters(*targets: str) -> None:
    lower = lower_update(indexed.scatter)
    for target in targets:
        name = target.split(".")[0]
        register(OpSpec(f"aten.{target}", name, lower, _emit_scatter, supports=_serves_scatter))


def _along(*targets: str, constraints: tuple[Constraint, ...] = ()) -> None:
    lower = lower_update(indexed.along)
    for target in targets:
        register(OpSpec(f"aten.{target}", target.split(".")[0], lower, _emit_along, supports=_has_index,
                        constraints=constraints))


_scatters("scatter.value", "scatter.src", "scatter.reduce", "scatter.value_reduce", "scatter_add.default",
          "scatter_reduce.two")
_ONE_TYPE = of_one_type(lambda op: (op.needed("self"), op.needed("source")))
_along("index_add.default", "index_reduce.default", constraints=(ROWS_LIKE_SELF, _ONE_TYPE))
_along("index_copy.default", constraints=(_ONE_TYPE,))
_along("index_fill.int_Scalar", "index_fill.int_Tensor")
_LOWER_INDEX_PUT = lower_update(indexed.index_put)
register(
    OpSpec("aten.gather.default", "gather", lower_take(indexed.gather), _emit_gather, moves=True,
           supports=_has_lines),
    OpSpec("aten.index_select.default", "index_select", lower_take(indexed.index_select),
           _emit_index_select, moves=True, supports=_has_index, constraints=(ONE_ROW_OF_INDICES,),
           places=_places_selected),
    OpSpec("aten.take.default", "take", lower_take(indexed.take), _emit_take, moves=True,
           supports=_has_index),
    OpSpec("aten.put.default", "put", lower_update(indexed.put), _emit_put, supports=_has_index,
           constraints=(AS_MANY_AS_INDICES, _ONE_TYPE)),
)
for _name in ("index.Tensor", "_unsafe_index.Tensor"):
    register(OpSpec(f"aten.{_name}", "index", lower_take(indexed.index_tensors), _emit_index, moves=True,
                    supports=_has_index_tensors, places=_places_indexed))
_VALUES_OF_ONE_TYPE = of_one_type(lambda op: (op.needed("self"), op.needed("values")))
for _name in ("index_put.default", "_unsafe_index_put.default"):
    register(OpSpec(f"aten.{_name}", "index_put", _LOWER_INDEX_PUT, _emit_index_put, supports=_has_index_tensors,
                    constraints=(_PUTS_WHAT_IT_NAMES, _VALUES_OF_ONE_TYPE)))
