"""Interpolation of images and volumes, and paddings that repeat: sums of weighted elements, one dimension at a time.

What an element of the result takes from a line of the operand is known from the sizes alone, so the weights are
constants of the program. The gradient takes the same weights the other way round. A weight of zero is one too: as in
eager mode, nothing times what is not finite is NaN.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from torchipu._kernels.table.copy import PAD_ROWS, PadRowsInts
from torchipu._kernels.table.resample import (
    FOLD_ROWS,
    GROUP,
    WEIGHTED_COLUMNS,
    WEIGHTED_GROUPS,
    WEIGHTED_TAPS,
    WINDOW,
    FoldRowsInts,
    WeightedColumnsInts,
    WeightedGroupsInts,
    WeightedTapsInts,
)
from torchipu.device.codelets import Work, busiest_elements
from torchipu.device.compute_sets import copy_vertices, no_vertices
from torchipu.device.tilings.sums import WEIGHTED_SUM, Along, mapped_along
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.rows import row_grain
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, operand_labels
from torchipu.ir.types import DType
from torchipu.ops.taps import (
    Row,
    Taps,
    circular_places,
    cubic_taps,
    linear_taps,
    nearest_taps,
    needed_maps,
    reflection_places,
    replication_places,
    smoothed_taps,
    transposed,
    unchanged,
)
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register
from torchipu.target import Target

SHORT_RUN = 8
"""Fewer elements behind a dimension are mapped with it: rows of them are shorter than a vector."""
LONGEST_PIECE = 4096
"""Elements of a row that one thread maps."""


# --------------------------------------------------------------------------- host side
def apply_taps(plan: HostPlanner, held: HostTensor, taps: dict[int, Taps], out: HostTensor) -> None:
    """Map dimensions one after another, those that shrink first and those that grow last, the innermost before others.

    Args:
        plan: Receives the steps.
        held: Row-major float.
        taps: Map of each dimension; those that change nothing are left out.
        out: Row-major float, written.
    """
    needed = needed_maps(taps)
    order = sorted(needed, key=lambda dim: (len(needed[dim].rows) / max(1, needed[dim].length), -dim))
    if not order:
        emit_copy(plan, out, held)
        return
    for position, dim in enumerate(order):
        one = needed[dim]
        shape = (*held.shape[:dim], len(one.rows), *held.shape[dim + 1 :])
        result = out if position == len(order) - 1 else plan.scratch(shape, DType.FLOAT)
        _apply_one(plan, result, held, one, dim)
        held = result


def _apply_one(plan: HostPlanner, out: HostTensor, held: HostTensor, taps: Taps, dim: int) -> None:
    inner = prod(held.shape[dim + 1 :])
    if inner < SHORT_RUN:
        _apply_to_columns(plan, out, held, taps, inner)
        return
    starts = plan.constant([0, *itertools.accumulate(map(len, taps.rows))], DType.LONG)
    flat = [pair for row in taps.rows for pair in row]
    sources = plan.constant([source for source, _ in flat], DType.LONG)
    weights = plan.constant([weight for _, weight in flat], DType.FLOAT)
    items = prod(held.shape[:dim]) * len(taps.rows)
    plan.step(WEIGHTED_TAPS, [out], [held, starts, sources, weights],
              ints=WeightedTapsInts(len(taps.rows), taps.length, inner), items=items,
              grain=row_grain(inner * max(1, taps.width)),
              writes=[Blocks.rows(items, out)])


def _apply_to_columns(plan: HostPlanner, out: HostTensor, held: HostTensor, taps: Taps, inner: int) -> None:
    """Map the last dimension; with few elements behind it, these and it are the columns of a row."""
    rows = held.num_elements // max(1, taps.length * inner)
    together = next((lines for lines in range(1, WINDOW + 1) if lines * taps.length >= WINDOW and rows % lines == 0), 0)
    groups = _groups_of(_lines(taps, together)) if inner == 1 and together else None
    if groups is not None:
        taps, rows = _lines(taps, together), rows // together
        tables = [plan.constant(words, DType.INT) for words in (groups.sizes, groups.bases, groups.lanes)]
        ints = WeightedGroupsInts(len(taps.rows), taps.length, len(groups.sizes) // 2)
        plan.step(WEIGHTED_GROUPS, [out], [held, *tables, plan.constant(groups.weights, DType.FLOAT)], ints=ints,
                  items=rows, grain=row_grain(len(taps.rows) * max(1, taps.width)), writes=[Blocks.rows(rows, out)])
        return
    places, sources, weights = list[int](), list[int](), list[float]()
    at = 0
    for width, run in itertools.groupby(taps.rows, key=len):
        for piece in _cut(list(run), max(1, LONGEST_PIECE // max(1, inner))):
            places += [at, len(piece) * inner, width, len(sources)]
            at += len(piece) * inner
            for tap in range(width):
                sources += [row[tap][0] * inner + i for row in piece for i in range(inner)]
                weights += [row[tap][1] for row in piece for _ in range(inner)]
    pieces = len(places) // 4
    plan.step(WEIGHTED_COLUMNS, [out], [
        held, plan.constant(places, DType.LONG), plan.constant(sources, DType.INT), plan.constant(weights, DType.FLOAT),
    ], ints=WeightedColumnsInts(len(taps.rows) * inner, taps.length * inner, pieces),
        items=rows * pieces if at else 0, grain=row_grain(ceil_div(at * max(1, taps.width), max(1, pieces))))


@dataclass(slots=True)
class _Groups:
    """Outputs in groups that take each tap from neighbouring values: the tables of ``weighted_groups``."""

    sizes: list[int] = field(default_factory=list)
    bases: list[int] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)

    def add(self, rows: Sequence[Row], inputs: int) -> bool:
        """Add outputs of as many taps each; return False where a tap takes them from too far apart."""
        self.sizes += [len(rows), len(rows[0])]
        for taps in zip(*rows, strict=True):
            base = min(min(source for source, _ in taps), inputs - WINDOW)
            lanes = [source - base for source, _ in taps]
            if max(lanes) >= WINDOW:
                return False
            spare = GROUP - len(taps)
            self.bases.append(base)
            self.lanes += [*lanes, *itertools.repeat(0, spare)]
            self.weights += [*(weight for _, weight in taps), *itertools.repeat(0.0, spare)]
        return True


def _lines(taps: Taps, lines: int) -> Taps:
    """Return the map of several lines, one behind the other, as one."""
    rows = tuple(
        tuple((line * taps.length + source, weight) for source, weight in row)
        for line in range(lines) for row in taps.rows
    )
    return Taps(lines * taps.length, rows)


def _groups_of(taps: Taps) -> _Groups | None:
    """Return the outputs of a line in groups; None where some take what lies too far apart."""
    groups = _Groups()
    if taps.length < WINDOW:
        return None
    for _, run in itertools.groupby(taps.rows, key=len):
        if not all(groups.add(rows, taps.length) for rows in _cut(list(run), GROUP)):
            return None
    return groups


def _cut(rows: Sequence[Row], longest: int) -> list[Sequence[Row]]:
    return [rows[begin : begin + longest] for begin in range(0, len(rows), longest)]


# --------------------------------------------------------------------------- interpolation
def _factors(op: Op, count: int) -> list[float | None]:
    """Return the scale factors that the call gives, by dimension."""
    if count == 1:
        return [op.number("scales", None)]
    names = ("scales_d", "scales_h", "scales_w")[-count:]
    return [op.number(name, None) for name in names]


def taps_of(op: Op) -> dict[int, Taps]:
    """Return the maps from the image before interpolation to the one after it, by dimension."""
    name = op.target.split(".")[1]
    results = op.integers("output_size")
    count, is_backward = len(results), "input_size" in op.attrs
    before = op.integers("input_size") if is_backward else op.needed(_image(op)).shape
    align = op.flag("align_corners")
    is_smooth = name.removesuffix("_backward").endswith("_aa")
    # As in eager mode, which has weights of zero, and with them NaN of what is not finite, in all other cases.
    is_copied = name == "upsample_bicubic2d_backward" and tuple(results) == tuple(before[2:])
    taps = {}
    for place, (result, factor) in enumerate(zip(results, _factors(op, count), strict=True)):
        size = before[2 + place]
        if "nearest" in name:
            one = nearest_taps(size, result, factor, exact="exact" in name)
        elif (is_smooth and not is_backward and size == result) or is_copied:
            one = unchanged(size)
        elif is_smooth:
            one = smoothed_taps(size, result, align, factor, cubic="bicubic" in name)
        elif "bicubic" in name:
            one = cubic_taps(size, result, align, factor)
        else:
            one = linear_taps(size, result, align, factor)
        taps[2 + place] = transposed(one) if is_backward else one
    return taps


def _image(op: Op) -> str:
    return op.operands[0]


def _emit_interpolation(op: Op, plan: HostPlanner) -> None:
    result, taps = op.outputs[0], taps_of(op)
    image = op.needed(_image(op))
    held = plan.value(image, contiguous=False)
    if held.order[-1] not in taps and image.dtype is result.dtype and all(map(is_copy, taps.values())):
        out = plan.output_as_held(result, held)
        take_places(plan, out, held, {dim: [row[0][0] for row in one.rows] for dim, one in taps.items()})
        return
    out = plan.output_as_held(result, held, DType.FLOAT)
    if out.is_contiguous:
        apply_taps(plan, plan.value(image, DType.FLOAT), taps, out)
    else:
        _apply_in_order(plan, plan.value(image, DType.FLOAT, contiguous=False), taps, out)


def is_copy(taps: Taps) -> bool:
    """Whether each element of the result is one of the operand."""
    return all(len(row) == 1 and row[0][1] == 1.0 for row in taps.rows)


def _apply_in_order(plan: HostPlanner, held: HostTensor, taps: Mapping[int, Taps], out: HostTensor) -> None:
    """Map dimensions of what lies in another order than row-major, as the result does."""
    order = out.order
    ordered = {place: taps[dim] for place, dim in enumerate(order) if dim in taps}
    apply_taps(plan, held.permuted(order), ordered, out.permuted(order))


def _emit_weighted_sum(op: Op, plan: HostPlanner) -> None:
    """Add weighted terms up, as a vertex of these ops does."""
    held, out = plan.value(op.inputs[0], DType.FLOAT), plan.output(op.outputs[0], DType.FLOAT)
    count, width = held.shape
    weights = op.attrs.get("weights", (1.0,) * held.num_elements)
    assert isinstance(weights, tuple)
    starts = plan.constant(range(0, held.num_elements + 1, width), DType.LONG)
    sources = plan.constant(range(held.num_elements), DType.LONG)
    plan.step(WEIGHTED_TAPS, [out], [held, starts, sources, plan.constant(weights, DType.FLOAT)],
              ints=WeightedTapsInts(count, held.num_elements, 1), items=count, grain=row_grain(width))


def _taps_cycles(target: Target, work: Work) -> int:
    """A multiplication and an addition for each tap, a vector at a time."""
    vectors = ceil_div(work["elements"], target.num_workers * work["vector_width"])
    return 40 + target.num_workers * (40 + vectors * (4 + 3 * work["taps"]))


RESAMPLE = Codelet("popnn::Resample", _taps_cycles, 480, "estimate: a fused multiply-add and an address for each tap")


def lower_taps(taps_of: Callable[[Op], dict[int, Taps]]) -> Callable[[Op, Target], tuple[Vertices, ...]]:
    """Return the lowering of weighted sums: one compute set for each dimension that changes."""

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, sets, shape = op.outputs[0], [], list(op.inputs[0].shape)
        if result.num_elements == 0:
            return ()
        width = target.vector_width(result.dtype.device_bytes)
        changed = needed_maps(taps_of(op))
        held = operand_labels(op)[0]
        for dim, taps in changed.items():
            written = "out" if dim == list(changed)[-1] else f"along{dim}"
            step, held = Along(tuple(shape), dim, taps.rows, held, written), written
            shape[dim] = len(taps.rows)
            elements = prod(shape)
            mine = busiest_elements(target, elements, width, result.dtype.device_bytes)
            fixed = {"vector_width": width, "element_bytes": result.dtype.device_bytes, "taps": max(1, taps.width)}
            gathered = mine * max(1, taps.width) * result.dtype.device_bytes
            sets.append(Vertices(
                RESAMPLE, elements, _work_of(fixed), grain=width, gathered_bytes=gathered, fragments=taps.width + 1,
                temporary_bytes=gathered, tiling=mapped_along(step),
            ))
        return tuple(sets)

    return lower


def _work_of(fixed: dict[str, int]) -> Callable[[int], Work]:
    return lambda count: {"elements": count, **fixed}


# --------------------------------------------------------------------------- paddings that repeat
_PLACES = {"reflection": reflection_places, "replication": replication_places, "circular": circular_places}


def padded_places(op: Op, shape: Sequence[int]) -> dict[int, list[int]]:
    """Return the sources along each padded dimension of an operand of a shape."""
    widths, rank = op.integers("padding"), len(shape)
    places_of = next(places for name, places in _PLACES.items() if name in op.target)
    return {
        rank - 1 - position: places_of(shape[rank - 1 - position], widths[2 * position], widths[2 * position + 1])
        for position in range(len(widths) // 2)
    }


def _runs(places: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Cut a list of sources into ``(where, source, step, length)`` with steps of -1, 0 or 1."""
    runs: list[tuple[int, int, int, int]] = []
    at = 0
    while at < len(places):
        step = places[at + 1] - places[at] if at + 1 < len(places) else 1
        step = step if step in (-1, 0, 1) else 1
        end = at + 1
        while end < len(places) and places[end] - places[end - 1] == step:
            end += 1
        runs.append((at, places[at], step, end - at))
        at = end
    return runs


