"""Embeddings and bags of embeddings with their gradients."""

from __future__ import annotations

from dataclasses import replace

from torchipu._kernels.table import embedding as kernels
from torchipu._kernels.table.embedding import (
    BAG_COLUMNS,
    BagMaxGradInts,
    BagMode,
    BagOfInts,
    BagRowsGradInts,
    BagRowsInts,
    BagWeightsGradInts,
    NamedRowsInts,
    RenormRowsScalars,
    SumRowsInts,
    SumRowsScalars,
)
from torchipu.device.codelets import FILL, reduction_codelet
from torchipu.device.compute_sets import copy_set, elementwise_set
from torchipu.device.reductions import fetched_set
from torchipu.device.row_access import by_columns, by_rows, lower_take, lower_update, scaled_set, slice_set, update_set
from torchipu.device.tilings import bags, indexed
from torchipu.device.tilings.nothing import nothing_left
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.host.emit.joined_rows import as_rows
from torchipu.host.emit.rows import INDEX_BYTES, bucket, row_grain, take_rows, takes_apart
from torchipu.host.emit.stored import STORED, value_as_stored
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register
from torchipu.target import Target


# --------------------------------------------------------------------------- embedding
def _emit_embedding(op: Op, plan: HostPlanner) -> None:
    table, index = plan.value(op.needed("weight")), plan.value(op.needed("indices"))
    out = plan.placed_output(op.outputs[0])
    row_bytes = table.shape[1] * table.dtype.host_bytes
    take_rows(plan, out, table, index, outer=1, rows=table.shape[0], row_bytes=row_bytes, wrap=False)


def _places_embedding(op: Op, held: HostTensor) -> bool:
    return takes_apart(op, held, op.needed("weight").shape[1])


def _emit_embedding_grad(op: Op, plan: HostPlanner) -> None:
    index, out = plan.value(op.needed("indices")), plan.output(op.outputs[0], DType.FLOAT)
    rows, width = out.shape
    dy = as_rows(plan, plan.value(op.needed("grad_output"), DType.FLOAT, contiguous=False), width, takes_parts=True)
    padding = op.attrs["padding_idx"]
    assert isinstance(padding, int)
    offsets, order = bucket(plan, index, rows, wrap=False, skipped=padding)
    ints = SumRowsInts(
        rows=rows, source_rows=index.num_elements, inner=width, has_base=False, source_row=dy.row,
        source_column=dy.column, parts=dy.parts, source_part=dy.part,
    )
    plan.step(kernels.SUM_ROWS, [out], [dy.held, dy.held, offsets, order], ints=ints,
              scalars=SumRowsScalars(1.0), items=rows, grain=row_grain(width), writes=[Blocks.rows(rows, out)])
    if op.flag("scale_grad_by_freq"):
        plan.step(kernels.SCALE_BY_COUNT, [out], [offsets], ints=NamedRowsInts(width), items=rows,
                  grain=row_grain(width), reads_outputs=True, writes=[Blocks.rows(rows, out)])


def _emit_renorm(op: Op, plan: HostPlanner) -> None:
    """Scale the rows that an index names down to the largest norm."""
    table, index = plan.value(op.needed("self"), DType.FLOAT), plan.value(op.needed("indices"))
    rows, width = table.shape
    offsets, _ = bucket(plan, index, rows, wrap=False)
    scalars = RenormRowsScalars(float(op.number("max_norm")), float(op.number("norm_type")))
    plan.step(kernels.RENORM_ROWS, [plan.output(op.outputs[0], DType.FLOAT)], [table, offsets],
              ints=NamedRowsInts(width), scalars=scalars, items=rows, grain=row_grain(width),
              writes=[Blocks.rows(rows, table)])


# --------------------------------------------------------------------------- bags
def _offsets(op: Op, plan: HostPlanner, index: HostTensor) -> tuple[HostTensor, int]:
    """Return where bags begin, in the type of the index, and how many bags there are."""
    given = op.needed("offsets")
    held = plan.value(given, index.dtype)
    return held, given.num_elements - int(op.flag("include_last_offset"))


def _wanted_slots(op: Op) -> list[Tensor | None]:
    """Return the four results of a bag, None for those that are absent."""
    results = iter(op.outputs)
    return [next(results) if here else None for here in op.flags("present", (True,) * 4)]


