"""What the busiest tile has to do in plans of a convolution: cycles and memory, of many plans at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from torchipu.device.codelets import ARRANGED_CYCLES_PER_BYTE
from torchipu.device.convolutions.problem import Problem
from torchipu.device.convolutions.vertices import (
    SLIC_BUFFER_BYTES,
    SLIC_CHANNELS,
    SLIC_TAPS,
    UNITS_OF_ALL_CHAINS,
    multiply_cycles,
    pointwise_cycles,
    slic_cycles,
    vertical_cycles,
    window_cycles,
)
from torchipu.device.matmul_plan import TILES_OF_A_BUS
from torchipu.device.matrix_unit import INPUT_GROUP
from torchipu.ir.arithmetic import ceil_div

if TYPE_CHECKING:
    from torchipu.target import Target

GATHERED_CYCLES_PER_BYTE = 1.25 / 8  # to lay out vectors of 8 bytes; poplibs planner, ipu_hardware.md 3.1
EXPANDED_CYCLES_PER_BYTE = 1.25 / 4  # the same of pieces of 4 bytes
FORMULAS = {
    "pointwise": pointwise_cycles, "window": window_cycles, "slic": slic_cycles, "multiply": multiply_cycles,
    "vertical": vertical_cycles,
}
REGROUP_FIXED_CYCLES = 587  # of a strided copy; poplibs log, ipu_hardware.md 2.5
COPY_CYCLES_PER_BYTE = {8: ARRANGED_CYCLES_PER_BYTE, 4: 3.125, 2: 5.15}  # of one in pieces of so many bytes; the same


@dataclass(frozen=True, slots=True)
class Plan:
    """How a convolution is cut up.

    Attributes:
        method: ``pointwise``, ``window``, ``slic``, ``vertical`` or ``multiply``; see
            `torchipu.device.convolutions.vertices`.
        together: Groups that are computed as one, with zeros in the weights between them, or side by side.
        splits: Tiles that share groups, positions, outputs and summands: inputs, and elements of the window.
        panel: Summands that stay together on a tile.
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
    panel: int
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
class Way:
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


def channel_groups(problem: Problem, way: Way) -> tuple[int, int]:
    """Return the panels of input channels and of output channels."""
    if way.method == "vertical":
        return problem.inputs, problem.outputs
    inputs, outputs = problem.inputs, problem.outputs * way.together
    if not problem.is_update:  # there it is rows and columns that are those of several groups
        inputs *= way.together
    if way.method == "multiply":
        return inputs, outputs
    for axis, is_folded in zip(problem.axes, way.folded, strict=True):
        inputs *= axis.taps if is_folded else 1
    return ceil_div(inputs, way.input_group), ceil_div(outputs, _panel_outputs(problem, way))


def _panel_outputs(problem: Problem, way: Way) -> int:
    """Return how many output channels a vertex takes at a time."""
    return {"multiply": 1, "vertical": 1, "slic": SLIC_CHANNELS}.get(way.method, problem.settings.unit)


