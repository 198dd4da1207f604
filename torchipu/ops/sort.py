"""Sorting, the k largest, medians and other ranks, search in sorted rows, and histograms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torchipu._kernels.table.reduce import REDUCE_INTEGERS, Folding
from torchipu._kernels.table.sort import (
    ENTRY_BYTES,
    HISTOGRAM,
    SEARCH,
    SELECT,
    SORT,
    SORT_SMALL,
    HistogramInts,
    SearchInts,
    SelectInts,
    Selection,
    SortInts,
)
from torchipu.device.codelets import Work, busiest_elements, element_codelet, reduction_codelet
from torchipu.device.compute_sets import copy_set, fits_tile, in_first
from torchipu.device.reductions import reduced_along
from torchipu.device.tilings.alone import alone
from torchipu.device.tilings.ranks import Groups, Ranking, Stage, blocks_of, chunks_of, pairs_of, ranked, rows_around
from torchipu.device.tilings.searched import counted, in_sorted, of_stretches, row_by_row
from torchipu.host.emit.reduce import emit_exact, emit_reduction
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.scan import around_dim
from torchipu.optable.arguments import ONE_ROW_OF_BOUNDARIES, has_dim
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import ANY, FLOATING, Constraint, OpSpec, register
from torchipu.target import Target

SHARE = 2048  # elements that one thread sorts at least
SEARCH_SHARE = 1024  # searches of one thread's share
MAX_CHUNKS, MIN_CHUNK = 32, 16384  # of a histogram; fixed, so that results do not depend on threads


# --------------------------------------------------------------------------- device side
COMPARE_SWAP = Codelet(
    "popops::CompareAndSwapAtDistance",
    lambda target, work: 42 + 11 * -(-work["elements"] // 2), 640, "ipu-stack kernel measurements, ipu_hardware.md 2.3",
)
HEAP = element_codelet("popops::HeapSortVertex", 60, 60, code_bytes=900, source="estimate")
BINARY_SEARCH = element_codelet("torchipu::BinarySearch", 90, 90, source="estimate")
COUNT = element_codelet("popops::Histogram", 12, 12, source="estimate")
ADD = reduction_codelet("popops::Reduce<add>")


def _bitonic_sets(
    target: Target, elements: int, length: int, dtype: DType, ranking: Ranking | None = None,
    begin: Stage | None = None,
) -> list[Vertices]:
    """Return the stages of a bitonic sort of rows; values travel with their positions.

    Stages whose partners lie on one tile exchange nothing. They follow one another without an exchange, so that those
    of one round are one compute set.

    Args:
        target: The machine.
        elements: Of all rows.
        length: Of a row.
        dtype: Element type of the values.
        ranking: What is sorted; None for ops that do not want rows in order.
        begin: A set that comes before and leaves its rows shorter.
    """
    levels = max(0, math.ceil(math.log2(max(1, length))))
    width = target.vector_width(dtype.device_bytes)
    mine = busiest_elements(target, elements, width, dtype.device_bytes)
    local = int(math.log2(max(1, mine)))
    fixed = {"vector_width": width, "element_bytes": dtype.device_bytes}
    pair_bytes = dtype.device_bytes + 4

    def local_work(levels_here: int) -> Callable[[int], Work]:
        return lambda count: {"elements": count * levels_here, **fixed}

    sets: list[Vertices] = []
    groups: list[list[Groups]] = []
    held = length if begin is None else begin.going()
    for level in range(1, levels + 1):
        here = min(level, local)
        sets += [
            Vertices(
                COMPARE_SWAP, elements, lambda count: {"elements": count, **fixed}, grain=width,
                gathered_bytes=mine * pair_bytes, temporary_bytes=mine * pair_bytes,
            )
        ] * (level - here)
        groups += [pairs_of(held, level, step) for step in range(level - here)]
        if here:
            sets.append(Vertices(
                COMPARE_SWAP, elements, local_work(here), grain=width, temporary_bytes=mine * 4,
            ))
            groups.append(blocks_of(held, 1 << here))
    if ranking is None:
        return sets
    first = 0 if begin is None else 1
    stages = [
        Stage(tuple(found), first + place, held, is_last=place == len(sets) - 1) for place, found in enumerate(groups)
    ]
    return [replace(one, tiling=ranked(ranking, stage)) for one, stage in zip(sets, stages, strict=True)]


def _lower_ranks(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower what takes one element of each row in order: the whole row is sorted.

    On the tile machine a vertex has whole rows, for which they must fit into its memory.
    """
    source = op.inputs[0]
    if not source.num_elements:
        return ()
    _, length, _ = _rows(op, source)
    if length == 1:
        return _of_single_elements(op, target)
    sets = _bitonic_sets(target, source.num_elements, length, source.dtype)
    return in_first(sets, _BY_ROWS if fits_tile(target, length * source.dtype.device_bytes) else None)