def _emit_padding(op: Op, plan: HostPlanner) -> None:
    held = plan.value(op.needed("self"), contiguous=False)
    take_places(plan, plan.output_as_held(op.outputs[0], held), held, padded_places(op, held.shape))


def take_places(
    plan: HostPlanner, out: HostTensor, held: HostTensor, chosen: Mapping[int, Sequence[int]],
) -> None:
    """Copy the elements at places along some dimensions, row by row in the order of the result.

    Args:
        plan: Receives the step.
        out: Of the type of the operand, written.
        held: Any strides.
        chosen: Of each of these dimensions of both, the places in the operand that the result has.
    """
    if out.num_elements == 0:
        return
    *outer, inner = out.order
    places = [place * held.strides[dim] for dim in outer for place in chosen.get(dim, range(held.shape[dim]))]
    runs = _runs(chosen.get(inner, range(held.shape[inner])))
    for _, source, step, length in runs:
        places += [length, source * held.strides[inner], step * held.strides[inner]]
    *sizes, columns = out.permuted(out.order).shape
    rows = prod(sizes)
    ints = PadRowsInts(held.dtype.host_bytes, columns, len(runs), len(sizes), tuple(sizes))
    plan.step(PAD_ROWS, [out], [held, plan.constant(places, DType.LONG)], ints=ints, items=rows,
              grain=row_grain(columns), writes=[Blocks.rows(rows, out)])


