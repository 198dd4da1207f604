"""A layer that is trained on one sample: its three products without the matrix unit, where PopLibs takes them so.

The matrix unit works on groups of channels, of which one row fills one. PopLibs plans the passes of a layer together,
and has vertices without groups: a sum of products for each result of the forward and the backward, and an outer product
for the update. Tiles have the same share of the weight in all three, so that nothing of it is exchanged: for the
backward a tile transposes its share, and for the update what it has made, as one matrix.

Source: the planner and the estimators of PopLibs, ``ipu_hardware.md`` 2.2, 2.5 and 3.1. That no tile is filled up to
interleaved memory, which the matrix unit needs, shows which of the published rows were planned so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from torchipu.device.matmul_plan import MatmulPlan, plan_matmul, splits_of
from torchipu.device.matrix_unit import reduction_cycles
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.region import Numbers
from torchipu.optable.codelet import Codelet

if TYPE_CHECKING:
    from torchipu.target import Target

PARTIAL_BYTES = 4
SUPERVISOR_CYCLES = 50  # estimate: as of the matrix unit's vertex; ipu_hardware.md 2.2
WORKER_CYCLES, ROW_CYCLES, POSITION_CYCLES, DOT_CYCLES = 16, 19, 7, 8  # horizontal MAC, ipu_hardware.md 2.2
ZERO_CYCLES, ZERO_BYTES = 30, 8  # of partials, 2 floats a cycle; the same
OUTER_CYCLES, GROUP_CYCLES, ELEMENT_CYCLES = 25, {True: 10, False: 11}, 6  # outer product; the same
OUTER_CHANNELS = {True: 12, False: 6}  # that these cycles include
GRAIN = 4  # rows and columns that the fast transpose of halves takes at a time; ipu_hardware.md 2.5


def dot_cycles(target: Target, results: Numbers, inputs: Numbers, *, is_half: bool) -> Numbers:
    """Cycles of the vertex that adds up products of vectors along the inputs, an element each.

    Args:
        target: The machine.
        results: Of a tile, shared out to workers.
        inputs: Summands of each.
        is_half: Whether operands are half.
    """
    vector = target.vector_width(2 if is_half else 4)
    each = POSITION_CYCLES + DOT_CYCLES + -(-inputs // vector)
    zero = SUPERVISOR_CYCLES + ZERO_CYCLES + results * PARTIAL_BYTES // ZERO_BYTES
    return zero + target.num_workers * (WORKER_CYCLES + ROW_CYCLES + -(-results // target.num_workers) * each)


def outer_cycles(target: Target, rows: Numbers, columns: Numbers, *, is_half: bool) -> Numbers:
    """Cycles of the vertex of outer products, an element each.

    Args:
        target: The machine.
        rows: Of the matrix on a tile, shared out to workers.
        columns: Of it.
        is_half: Whether it is half.
    """
    vector = target.vector_width(2 if is_half else 4)
    further = np.maximum(0, columns - OUTER_CHANNELS[is_half])
    row = ELEMENT_CYCLES + -(-further // vector)
    return target.num_workers * (OUTER_CYCLES + GROUP_CYCLES[is_half] + -(-rows // target.num_workers) * row)


def transpose_cycles(target: Target, rows: int, columns: int, *, is_half: bool) -> int:
    """Cycles to transpose one matrix, which one worker does.

    Halves go in grains of 4 x 4; floats, of which the libraries of the published rows have no such vertex, go one by
    one.

    Args:
        target: The machine.
        rows: Of the matrix.
        columns: Of it.
        is_half: Whether its elements are half.
    """
    if is_half and rows % GRAIN == columns % GRAIN == 0:
        worker = 29 + 18 + rows // GRAIN * (12 + 4 * max(0, columns // GRAIN - 2))
    else:
        first, element = (15, 2.5) if is_half else (13, 2)
        worker = first + 8 + int(columns * (5 + element * rows))
    return 7 + target.num_workers * worker


def _dot(target: Target, work: Mapping[str, int]) -> int:
    return int(dot_cycles(
        target, np.array(work["outputs"]), np.array(work["inputs"]), is_half=bool(work["is_half"]),
    ))


def _outer(target: Target, work: Mapping[str, int]) -> int:
    return int(outer_cycles(
        target, np.array(work["outputs"]), np.array(work["positions"]), is_half=bool(work["is_half"]),
    ))


def _transposed(target: Target, work: Mapping[str, int]) -> int:
    return transpose_cycles(target, work["rows"], work["columns"], is_half=bool(work["is_half"]))


DOT = Codelet("poplin::ConvPartialHorizontalMac", _dot, 900, "poplibs estimator, ipu_hardware.md 2.2")
OUTER = Codelet("poplin::OuterProduct", _outer, 380, "poplibs estimator, ipu_hardware.md 2.2")
TRANSPOSE_SHARE = Codelet("poplin::Transpose2d", _transposed, 520, "poplibs estimator, ipu_hardware.md 2.5")


@dataclass(frozen=True, slots=True)
class RowPlan:
    """How tiles share the weight of a layer that is trained on one sample.

    Attributes:
        input_split: Tiles that share its inputs.
        output_split: Tiles that share its outputs.
        inputs: Of a tile.
        outputs: Of a tile.
        cycles: Of all three passes, without transposes.
    """

    input_split: int
    output_split: int
    inputs: int
    outputs: int
    cycles: int

    def forward(self, *, is_half: bool) -> MatmulPlan:
        """Return the plan of the product of the sample."""
        return _product(self, self.inputs, self.outputs, self.input_split, self.output_split, is_half)

    def backward(self, *, is_half: bool) -> MatmulPlan:
        """Return the plan of the product of the gradient."""
        return _product(self, self.outputs, self.inputs, self.output_split, self.input_split, is_half)

    def update(self, *, is_half: bool) -> MatmulPlan:
        """Return the plan of the outer product, of which inputs are the rows."""
        rows, columns, vectors = self.inputs, self.outputs, (self.inputs + self.outputs) * (2 if is_half else 4)
        return MatmulPlan(
            self.input_split, self.output_split, 1, rows, 1, columns, 1, 1, (rows, columns, 1), False, rows * columns,
            vectors, vectors, 0, 0, 0, 1, 0, self.cycles, "outer",
        )

    @property
    def turned(self) -> RowPlan:
        """The same with inputs and outputs exchanged: the weight's transpose."""
        return RowPlan(self.output_split, self.input_split, self.outputs, self.inputs, self.cycles)