def _of_single_elements(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower an op along rows of one element: it moves them, and numbers them zero."""
    return in_first([copy_set(target, one.num_elements, one.dtype) for one in op.outputs], _BY_ROWS)


def _lower_sort(op: Op, target: Target) -> tuple[Vertices, ...]:
    source = op.inputs[0]
    if not source.num_elements:
        return ()
    outer, length, inner = _rows(op, source)
    if length == 1:
        return _of_single_elements(op, target)
    rows = rows_around(outer, length, inner)
    ranking = Ranking(rows, rows, op.flag("descending"))
    return tuple(_bitonic_sets(target, source.num_elements, length, source.dtype, ranking))


def _lower_topk(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower to a heap on each tile over its share of a row, then a sort of what the tiles kept."""
    source = op.inputs[0]
    if not source.num_elements or not op.outputs[0].num_elements:
        return ()
    outer, length, inner = _rows(op, source)
    rows = source.num_elements // length
    kept = max(1, op.outputs[0].num_elements // rows)
    width = target.vector_width(source.dtype.device_bytes)
    mine = busiest_elements(target, source.num_elements, width, source.dtype.device_bytes)
    shares = max(1, length // max(1, mine))
    candidates = min(length, kept * shares)
    fixed = {"vector_width": width, "element_bytes": source.dtype.device_bytes}
    per_element = max(1, round((13 + 20 * math.log(max(1, kept))) / 60))
    ranking = Ranking(rows_around(outer, length, inner), rows_around(outer, kept, inner), op.flag("largest"))
    begin = Stage(tuple(chunks_of(length, shares)), 0, length, kept, is_last=candidates == 1)
    heap = Vertices(
        HEAP, source.num_elements, lambda count: {"elements": count * per_element, **fixed}, grain=width,
        temporary_bytes=8 * kept, tiling=ranked(ranking, begin),
    )
    return (heap, *_bitonic_sets(target, rows * candidates, candidates, source.dtype, ranking, begin))


def _lower_search(op: Op, target: Target) -> tuple[Vertices, ...]:
    result = op.outputs[0]
    if not result.num_elements:
        return ()
    boundaries = op.operand("sorted_sequence") or op.operand("boundaries")
    assert boundaries is not None
    steps = max(1, math.ceil(math.log2(boundaries.shape[-1] + 1)) if boundaries.shape else 1)
    fixed = {"vector_width": 2, "element_bytes": 4}
    row_bytes = boundaries.device_bytes // max(1, math.prod(boundaries.shape[:-1]))
    return (Vertices(
        BINARY_SEARCH, result.num_elements, lambda count: {"elements": max(1, count * steps // 5), **fixed},
        gathered_bytes=row_bytes, temporary_bytes=row_bytes, tiling=in_sorted,
    ),)


def _lower_histogram(op: Op, target: Target) -> tuple[Vertices, ...]:
    source, bins = op.inputs[0], op.outputs[0].num_elements
    if not source.num_elements:
        return ()
    fixed = {"vector_width": target.vector_width(source.dtype.device_bytes), "element_bytes": source.dtype.device_bytes}
    held = busiest_elements(target, source.num_elements, 2, source.dtype.device_bytes)
    tiles = min(target.num_tiles, -(-source.num_elements // held))
    count = Vertices(COUNT, source.num_elements, lambda n: {"elements": n, **fixed}, temporary_bytes=4 * bins)
    if op.number("min") == op.number("max"):  # between the extremes, which a vertex has to have everything for
        sets = (count, *reduced_along(target, ADD, (tiles, bins), (0,), DType.FLOAT, DType.FLOAT, None))
        return in_first(sets, alone if fits_tile(target, source.device_bytes) else None)
    sums = reduced_along(target, ADD, (tiles, bins), (0,), DType.FLOAT, DType.FLOAT, of_stretches(tiles))
    return (replace(count, tiling=counted(tiles)), *sums)


_BY_ROWS = row_by_row(lambda op: _rows(op, op.inputs[0]))


# --------------------------------------------------------------------------- host side
def _kind(source: Tensor) -> DType:
    return DType.FLOAT if source.dtype.is_floating else DType.LONG


def _rows(op: Op, source: Tensor) -> tuple[int, int, int]:
    """Return the sizes before, of and after the dimension; an op without one takes the tensor as one row."""
    return around_dim(op, source.shape) if "dim" in op.attrs else (1, source.num_elements, 1)


def _scratch_bytes(length: int) -> int:
    return ENTRY_BYTES * (2 * length + SORT_SMALL)


def sort(op: Op, plan: HostPlanner) -> None:
    """Sort rows stably, or give their k smallest or largest in order."""
    source, kind = op.inputs[0], _kind(op.inputs[0])
    held = plan.value(source, kind)
    values, indices = plan.output(op.outputs[0], kind), plan.output(op.outputs[1], DType.LONG)
    outer, length, inner = _rows(op, source)
    taken = min(length, op.integer("k", length))
    descending = op.flag("largest" if op.given("k") else "descending")
    if not values.num_elements:
        return
    plan.step(
        SORT, [values, indices], [held], ints=SortInts(length, inner, taken, kind is DType.LONG, descending),
        items=outer * inner, grain=max(1, SHARE // length), scratch_bytes=_scratch_bytes(length),
        writes=[Blocks.of((outer, taken, inner), (1, taken, 1))],
    )


def select(selection: Selection) -> Emitter:
    """Give one element of each row by its rank, or the most frequent one."""

    def emit(op: Op, plan: HostPlanner) -> None:
        source, kind = op.inputs[0], _kind(op.inputs[0])
        held, values = plan.value(source, kind), plan.output(op.outputs[0], kind)
        outer, length, inner = _rows(op, source)
        both = len(op.outputs) > 1
        indices = plan.output(op.outputs[1], DType.LONG) if both else plan.scratch((1,), DType.LONG)
        if not values.num_elements:
            return
        rank = op.integer("k", 1) - 1
        plan.step(
            SELECT, [values, indices], [held], ints=SelectInts(length, inner, kind is DType.LONG, selection, rank),
            items=outer * inner, grain=max(1, SHARE // length), scratch_bytes=_scratch_bytes(length),
            writes=[Blocks.of((outer, inner), (1, 1))],
        )

    return emit


def _has_rows(op: Op) -> bool:
    """Whether each result has something to choose from; the median of nothing is NaN, by ATen."""
    return op.inputs[0].num_elements > 0 or op.outputs[0].num_elements == 0


def search(op: Op, plan: HostPlanner) -> None:
    """Find where each value belongs in a sorted row."""
    boundaries = op.operand("sorted_sequence") or op.operand("boundaries")
    assert boundaries is not None
    values, order = op.operand("self"), op.operand("sorter")
    given = values.dtype.is_floating if values is not None else isinstance(op.number("self"), float)
    kind = DType.FLOAT if boundaries.dtype.is_floating or given else DType.LONG
    row = plan.value(boundaries, kind)
    wanted = plan.value(values, kind) if values is not None else plan.constant([op.number("self")], kind)
    orders = [plan.value(order, DType.LONG)] if order is not None else []
    out = plan.output(op.outputs[0], DType.LONG)
    length = boundaries.shape[-1] if boundaries.shape else 1
    per_row = wanted.shape[-1] if len(boundaries.shape) > 1 else 0
    right = op.flag("right") or op.text("side", None) == "right"
    plan.step(
        SEARCH, [out], [row, wanted, *orders],
        ints=SearchInts(length, per_row, kind is DType.LONG, right, order is not None),
        items=out.num_elements, grain=SEARCH_SHARE,
    )


def histogram(op: Op, plan: HostPlanner) -> None:
    """Count the elements in bins of equal width; without edges given, between the extremes."""
    source, result = op.inputs[0], op.outputs[0]
    held = plan.value(source, DType.FLOAT)
    low, high = float(op.number("min")), float(op.number("max"))
    if low == high:
        edges = plan.scratch((2,))
        for place, folding in enumerate((Folding.SMALLEST, Folding.LARGEST)):
            edge = HostTensor(edges.buffer, place, (), (), DType.FLOAT)
            emit_reduction(plan, edge, held, tuple(range(len(held.shape))), folding)
    else:
        edges = plan.constant([low, high], DType.FLOAT)
    bins, count = result.num_elements, source.num_elements
    chunk = max(MIN_CHUNK, -(-count // MAX_CHUNKS))
    chunks = -(-count // chunk)
    counts = plan.scratch((chunks, bins), DType.LONG)
    plan.step(HISTOGRAM, [counts], [held, edges], ints=HistogramInts(count, chunk, bins), items=chunks)
    emit_exact(plan, REDUCE_INTEGERS, plan.output(result, DType.LONG), counts, (0,), Folding.SUM)


# --------------------------------------------------------------------------- records
def _record(
    targets: str, lower: Callable[[Op, Target], tuple[Vertices, ...]], emit: Callable[[Op, HostPlanner], None],
    supports: Callable[[Op], bool] = lambda op: True, dtypes: tuple[DType, ...] = ANY,
    constraints: tuple[Constraint, ...] = (),
) -> None:
    for target in targets.split():
        name, _, overload = target.partition(".")
        full = f"aten.{name}.{overload or 'default'}"
        register(OpSpec(full, name, lower, emit, supports=supports, dtypes=dtypes, constraints=constraints))


_record("sort sort.stable", _lower_sort, sort, constraints=(has_dim(),))
_record("topk", _lower_topk, sort)
_record("kthvalue", _lower_ranks, select(Selection.RANK), _has_rows)
_record("median median.dim", _lower_ranks, select(Selection.MEDIAN), _has_rows)
_record("nanmedian nanmedian.dim", _lower_ranks, select(Selection.NAN_MEDIAN), _has_rows)
_record("mode", _lower_ranks, select(Selection.MODE), _has_rows)
_record("searchsorted.Tensor searchsorted.Scalar", _lower_search, search)
_record("bucketize.Tensor bucketize.Scalar", _lower_search, search, constraints=(ONE_ROW_OF_BOUNDARIES,))
_record("histc", _lower_histogram, histogram, dtypes=FLOATING)
