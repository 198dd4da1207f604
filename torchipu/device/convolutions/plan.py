"""The planner of convolutions: how tiles share one, by which vertices, and in how many parts if memory is short."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from torchipu.device.codelets import ARRANGED_CYCLES_PER_BYTE
from torchipu.device.convolutions.axes import Share, shares_of, split_counts
from torchipu.device.convolutions.problem import Problem
from torchipu.device.convolutions.vertices import (
    SLIC_BUFFER_BYTES,
    SLIC_CHANNELS,
    SLIC_TAPS,
    UNITS_OF_ALL_CHAINS,
    WEIGHTS_OF_A_UNIT,
    multiply_cycles,
    pointwise_cycles,
    slic_cycles,
    window_cycles,
)
from torchipu.device.matmul_plan import TILES_OF_A_BUS
from torchipu.device.matrix_unit import INPUT_GROUP
from torchipu.ir.arithmetic import ceil_div

if TYPE_CHECKING:
    from torchipu.target import Target

PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # serial splits that are tried
GATHERED_CYCLES_PER_BYTE = 1.25 / 8  # to lay out vectors of 8 bytes; poplibs planner, ipu_hardware.md 3.1
EXPANDED_CYCLES_PER_BYTE = 1.25 / 4  # the same of pieces of 4 bytes
FORMULAS = {
    "pointwise": pointwise_cycles, "window": window_cycles, "slic": slic_cycles, "multiply": multiply_cycles,
}
REGROUP_FIXED_CYCLES = 587  # of a strided copy; poplibs log, ipu_hardware.md 2.5
COPY_CYCLES_PER_BYTE = {8: ARRANGED_CYCLES_PER_BYTE, 4: 3.125, 2: 5.15}  # of one in pieces of so many bytes; the same
LEAST_TILES = 3  # plans that use less than this part of the most tiles that a plan uses are not looked at


@dataclass(frozen=True, slots=True)
class Plan:
    """How a convolution is cut up.

    Attributes:
        method: ``pointwise``, ``window``, ``slic`` or ``multiply``; see `torchipu.device.convolutions.vertices`.
        together: Groups that are computed as one, with zeros in the weights between them.
        splits: Tiles that share groups, positions, outputs and inputs.
        output_parts: In how many parts, one after another, a tile takes its outputs.
        input_parts: The same of its inputs.
        sizes: Of a tile in one part, for the formula of the method.
        received_bytes: What the busiest tile waits for in one part; see `TILES_OF_A_BUS`.
        temporary_bytes: Of one part.
        partial_bytes: Those of them that partials take.
        expanded_bytes: Of the image on a tile where windows are laid out as channels before it is cut up: it is held
            beside what tiles receive of it, and the budget leaves it out.
        results: Of a tile in all.
        excess_bytes: By how much its temporary values exceed what they may use.
        cycles: Of all parts.
    """

    method: str
    together: int
    splits: tuple[int, int, int, int]
    output_parts: int
    input_parts: int
    sizes: Mapping[str, int]
    received_bytes: int
    temporary_bytes: int
    partial_bytes: int
    expanded_bytes: int
    results: int
    excess_bytes: int
    cycles: int


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to put a convolution to vertices.

    Attributes:
        method: As of `Plan`.
        together: Groups computed as one.
        input_group: Input channels of a panel.
        folded: Dimensions whose window is laid out as input channels before.
        output_parts: Serial parts of the outputs.
        input_parts: Serial parts of the inputs.
    """

    method: str
    together: int = 1
    input_group: int = INPUT_GROUP
    folded: tuple[bool, bool, bool] = (False, False, False)
    output_parts: int = 1
    input_parts: int = 1


@lru_cache(maxsize=2048)
def plan_convolution(target: Target, problem: Problem) -> Plan:
    """Choose the plan with the fewest cycles among those whose temporary values fit.

    If none fits at once, tiles take channels in parts, one after another. If none fits then either, PopLibs' planner
    tries again with another aim, the least memory, and without the padding of channels that the matrix unit needs: the
    cliffs of ``availableMemoryProportion``.
    """
    plan = _best(target, problem, _ways(problem))
    if plan is not None and not plan.excess_bytes:
        return plan
    serial = [pair for pair in product(PARTS, PARTS) if pair != (1, 1) and pair[0] * pair[1] <= PARTS[-1]]
    for parts in sorted(serial, key=lambda pair: (pair[0] * pair[1], pair)):
        found = _best(target, problem, _ways(problem, *parts))
        if found is not None and not found.excess_bytes:
            return found
    least = _best(target, problem, (_Way("multiply"), *_ways(problem)), for_memory=True)
    assert least is not None
    return least