def _emit_bag(op: Op, plan: HostPlanner) -> None:
    index = plan.value(op.needed("indices"))
    table = value_as_stored(plan, op.needed("weight"))  # of which those rows become floats that bags have
    offsets, bags = _offsets(op, plan, index)
    weights, mode = op.operand("per_sample_weights"), BagMode(op.integer("mode", 0))
    by = plan.value(weights, DType.FLOAT) if weights is not None else table
    out, bag_of, bag_size, winners = _wanted_slots(op)
    assert out is not None
    width = table.shape[1]
    sizes = plan.scratch((max(1, bags),), DType.LONG)
    winning = plan.scratch((max(1, bags), width) if mode is BagMode.MAXIMUM else (1,), DType.LONG)
    result = plan.output(out, DType.FLOAT)
    ints = BagRowsInts(
        rows=table.shape[0], width=width, length=index.num_elements, bags=bags, mode=mode,
        index_bytes=INDEX_BYTES[index.dtype], padding=op.integer("padding_idx", -1), has_weights=weights is not None,
        stored=STORED[table.dtype],
    )
    plan.step(kernels.BAG_ROWS, [result, sizes, winning], [table, index, offsets, by], ints=ints, items=bags,
              scratch_bytes=0 if table.dtype is DType.FLOAT else 4 * width, writes=[Blocks.rows(bags, result)])
    if bag_of is not None:
        _fill_bag_of(plan, plan.output(bag_of), index, offsets, bags)
    for tensor, computed in ((bag_size, sizes), (winners, winning)):
        if tensor is not None:
            _store(plan, plan.output(tensor), computed)


def _fill_bag_of(plan: HostPlanner, out: HostTensor, index: HostTensor, offsets: HostTensor, bags: int) -> None:
    """Fill the bag of each position; eager mode leaves it empty where its own backward does not need it."""
    if out.num_elements == index.num_elements:
        numbers = out if out.dtype is DType.LONG else plan.scratch(out.shape, DType.LONG)
        plan.step(kernels.BAG_OF, [numbers], [offsets],
                  ints=BagOfInts(index.num_elements, bags, INDEX_BYTES[index.dtype]))
        if numbers is not out:
            emit_copy(plan, out, numbers)
    else:
        emit_fill(plan, out, 0)


def _store(plan: HostPlanner, out: HostTensor, computed: HostTensor) -> None:
    """Store what backward reads, where the shape is that of our own; else zeros, which nothing reads."""
    if out.num_elements == computed.num_elements:
        emit_copy(plan, HostTensor(out.buffer, 0, computed.shape, computed.strides, out.dtype), computed)
    else:
        emit_fill(plan, out, 0)


def _bag_of(op: Op, plan: HostPlanner, index: HostTensor) -> HostTensor:
    """Return the bag of each position."""
    numbers = plan.scratch((max(1, index.num_elements),), DType.LONG)
    given = op.needed("offsets")
    offsets = plan.value(given, index.dtype)
    plan.step(kernels.BAG_OF, [numbers], [offsets],
              ints=BagOfInts(index.num_elements, given.num_elements, INDEX_BYTES[index.dtype]))
    return numbers