class BusiestTile:
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
        self, target: Target, problem: Problem, way: Way, fields: dict[str, Any], channels: dict[str, Any], *,
        is_spread: bool = False,
    ) -> None:
        self.target, self.problem, self.way, self.channels = target, problem, way, channels
        self.is_spread = is_spread
        folded = np.array([False, *way.folded])
        open_ = ~folded
        self.field_split, self.tap_split = fields["split"].prod(axis=1), fields["tap_split"].prod(axis=1)
        self.input_split = channels["input_split"] * self.tap_split
        self.lanes = way.together if way.method == "vertical" else 1
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
        if way.method == "vertical":
            windows = batch * fields["met"][:, 1:3].prod(axis=1) * fields["outputs"][:, 3]
            self.sizes |= {"rows": windows, "lanes": way.together}
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
        groups = self.sizes["groups"] * self.lanes
        return self.held * self.sizes["inputs"] * groups * self.problem.settings.element_bytes

    @property
    def weight_bytes(self) -> Any:
        sizes, groups = self.sizes, self.sizes["groups"] * self.lanes
        return self.taps * sizes["inputs"] * sizes["outputs"] * groups * self.problem.settings.element_bytes

    @property
    def results(self) -> Any:
        """Of a tile, in one part."""
        return self.positions * self.sizes["outputs"] * self.sizes["groups"] * self.lanes

    def received_bytes(self) -> Any:
        """What a tile waits for: not what is its own, and half of what its neighbour receives too."""
        if self.problem.is_sliding_update:  # both lie as the forward and the gradient of the input have them
            return self.input_bytes + self.weight_bytes
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
        split, partials = self.input_split, self.results * width
        if self.way.method == "slic":
            partials = partials + self.positions * SLIC_CHANNELS * width + SLIC_BUFFER_BYTES
        if self.way.method == "vertical":  # workers have some each, which are added up
            partials = partials + self.positions * self.lanes * width * self.target.num_workers
        return np.where(split > 1, partials * self.way.output_parts, partials)

    def compute(self) -> Any:
        return FORMULAS[self.way.method](self.target, self.sizes)

    def laid_out(self) -> Any:
        """Cycles to lay out operands anew on the tile."""
        if self.problem.is_sliding_update:
            return (self.input_bytes + self.weight_bytes) * GATHERED_CYCLES_PER_BYTE
        if self.problem.is_update:
            return self.input_bytes * GATHERED_CYCLES_PER_BYTE
        if any(self.way.folded):  # before the image is cut up: what is made moves once more
            per_byte = EXPANDED_CYCLES_PER_BYTE + 1 / self.target.exchange_bytes_per_cycle
            return self.input_bytes * per_byte + self.target.sync_cycles
        if self.is_spread:
            return self.input_bytes * GATHERED_CYCLES_PER_BYTE + REGROUP_FIXED_CYCLES
        return 0.0

    def beside(self) -> Any:
        """Cycles of copies beyond what the planner counts of them; no plan is chosen by them.

        They explain what gradients of depthwise convolutions take on the IPU Model beyond their vertices.
        """
        if self.problem.is_sliding_update:  # one copy for each operand, of a group's lanes at a time
            lanes = COPY_CYCLES_PER_BYTE[8] - GATHERED_CYCLES_PER_BYTE
            return 2 * REGROUP_FIXED_CYCLES + (self.input_bytes + self.weight_bytes) * lanes
        return self.set_among_zeros()

    def set_among_zeros(self) -> Any:
        """Cycles to set weights of several groups among zeros, a group's inputs at a time."""
        if self.way.together == 1 or self.problem.is_update or self.way.method in ("slic", "vertical"):
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
        channels = channel_groups(problem, way)[0] * way.input_group * (problem.groups // way.together)
        return ceil_div(problem.batch * places * channels * problem.settings.element_bytes, self.target.num_tiles)

    def reduced(self) -> Any:
        """Cycles to add up partials of several tiles, of all parts."""
        split, workers = self.input_split, self.target.num_workers
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
            is_of_each = np.shape(values) == self.positions.shape
            return ceil(values[number] if is_of_each else np.broadcast_to(values, self.positions.shape)[number])

        by = {name: of(values) for name, values in self.channels.items()}
        way = self.way
        sizes = {name: of(values) for name, values in self.sizes.items()} | {
            "laid": of(self.laid_out() + self.beside()),
        }
        return Plan(
            way.method, way.together,
            (by["group_split"], of(self.field_split), by["output_split"], of(self.input_split)),
            1 if of(self.tap_split) > 1 or way.method == "vertical" else INPUT_GROUP,
            way.output_parts, way.input_parts, sizes, of(self.received_bytes()), of(self.temporary_bytes()),
            of(self.partial_bytes()), self.expanded_bytes(), of(self.results) * way.output_parts, excess, cycles,
        )