def taps_of_padding(op: Op) -> dict[int, Taps]:
    """Return the maps from gradients of what was padded to gradients of the operand."""
    shape = op.outputs[0].shape
    return {
        dim: transposed(Taps(shape[dim], tuple(((place, 1.0),) for place in places)))
        for dim, places in padded_places(op, shape).items()
    }


def _emit_padding_grad(op: Op, plan: HostPlanner) -> None:
    dy, out = plan.value(op.needed("grad_output"), DType.FLOAT), plan.output(op.outputs[0], DType.FLOAT)
    padded, rank = padded_places(op, out.shape), len(out.shape)
    depth, height, columns = (1, 1, *out.shape[rank - len(padded) :])[-3:]
    places, rows = list[int](), 1
    for dim, size in ((rank - 2, height), (rank - 3, depth)):  # the rows of a plane first: planes are so far apart
        sources = padded.get(dim, [0])
        back: list[list[int]] = [[] for _ in range(size)]
        for place, source in enumerate(sources):
            back[source].append(place * rows)
        places = [*itertools.accumulate(map(len, back), initial=0), *itertools.chain(*back), *places]
        rows *= len(sources)
    runs = sorted(_runs(padded[rank - 1]), key=lambda run: (run[2] != 1, -run[3]))
    for where, source, step, length in runs:
        places += [where, length, source, step]
    items = out.num_elements // max(1, columns)
    ints = FoldRowsInts(depth, height, columns, rows, dy.shape[-1], len(runs))
    plan.step(FOLD_ROWS, [out], [dy, plan.constant(places, DType.LONG)], ints=ints, items=items,
              grain=row_grain(dy.shape[-1]), writes=[Blocks.rows(items, out)])


