"""The compute sets of a convolution and of its gradients, as they are planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from torchipu.device.codelets import CAST
from torchipu.device.convolutions.axes import input_axis, output_axis, plain_axis, swapped_axis, weight_axis
from torchipu.device.convolutions.busiest_tile import EXPANDED_CYCLES_PER_BYTE, REGROUP_FIXED_CYCLES, Plan
from torchipu.device.convolutions.plan import plan_convolution
from torchipu.device.convolutions.problem import Problem, Settings
from torchipu.device.convolutions.vertices import CODELETS
from torchipu.device.matrix_unit import AVAILABLE_MEMORY, INPUT_GROUP, REDUCE_PARTIALS, conv_units
from torchipu.device.tilings.cut import Cut
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.products import Describe, add_sums, multiply
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.codelet import Codelet, Product, Vertices
from torchipu.optable.volume import Volume

if TYPE_CHECKING:
    from torchipu.target import Target

OUTPUT, INPUT, WEIGHT = "output", "input", "weight"
REGROUP_CYCLES_PER_BYTE = 1.25
"""To lay out single halves in other groups of channels: ``1.25 bytes / min(8, size)`` of 2 bytes each, and as much
again, for a transposition has a copy before and behind; poplibs planner, ipu_hardware.md 3.1."""
TURN_CYCLES_PER_BYTE = 98 / 512
"""To transpose blocks of 16 x 16 halves, ``18 + 4 (12 + 4 x 2)`` cycles each (``ipu_hardware.md`` 2.5)."""


def _regroup_cycles(target: Target, work: Mapping[str, int]) -> int:
    return REGROUP_FIXED_CYCLES + int(
        REGROUP_CYCLES_PER_BYTE * work["bytes"] + EXPANDED_CYCLES_PER_BYTE * work["expanded_bytes"]
        + TURN_CYCLES_PER_BYTE * work["turned_bytes"]
    )


REGROUP = Codelet(
    "poplin::Regroup", _regroup_cycles, 240, "poplibs planner, estimator and log, ipu_hardware.md 2.5 and 3.1",
)


@dataclass(frozen=True, slots=True)
class Pass:
    """A convolution, or one of its gradients.

    Attributes:
        kind: ``output``, ``input`` or ``weight``: which tensor of the plain convolution, or its gradient, is computed.
        volume: Sizes of the plain convolution.
    """

    kind: str
    volume: Volume

    @property
    def product(self) -> Product:
        """The same as a product: of positions and summands that its vertices deal with."""
        v = self.volume
        if self.kind == OUTPUT:
            return Product(v.g, v.n * prod(v.out), v.summands, v.oc)
        if self.kind == INPUT:
            taps = prod(ceil_div(window, stride) for window, stride in zip(v.window, v.stride, strict=True))
            return Product(v.g, v.n * prod(v.size), v.oc * taps, v.ic)
        return Product(v.g, v.summands, v.n * prod(v.out), v.oc)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, and how its splits are those of the pass's product.

    Attributes:
        plan: The plan.
        cut: Which vertex takes what.
        slides: Whether it is an update that has the output's gradient as a window.
    """

    plan: Plan
    cut: Cut
    slides: bool = False


# --------------------------------------------------------------------------- plans
def planned(one: Pass, op: Op, target: Target, dtype: DType) -> Planned | None:
    """Return how a pass of an op is cut up; None where there is nothing to multiply."""
    product = one.product
    if 0 in (product.groups, product.positions, product.inputs, product.outputs):
        return None
    is_half = dtype is DType.HALF
    has_half_partials = op.attrs.get("partials") == "half" and is_half
    available = float(str(op.attrs.get("available_memory", AVAILABLE_MEMORY)))
    settings = Settings(
        is_half, conv_units(target, is_half=is_half, half_partials=has_half_partials), 2 if has_half_partials else 4,
        int(available * target.tile_memory_bytes),
    )
    return min(
        (Planned(plan, _cut(one, plan, is_turned=is_turned), problem.is_sliding_update)
         for problem, is_turned in _problems(one, settings) for plan in [plan_convolution(target, problem)]),
        key=lambda found: (found.plan.excess_bytes, found.plan.cycles),
    )