def _emit_bag_grad(op: Op, plan: HostPlanner) -> None:
    dy, index = plan.value(op.needed("grad"), DType.FLOAT), plan.value(op.needed("indices"))
    out, mode = plan.output(op.outputs[0], DType.FLOAT), BagMode(op.integer("mode", 0))
    rows, width = out.shape
    if mode is BagMode.MAXIMUM:
        winners = plan.value(op.needed("maximum_indices"), DType.LONG)
        emit_fill(plan, out, 0)
        sizes = plan.value(op.needed("bag_size"), DType.LONG)
        plan.step(kernels.BAG_MAX_GRAD, [out], [dy, winners, sizes],
                  ints=BagMaxGradInts(width, dy.shape[0], rows), items=-(-width // BAG_COLUMNS), reads_outputs=True,
                  writes=[Blocks.of((rows, width), (rows, BAG_COLUMNS))])
        return
    weights = op.operand("per_sample_weights")
    by = plan.value(weights, DType.FLOAT) if weights is not None else dy
    sizes = plan.value(op.needed("bag_size"), DType.LONG)
    offsets, order = bucket(plan, index, rows, wrap=False, skipped=op.integer("padding_idx", -1))
    bag_of = _offset2bag(op, plan, index)
    plan.step(kernels.BAG_ROWS_GRAD, [out], [dy, offsets, order, bag_of, sizes, by],
              ints=BagRowsGradInts(
                  width=width, is_mean=mode is BagMode.MEAN, has_weights=weights is not None,
                  scales_by_count=op.flag("scale_grad_by_freq"),
              ),
              items=rows, grain=row_grain(width), writes=[Blocks.rows(rows, out)])


def _offset2bag(op: Op, plan: HostPlanner, index: HostTensor) -> HostTensor:
    """Return the bag of each position: as given, or from the offsets where the forward left it empty."""
    given = op.needed("offset2bag")
    if given.num_elements == index.num_elements:
        return plan.value(given, DType.LONG)
    return _bag_of(op, plan, index)


def _emit_bag_weights_grad(op: Op, plan: HostPlanner) -> None:
    dy, table = plan.value(op.needed("grad"), DType.FLOAT), plan.value(op.needed("weight"), DType.FLOAT)
    index = plan.value(op.needed("indices"))
    ints = BagWeightsGradInts(
        width=table.shape[1], rows=table.shape[0], index_bytes=INDEX_BYTES[index.dtype],
        padding=op.integer("padding_idx", -1),
    )
    plan.step(kernels.BAG_WEIGHTS_GRAD, [plan.output(op.outputs[0], DType.FLOAT)],
              [dy, table, index, _offset2bag(op, plan, index)], ints=ints, items=index.num_elements,
              grain=row_grain(table.shape[1]), writes=[Blocks.of((index.num_elements,), (1,))])


# --------------------------------------------------------------------------- device side
_SUM = reduction_codelet("popops::Reduce<add,float>")


def _num_indices(op: Op) -> int:
    return op.needed("indices").num_elements


def _lower_bag(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower a bag: rows are taken, and added in those of the bags."""
    out, table, named = op.outputs[0], op.needed("weight"), _num_indices(op)
    if out.num_elements == 0 or named == 0:
        return ()
    look = slice_set(by_columns(target, table.shape, named, table.dtype))
    add = update_set(by_columns(target, out.shape, named, out.dtype))
    return replace(look, tiling=bags.told), replace(add, tiling=bags.columns)


def _lower_bag_grad(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower the gradient of a bag: zeros, then rows of the gradient are added to those of the table."""
    out, named = op.outputs[0], _num_indices(op)
    if out.num_elements == 0:
        return ()
    filled = elementwise_set(target, FILL, out.num_elements, out.dtype)
    added = update_set(by_columns(target, out.shape, max(1, named), out.dtype))
    return replace(filled, tiling=nothing_left), replace(added, tiling=bags.columns)


def _lower_bag_weights_grad(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower the gradient of the weights: rows of the table and of the gradient are taken, multiplied and summed."""
    table, named = op.needed("weight"), _num_indices(op)
    if named == 0:
        return ()
    plan = by_columns(target, table.shape, 2 * named, table.dtype)
    sums = fetched_set(target, _SUM, named, plan.line_parts, DType.FLOAT)
    tilings = bags.weights_gradient(target.num_tiles)
    return replace(slice_set(plan), tiling=tilings[0]), replace(sums, tiling=tilings[1])


def _lower_renorm(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower the bound on the norms of rows, which a vertex has whole."""
    table, named = op.outputs[0], _num_indices(op)
    if table.num_elements == 0:
        return ()
    copied = copy_set(target, table.num_elements, table.dtype, moved=False)
    scaled = scaled_set(by_rows(target, table.shape, max(1, named), table.dtype))
    return replace(copied, tiling=nothing_left), replace(scaled, tiling=bags.renormed)


# --------------------------------------------------------------------------- records
def _serves(op: Op) -> bool:
    """Indices of 32 or 64 bits; gradients as sparse tensors do not exist here."""
    return not op.flag("sparse") and op.needed("indices").dtype in INDEX_BYTES


_LOWER_GRAD = lower_update(indexed.embedding_gradient)
register(
    OpSpec("aten.embedding.default", "embedding", lower_take(indexed.embedding), _emit_embedding, moves=True,
           supports=_serves, places=_places_embedding),
    OpSpec("aten.embedding_dense_backward.default", "embedding_grad", _LOWER_GRAD, _emit_embedding_grad,
           supports=_serves),
    OpSpec("aten.embedding_renorm.default", "embedding_renorm", _lower_renorm, _emit_renorm,
           supports=_serves),
    OpSpec("aten._embedding_bag.default", "embedding_bag", _lower_bag, _emit_bag, supports=_serves),
    OpSpec("aten._embedding_bag_forward_only.default", "embedding_bag", _lower_bag, _emit_bag, supports=_serves),
    OpSpec("aten._embedding_bag_dense_backward.default", "embedding_bag_grad", _lower_bag_grad, _emit_bag_grad,
           supports=_serves),
    OpSpec("aten._embedding_bag_backward.default", "embedding_bag_grad", _lower_bag_grad, _emit_bag_grad,
           supports=_serves),
    OpSpec("aten._embedding_bag_per_sample_weights_backward.default", "embedding_bag_weights_grad",
           _lower_bag_weights_grad, _emit_bag_weights_grad, supports=_serves),
)