def _ways(problem: Problem, output_parts: int = 1, input_parts: int = 1) -> Iterator[_Way]:
    """Yield the ways to use the matrix unit."""
    together = [1]
    while problem.groups % (2 * together[-1]) == 0 and 2 * together[-1] <= problem.most_together:
        together.append(2 * together[-1])
    for some in together:
        if problem.is_pointwise:
            yield _Way("pointwise", some, output_parts=output_parts, input_parts=input_parts)
            continue
        unfolded = (False, False, False)
        # What the units hold at once. Products of floats run as if it were twice that, on silicon too.
        widest = WEIGHTS_OF_A_UNIT[problem.settings.is_half]
        ways = [("window", group, unfolded) for group in ((16, 8, 4) if problem.settings.is_half else (widest,))]
        if problem.axes[2].taps > 1 and any(axis.taps > 1 for axis in problem.axes[:2]):
            ways.append(("window", widest, (False, False, True)))
        if _is_slim(problem, some):
            yield _Way("slic", some, SLIC_CHANNELS, unfolded, output_parts, input_parts)
        for method, group, folded in [*ways, ("pointwise", INPUT_GROUP, (True, True, True))]:
            yield _Way(method, some, group, folded, output_parts, input_parts)


def _is_slim(problem: Problem, together: int) -> bool:
    """Whether the vertices for windows of few channels are taken: of groups, of halves that windows meet side by side.

    Single groups of four channels are left to the other vertices, as silicon shows (a 3x3 filter on Mk1).
    """
    last = problem.axes[2]
    return (
        problem.settings.is_half and problem.groups > 1 and abs(last.tap_step) == 1 and last.step <= 2
        and max(problem.inputs, problem.outputs) * together <= SLIC_CHANNELS
    )


def _best(target: Target, problem: Problem, ways: Any, *, for_memory: bool = False) -> Plan | None:
    plans = [plan for way in ways if (plan := _planned(target, problem, way, for_memory)) is not None]
    if for_memory:
        return min(plans, key=lambda plan: (plan.temporary_bytes, plan.cycles), default=None)
    return min(plans, key=lambda plan: (plan.excess_bytes, plan.cycles), default=None)


def _planned(target: Target, problem: Problem, way: _Way, for_memory: bool) -> Plan | None:
    """Return the best splits for a way, all of which are looked at side by side."""
    is_spread = way.method == "slic" and problem.has_zeros
    problem = problem.spread if is_spread else problem
    fields, channels = _splits(target, problem, way)
    if channels is None:
        return None
    at = _Tiles(target, problem, way, fields, channels, is_spread=is_spread)
    with np.errstate(over="ignore"):
        cycles, needed = at.cycles(), at.temporary_bytes()
    excess = np.maximum(needed - problem.settings.budget_bytes, 0)
    order = (cycles, needed) if for_memory else (cycles, excess)
    best = int(np.lexsort(order)[0])
    return at.plan(best, int(np.ceil(cycles[best])), int(excess[best]))