def _problems(one: Pass, settings: Settings) -> Iterator[tuple[Problem, bool]]:
    """Yield the ways to see a pass, and whether positions and outputs of the product have changed places there."""
    v = one.volume
    together = max(1, INPUT_GROUP // max(v.ic, v.oc))
    if one.kind == WEIGHT:
        product = one.product
        if v.g > 1 and settings.is_half:
            axes = weight_axis(v, 0), weight_axis(v, 1), weight_axis(v, 2)
            yield Problem(v.g, v.ic, axes, v.n, v.oc, settings, is_sliding_update=True), False
        for rows, columns in ((product.positions, product.outputs), (product.outputs, product.positions)):
            axes = plain_axis(1), plain_axis(1), plain_axis(rows)
            is_turned = rows != product.positions
            yield Problem(v.g, 1, axes, product.inputs, columns, settings, True, together), is_turned
        return
    make = output_axis if one.kind == OUTPUT else input_axis
    axes = make(v, 0), make(v, 1), make(v, 2)
    pair = (v.ic, v.oc) if one.kind == OUTPUT else (v.oc, v.ic)
    yield Problem(v.g, v.n, axes, *pair, settings, most_together=together), False
    if one.kind == INPUT and prod(v.out) < v.taps:
        axes = swapped_axis(v, 0), swapped_axis(v, 1), swapped_axis(v, 2)
        yield Problem(v.g, v.ic, axes, v.oc, v.n, settings), True


def _cut(one: Pass, plan: Plan, *, is_turned: bool) -> Cut:
    """Return which vertex takes what of a product.

    Positions are cut up in their order, sample by sample and row by row, whatever the shape of a tile's field is.
    """
    product = one.product
    groups, positions, outputs, inputs = plan.splits
    position_parts, output_parts = 1, plan.output_parts
    if is_turned:
        # What the plan has as outputs are positions: of the weights, or the samples of an image.
        positions, outputs = (outputs, positions) if one.kind == WEIGHT else (outputs * positions, 1)
        position_parts, output_parts = output_parts, 1
    sizes = product.groups, product.positions, product.outputs, product.inputs
    splits = (
        min(groups, product.groups), min(positions, product.positions), min(outputs, product.outputs),
        min(inputs, product.inputs),
    )
    shares = (
        ceil_div(ceil_div(sizes[0], plan.together), splits[0]) * plan.together, ceil_div(sizes[1], splits[1]),
        ceil_div(sizes[2], splits[2]), _panels(sizes[3], splits[3], plan.panel),
    )
    return Cut(sizes, splits, shares, (
        shares[0], ceil_div(shares[1], position_parts), ceil_div(shares[2], output_parts),
        _panels(shares[3], plan.input_parts, plan.panel),
    ))


def _panels(inputs: int, split: int, panel: int) -> int:
    """Return the summands of each of so many tiles or parts: whole panels."""
    return min(inputs, ceil_div(ceil_div(inputs, panel), split) * panel)


def summand_tiles(passes: Sequence[Pass], op: Op, target: Target) -> tuple[int, ...]:
    """Return how many tiles share the summands of each pass of an op on halves."""
    found = (planned(one, op, target, DType.HALF) for one in passes)
    return tuple(1 if one is None else one.cut.splits[3] for one in found)


# --------------------------------------------------------------------------- compute sets
def convolution_sets(
    one: Pass, op: Op, target: Target, dtype: DType, describe: Describe | None = None,
) -> tuple[Vertices, ...]:
    """Return the compute sets of a pass: operands in other groups of channels, vertices, sums of partials or a cast.

    Args:
        one: The pass.
        op: The op that it is of.
        target: The machine.
        dtype: Of the operands.
        describe: Tells which elements meet; None where vertices are not known one by one.
    """
    found = planned(one, op, target, dtype)
    if found is None:
        return ()
    plan, cut = found.plan, found.cut
    sizes = {**plan.sizes, "calls": 1}
    repeats = prod(cut.parts)
    vertices = cut.num_vertices
    # What is neither added up, nor rounded, nor taken in parts has no partials beside its results.
    is_at_once = plan.splits[3] == 1 and dtype is DType.FLOAT and repeats == 1
    partial_bytes = 0 if is_at_once else plan.partial_bytes
    sets = [*_regrouped(one, target, dtype, slides=found.slides), Vertices(
        CODELETS[plan.method], vertices, lambda count: sizes, gathered_bytes=plan.received_bytes,
        fragments=2 * plan.sizes["groups"], partial_bytes=partial_bytes,
        temporary_bytes=plan.expanded_bytes + plan.temporary_bytes - plan.partial_bytes + partial_bytes,
        max_tiles=vertices, repeats=repeats,
        tiling=None if describe is None else partial(multiply, describe, cut),
    )]
    split = plan.splits[3]
    if split > 1:
        share = ceil_div(plan.results, split)
        sets.append(Vertices(
            REDUCE_PARTIALS, vertices, lambda count: {"partials": split, "elements": share},
            gathered_bytes=share * (split - 1) * 4, fragments=split,
            temporary_bytes=share * split * 4 + plan.partial_bytes, partial_bytes=plan.partial_bytes,
            max_tiles=vertices, tiling=None if describe is None else partial(add_sums, describe, cut),
        ))
    elif dtype is DType.HALF:
        results = min(plan.results, cut.shares[0] * cut.shares[1] * cut.shares[2])  # those of padding are left out
        sets.append(Vertices(
            CAST, vertices, lambda count: {"elements": results, "vector_width": 4}, max_tiles=vertices,
            tiling=nothing_left,
        ))
    if one.kind == WEIGHT:
        sets.append(_regroup(target, turned_bytes=_weights(one.volume) * dtype.device_bytes))
    if describe is None:
        return tuple(replace(made, tiling=None) for made in sets)
    return tuple(sets)


def _regrouped(one: Pass, target: Target, dtype: DType, *, slides: bool) -> Iterator[Vertices]:
    """Yield the sets that lay operands out in other groups of channels.

    The input's gradient takes the weights with both kinds of channels swapped. The update of weights takes samples and
    places as input channels, which are channels everywhere else, and its result goes back to the layout of the weights.
    Where the output's gradient slides over the image, the tiles that receive them group their channels.
    """
    v, size = one.volume, dtype.device_bytes
    if one.kind == INPUT:
        yield _regroup(target, turned_bytes=_weights(v) * size)
    if one.kind == WEIGHT and not slides:
        expanded = v.n * v.g * v.summands * prod(v.out) if v.taps > 1 else 0
        image = v.n * v.g * v.ic * prod(v.size)
        yield _regroup(target, num_bytes=image * size, expanded_bytes=expanded * size)
        yield _regroup(target)


def _weights(v: Volume) -> int:
    return v.g * v.oc * v.summands


def _regroup(target: Target, num_bytes: int = 0, expanded_bytes: int = 0, turned_bytes: int = 0) -> Vertices:
    """Return a set that lays out an operand that is spread over all tiles.

    Args:
        target: The machine.
        num_bytes: What is laid out element by element.
        expanded_bytes: What is made of it, where windows become channels.
        turned_bytes: What is transposed in blocks.
    """
    bytes_by_name = {"bytes": num_bytes, "expanded_bytes": expanded_bytes, "turned_bytes": turned_bytes}
    work = {name: ceil_div(count, target.num_tiles) for name, count in bytes_by_name.items()}
    mine = sum(work.values())
    tiles = target.num_tiles
    return Vertices(
        REGROUP, tiles, lambda count: work, gathered_bytes=mine, temporary_bytes=mine, max_tiles=tiles,
        tiling=nothing_left,
    )