def _product(plan: RowPlan, inputs: int, results: int, input_split: int, split: int, is_half: bool) -> MatmulPlan:
    received, sums = inputs * (2 if is_half else 4), results * PARTIAL_BYTES
    return MatmulPlan(
        1, split, input_split, 1, inputs, results, 1, 1, (1, results, inputs), False, results, received,
        received + 2 * sums, 0, 0, 0, 1, 0, plan.cycles, "dot",
    )


@lru_cache(maxsize=1024)
def plan_of_layer(
    target: Target, inputs: int, outputs: int, *, is_half: bool, output_group: int, available_memory: float,
) -> RowPlan | None:
    """Return how tiles share the weight of a layer that is trained on one sample; None where the matrix unit is faster.

    Halves are sent in words and transposed in grains: channels that do not fill these would be padded, as they are for
    the matrix unit, and are left to it.

    Args:
        target: The machine.
        inputs: Of the layer.
        outputs: Of the layer; exchanged with the inputs the plan is that of the weight's transpose.
        is_half: Whether operands are half.
        output_group: Output channels of a panel of the matrix unit; see `conv_units`.
        available_memory: As of `plan_matmul`.
    """
    if is_half and (inputs % GRAIN or outputs % GRAIN):
        return None
    if inputs < outputs:
        turned = plan_of_layer(
            target, outputs, inputs, is_half=is_half, output_group=output_group, available_memory=available_memory,
        )
        return None if turned is None else turned.turned
    plan = _best(target, inputs, outputs, is_half=is_half)
    passes = (1, inputs, outputs), (1, outputs, inputs), (inputs, 1, outputs)
    with_unit = sum(
        plan_matmul(target, 1, *sizes, is_half, output_group, available_memory).cycles for sizes in passes
    )
    return plan if plan.cycles < with_unit else None


def _best(target: Target, inputs: int, outputs: int, *, is_half: bool) -> RowPlan:
    grain = GRAIN if is_half else 1
    sides = [splits_of(ceil_div(size, grain), target.num_tiles) for size in (inputs, outputs)]
    input_split, output_split = (grid.reshape(-1) for grid in np.meshgrid(*sides, indexing="ij"))
    within = input_split * output_split <= target.num_tiles
    input_split, output_split = input_split[within], output_split[within]
    ins, outs = (
        np.minimum(size, -(-ceil_div(size, grain) // split) * grain)
        for size, split in ((inputs, input_split), (outputs, output_split))
    )
    cycles = _pass_cycles(target, ins, outs, input_split, is_half)
    cycles = cycles + _pass_cycles(target, outs, ins, output_split, is_half)
    exchanged = (ins + outs) * (2 if is_half else 4) // target.exchange_bytes_per_cycle
    cycles = cycles + exchanged + outer_cycles(target, outs, ins, is_half=is_half) + target.sync_cycles
    best = int(cycles.argmin())
    return RowPlan(*(int(values[best]) for values in (input_split, output_split, ins, outs, cycles)))


def _pass_cycles(target: Target, inputs: Numbers, results: Numbers, split: Numbers, is_half: bool) -> Numbers:
    """Return the cycles of a forward or a backward, with the sums of the tiles that share its inputs."""
    cycles = inputs * (2 if is_half else 4) // target.exchange_bytes_per_cycle + target.sync_cycles
    cycles = cycles + dot_cycles(target, results, inputs, is_half=is_half)
    share = -(-results // split)
    received = share * (split - 1) * PARTIAL_BYTES // target.exchange_bytes_per_cycle
    added = received + reduction_cycles(target.num_workers, split, share, partial_bytes=PARTIAL_BYTES)
    return cycles + np.where(split > 1, added + target.sync_cycles, 0)