def _splits(target: Target, problem: Problem, way: _Way) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return pairs of splits of the image and of the channels that no more tiles than there are can share."""
    tiles = target.num_tiles
    batches = [Share(split, *(ceil_div(problem.batch, split),) * 3, 1) for split in split_counts(problem.batch, tiles)]
    image = [
        shares for shares in product(batches, *(shares_of(axis, tiles) for axis in problem.axes))
        if shares[0].split * shares[1].split * shares[2].split * shares[3].split <= tiles
    ]
    inputs, outputs = _channel_groups(problem, way)
    # Serial parts are cut before windows are laid out as channels.
    unfolded = ceil_div(problem.inputs * way.together, way.input_group)
    if min(inputs, unfolded) < way.input_parts or outputs < way.output_parts:
        return {}, None
    groups = problem.groups // way.together
    # What is computed as one group stays on a tile, but for its summands.
    most = tiles if way.together == 1 else 1
    split = [
        (a, b, c) for a, b, c in product(
            split_counts(groups, tiles), split_counts(ceil_div(outputs, way.output_parts), most),
            split_counts(ceil_div(inputs, way.input_parts), tiles),
        ) if a * b * c <= tiles
    ]
    first = np.array([[one.split for one in shares] for shares in image]).prod(axis=1)
    second = np.array(split).prod(axis=1)
    used = first[:, None] * second[None, :]
    fits = used <= tiles
    fits &= used * LEAST_TILES >= used[fits].max()
    left, right = np.nonzero(fits)
    names = ("split", "outputs", "met", "read", "taps")
    table = np.array([[[getattr(one, name) for name in names] for one in shares] for shares in image], np.float64)[left]
    fields = {name: table[:, :, number] for number, name in enumerate(names)}
    by = np.array(split, np.float64)[right]
    return fields, {
        "group_split": by[:, 0], "output_split": by[:, 1], "input_split": by[:, 2],
        "groups": np.ceil(groups / by[:, 0]), "output_groups": np.ceil(np.ceil(outputs / way.output_parts) / by[:, 1]),
        "input_groups": np.ceil(np.ceil(inputs / way.input_parts) / by[:, 2]),
    }


def _channel_groups(problem: Problem, way: _Way) -> tuple[int, int]:
    """Return the panels of input channels and of output channels."""
    inputs, outputs = problem.inputs, problem.outputs * way.together
    if not problem.is_update:  # there it is rows and columns that are those of several groups
        inputs *= way.together
    if way.method == "multiply":
        return inputs, outputs
    for axis, is_folded in zip(problem.axes, way.folded, strict=True):
        inputs *= axis.taps if is_folded else 1
    return ceil_div(inputs, way.input_group), ceil_div(outputs, _panel_outputs(problem, way))


def _panel_outputs(problem: Problem, way: _Way) -> int:
    """Return how many output channels a vertex takes at a time."""
    return {"multiply": 1, "slic": SLIC_CHANNELS}.get(way.method, problem.settings.unit)


class _Tiles:
    """What the busiest tile has to do, for many splits at a time.

    Args:
        target: The machine.
        problem: What is computed.
        way: By which vertices.
        fields: Shares of batch and dimensions: ``[plans, 4]`` by name.
        channels: Shares of groups and channels: ``[plans]`` by name.
        is_spread: Whether the zeros between the places of the input have to be written out before.
    """

    def __init__(
        self, target: Target, problem: Problem, way: _Way, fields: dict[str, Any], channels: dict[str, Any], *,
        is_spread: bool = False,
    ) -> None:
        self.target, self.problem, self.way, self.channels = target, problem, way, channels
        self.is_spread = is_spread
        folded = np.array([False, *way.folded])
        open_ = ~folded
        self.field_split = fields["split"].prod(axis=1)
        if problem.is_update:
            fields = {name: values.copy() for name, values in fields.items()}
            for name in ("outputs", "met", "read"):
                fields[name][:, 3] *= way.together
        self.positions = fields["outputs"].prod(axis=1)
        batch = fields["outputs"][:, 0]
        self.read = fields["read"].prod(axis=1)
        self.held = np.where(folded, fields["outputs"], fields["read"]).prod(axis=1)
        self.met = np.where(folded, fields["outputs"], fields["met"]).prod(axis=1)
        taps = np.where(folded, 1, fields["taps"])
        self.taps = taps.prod(axis=1)
        self.tap_rows = taps[:, :3].prod(axis=1)
        rows = np.where(folded, fields["outputs"], fields["met"])[:, 1:3].prod(axis=1)
        self.pieces = batch * rows * taps[:, 3] if open_[3] else batch * rows
        unit = _panel_outputs(problem, way)
        group = 1 if way.method == "multiply" else way.input_group
        self.sizes = {
            "positions": self.positions, "met": self.met, "pieces": self.pieces, "taps": self.taps,
            "tap_rows": self.tap_rows, "groups": channels["groups"], "input_groups": channels["input_groups"],
            "output_groups": channels["output_groups"], "input_group": group, "output_group": unit,
            "is_half": int(problem.settings.is_half), "partial_bytes": problem.settings.partial_bytes,
            "inputs": channels["input_groups"] * group, "outputs": channels["output_groups"] * unit,
        }
        if way.method == "slic":
            last = problem.axes[2]
            self.sizes |= {
                "rows": fields["outputs"][:, :3].prod(axis=1), "pieces_of_rows": ceil_div(last.taps, SLIC_TAPS),
                "step": last.step, "together": way.together,
                "passes": 1 if problem.settings.unit >= UNITS_OF_ALL_CHAINS else 2,
            }

    @property
    def parts(self) -> int:
        return self.way.output_parts * self.way.input_parts

    @property
    def input_bytes(self) -> Any:
        return self.held * self.sizes["inputs"] * self.sizes["groups"] * self.problem.settings.element_bytes

    @property
    def weight_bytes(self) -> Any:
        sizes = self.sizes
        return self.taps * sizes["inputs"] * sizes["outputs"] * sizes["groups"] * self.problem.settings.element_bytes

    @property
    def results(self) -> Any:
        """Of a tile, in one part."""
        return self.positions * self.sizes["outputs"] * self.sizes["groups"]

    def received_bytes(self) -> Any:
        """What a tile waits for: not what is its own, and half of what its neighbour receives too."""
        split = self.channels["output_split"]
        bus = np.where(split % TILES_OF_A_BUS == 0, TILES_OF_A_BUS, 1)
        inputs = self.input_bytes * (1 - 1 / split) / bus
        return inputs + self.weight_bytes * (1 - 1 / self.field_split)

    def temporary_bytes(self) -> Any:
        """Of operands and partials; a part that is one of several keeps the partials of the others."""
        return self.input_bytes + self.weight_bytes + self.partial_bytes()

    def partial_bytes(self) -> Any:
        """Of partials. Where several tiles have some of a result, those of all parts wait until they are added up."""
        width = self.problem.settings.partial_bytes
        split, partials = self.channels["input_split"], self.results * width
        if self.way.method == "slic":
            partials = partials + self.positions * SLIC_CHANNELS * width + SLIC_BUFFER_BYTES
        return np.where(split > 1, partials * self.way.output_parts, partials)

    def compute(self) -> Any:
        return FORMULAS[self.way.method](self.target, self.sizes)

    def laid_out(self) -> Any:
        """Cycles to lay out operands anew on the tile."""
        if self.problem.is_update:
            return self.input_bytes * GATHERED_CYCLES_PER_BYTE
        if any(self.way.folded):  # before the image is cut up: what is made moves once more
            per_byte = EXPANDED_CYCLES_PER_BYTE + 1 / self.target.exchange_bytes_per_cycle
            return self.input_bytes * per_byte + self.target.sync_cycles
        if self.is_spread:
            return self.input_bytes * GATHERED_CYCLES_PER_BYTE
        return 0.0

    def set_among_zeros(self) -> Any:
        """Cycles to set weights of several groups among zeros, a group's inputs at a time; no plan is chosen by them.

        They explain what gradients of strided depthwise convolutions take on the IPU Model beyond their vertices.
        """
        if self.way.together == 1 or self.problem.is_update or self.way.method == "slic":
            return 0.0
        piece = self.problem.inputs * self.problem.settings.element_bytes
        per_byte = next(cycles for size, cycles in COPY_CYCLES_PER_BYTE.items() if piece % size == 0)
        return REGROUP_FIXED_CYCLES + self.weight_bytes * per_byte

    def expanded_bytes(self) -> int:
        """Of the image with windows as channels, spread over all tiles; poplibs planner, ipu_hardware.md 3.1."""
        problem, way = self.problem, self.way
        if not any(way.folded):
            return 0
        image = zip(problem.axes, way.folded, strict=True)
        places = prod(axis.outputs if is_folded else axis.inputs for axis, is_folded in image)
        channels = _channel_groups(problem, way)[0] * way.input_group * (problem.groups // way.together)
        return ceil_div(problem.batch * places * channels * problem.settings.element_bytes, self.target.num_tiles)

    def reduced(self) -> Any:
        """Cycles to add up partials of several tiles, of all parts."""
        split, workers = self.channels["input_split"], self.target.num_workers
        share = np.ceil(self.results * self.way.output_parts / split)
        add = 33 + workers * (20 + (2 * split + 8) * np.ceil(share / (4 * workers)))
        fetch = share * (split - 1) * self.problem.settings.partial_bytes / self.target.exchange_bytes_per_cycle
        return np.where(split > 1, add + fetch + self.target.sync_cycles, 0.0)

    def cycles(self) -> Any:
        exchange = self.received_bytes() / self.target.exchange_bytes_per_cycle
        return self.parts * (self.compute() + exchange + self.laid_out() + self.target.sync_cycles) + self.reduced()

    def plan(self, number: int, cycles: int, excess: int) -> Plan:
        """Return one of the plans."""
        def of(values: Any) -> int:
            return int(np.ceil(np.broadcast_to(values, self.positions.shape)[number]))

        by = {name: of(values) for name, values in self.channels.items()}
        way = self.way
        sizes = {name: of(values) for name, values in self.sizes.items()} | {
            "laid": of(self.laid_out() + self.set_among_zeros()),
        }
        return Plan(
            way.method, way.together, (by["group_split"], of(self.field_split), by["output_split"], by["input_split"]),
            way.output_parts, way.input_parts, sizes, of(self.received_bytes()), of(self.temporary_bytes()),
            of(self.partial_bytes()), self.expanded_bytes(), of(self.results) * way.output_parts, excess, cycles,
        )