# --------------------------------------------------------------------------- records
def _is_floating(op: Op) -> bool:
    return op.outputs[0].dtype.is_floating


def _serves_interpolation(op: Op) -> bool:
    """Eager mode weighs bytes in whole numbers, which goes generic; taking the nearest one is the same in float."""
    return _is_floating(op) or "nearest" in op.target


INTERPOLATIONS = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
)
"""Operators of aten, each with a ``_backward``."""
register(OpSpec(WEIGHTED_SUM, "weighted_sum", no_vertices, _emit_weighted_sum))
for _name in INTERPOLATIONS:
    for _target in (_name, f"{_name}_backward"):
        register(OpSpec(f"aten.{_target}.default", _target.lstrip("_"), lower_taps(taps_of), _emit_interpolation,
                        supports=_serves_interpolation))
for _name in ("reflection_pad", "replication_pad"):
    for _dims in (1, 2, 3):
        _target = f"{_name}{_dims}d"
        register(
            OpSpec(f"aten.{_target}.default", _target, copy_vertices(), _emit_padding),
            OpSpec(f"aten.{_target}_backward.default", f"{_target}_backward", lower_taps(taps_of_padding),
                   _emit_padding_grad, supports=_is_floating, shape_only=("self",)),
        )
register(
    OpSpec("ipu.circular_pad.default", "circular_pad", copy_vertices(), _emit_padding),
    OpSpec("ipu.circular_pad_backward.default", "circular_pad_backward", lower_taps(taps_of_padding),
           _emit_padding_grad, supports=_is_floating),
)
