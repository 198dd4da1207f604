"""Vertices of the matrix unit, which products and convolutions share, and of those beside it: what they cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from torchipu.ir.region import Numbers
from torchipu.optable.codelet import Codelet

if TYPE_CHECKING:
    from torchipu.target import Target

AVAILABLE_MEMORY = 0.6
"""Part of a tile's memory that one product may use for temporary values unless the user says otherwise.

Source: the default of PopART's availableMemoryProportion.
"""

INPUT_GROUP = 16  # input channels that the AMP takes at a time
LOAD_CYCLES_PER_UNIT = 4  # 64 for a panel of 16 units; ipu_hardware.md 1.2
HALF_INPUTS_PER_CYCLE, FLOAT_INPUTS_PER_CYCLE = 4, 2  # of a unit; ipu_hardware.md 1.2


def _worker_cycles(positions: Numbers, accumulates: bool, is_half: bool) -> Numbers:
    """Cycles of a worker for one panel of weights (poplibs estimator, ipu_hardware.md 2.2).

    Seven cycles less than for a worker on its own: the set of weights is kept between calls.
    """
    few, first, step = (np.array((20, 31, 41)), 37, 4) if is_half else (np.array((24, 47, 46)), 46, 8)
    return np.where(positions < 3, few[np.minimum(positions, 2)], first + accumulates + step * (positions - 3)) - 7


def _panel_cycles(positions: Numbers, workers: int, accumulates: bool, is_half: bool) -> Numbers:
    most = _worker_cycles(-(-positions // workers), accumulates, is_half)
    least = _worker_cycles(positions // workers, accumulates, is_half)
    return np.maximum(workers * np.maximum(most, least), workers * np.minimum(most, least) + 14)


def conv_units(target: Target, *, is_half: bool, half_partials: bool) -> int:
    """Return how many output channels the matrix unit works on at a time: its units, of which each has one.

    It is the target's rate over what a unit takes in a cycle: 16 of halves with half partials on Mk2, 8 on Mk1; 8 of
    floats on Mk2, 4 on Mk1 (ipu_hardware.md 1.2).
    """
    if not is_half:
        return target.amp_macs_float // FLOAT_INPUTS_PER_CYCLE
    return (target.amp_macs_half_half if half_partials else target.amp_macs_half_float) // HALF_INPUTS_PER_CYCLE


def call_cycles(
    workers: int, positions: Numbers, inputs: Numbers, outputs: Numbers, *, is_half: bool, output_group: int,
) -> Numbers:
    """Cycles of calls of the matrix unit, an element each.

    Args:
        workers: Of a tile.
        positions: Of the field.
        inputs: Input channels.
        outputs: Output channels.
        is_half: Whether operands are half.
        output_group: From `conv_units`.

    Source: poplibs estimator, ipu_hardware.md 2.2.
    """
    input_groups = -(-inputs // INPUT_GROUP)
    output_groups = -(-outputs // output_group)
    load = LOAD_CYCLES_PER_UNIT * output_group
    first = _panel_cycles(positions, workers, False, is_half)
    later = _panel_cycles(positions, workers, True, is_half)
    cycles = 50 + 6 * (7 + 3 * (input_groups - 1)) + 13 + 11 + output_groups * (18 + load + 7 + first)
    return cycles + (input_groups - 1) * (15 + output_groups * (19 + load + 6 + later))


def amp_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles of the vertex of the matrix unit.

    Args:
        target: The machine.
        work: ``positions`` x ``inputs`` by ``inputs`` x ``outputs``; ``is_half``; ``output_group`` from
            `conv_units`; ``calls``. In a serial part also ``copied_bytes`` and ``added``, see `serial_cycles`; and
            ``laid`` elements of operands that are laid out anew.
    """
    sizes = (np.array(work[name]) for name in ("positions", "inputs", "outputs"))
    cycles = call_cycles(
        target.num_workers, *sizes, is_half=bool(work["is_half"]), output_group=work["output_group"],
    )
    beside = int(COPY_CYCLES * work.get("laid", 0))
    if work.get("copied_bytes"):
        beside += int(serial_cycles(target, *(np.array(work[name]) for name in ("copied_bytes", "added"))))
    return int(cycles) * work.get("calls", 1) + beside


SERIAL_SYNCS = 2  # one for the slice of the operand, one for the update of the result
SLICE_CYCLES, COPIED_BYTES_PER_CYCLE = 60, 8  # ipu_hardware.md 3.1
ADD_CYCLES, ADD_WORKER_CYCLES, ADD_PAIR_CYCLES = 11, 29, 3  # of two floats by a worker; ipu_hardware.md 2.3


def serial_cycles(target: Target, copied_bytes: Numbers, added: Numbers) -> Numbers:
    """Cycles that one serial part takes beside its product.

    Args:
        target: The machine.
        copied_bytes: What is sliced out of operands and written into the result; ipu_hardware.md 3.1.
        added: Partials that are added to those of the parts before; 0 for none.
    """
    cycles = SERIAL_SYNCS * (target.sync_cycles + SLICE_CYCLES) + copied_bytes // COPIED_BYTES_PER_CYCLE
    loops = ADD_WORKER_CYCLES + ADD_PAIR_CYCLES * -(-added // (2 * target.num_workers))
    return cycles + np.where(added > 0, target.sync_cycles + ADD_CYCLES + target.num_workers * loops, 0)


def reduction_cycles(workers: int, partials: Numbers, elements: Numbers, *, partial_bytes: int) -> Numbers:
    """Cycles to add up partials, of which 16 bytes take two cycles.

    Args:
        workers: Of a tile.
        partials: Of each element.
        elements: Results.
        partial_bytes: Of a partial.

    Source: poplibs estimator, ipu_hardware.md 2.2.
    """
    return 33 + workers * (20 + (2 * partials + 8) * -(-elements // (16 // partial_bytes * workers)))


def reduce_partials_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles to add ``partials`` partials of ``elements`` results, of ``partial_bytes`` each."""
    sizes = np.array(work["partials"]), np.array(work["elements"])
    return int(reduction_cycles(target.num_workers, *sizes, partial_bytes=work.get("partial_bytes", 4)))


HALVES_OF_A_GRAIN, FLOATS_OF_A_GRAIN = 16, 4  # 4 x 4 and 2 x 2; ipu_hardware.md 2.5
GRAINS_OF_A_MATRIX, MATRIX_CYCLES, GRAIN_CYCLES = 16, 18, 5  # 12 + 4 (columns - 2) for a row of four grains; the same


def transpose_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles to transpose ``elements`` of a matrix in grains (poplibs estimator, ipu_hardware.md 2.5)."""
    grains = -(-work["elements"] // (HALVES_OF_A_GRAIN if work["element_bytes"] == 2 else FLOATS_OF_A_GRAIN))
    mine = -(-grains // target.num_workers)
    return 7 + target.num_workers * (29 + MATRIX_CYCLES * (mine // GRAINS_OF_A_MATRIX) + GRAIN_CYCLES * (mine - 1))


COPY_CYCLES = 1.25  # an element; the lower end of the planner's estimate, ipu_hardware.md 3.1
WORD_COPY_CYCLES = 3.125  # a byte where words are copied one by one; measured by poplibs, ipu_hardware.md 2.5
SEGMENT_CYCLES = 30  # 20 to 40; ipu_hardware.md 2.5


def copy_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles to put ``elements`` that have arrived where the matrix unit takes them (ipu_hardware.md 2.5, 3.1).

    Those that do not fill its groups of input channels (``is_ragged``) are copied word by word.
    """
    cycles = WORD_COPY_CYCLES * work["element_bytes"] if work["is_ragged"] else COPY_CYCLES
    return int(cycles * work["elements"]) + target.num_workers * SEGMENT_CYCLES


AMP = Codelet(
    "poplin::ConvPartial1x1Out", amp_cycles, 1612, "poplibs estimator, ipu_hardware.md 2.2", writes_interleaved=True,
    control_bytes=47, state_bytes=47,  # 71 and 59 for a product of BERT, less those of an add; ipu_hardware.md 3.6
)
REDUCE_PARTIALS = Codelet(
    "popops::ReducePartialsEqualSize",
    reduce_partials_cycles,
    620,
    "poplibs estimator, ipu_hardware.md 2.2",
)
TRANSPOSE = Codelet("poplin::Transpose2d", transpose_cycles, 520, "poplibs estimator, ipu_hardware.md 2.5")
COPY = Codelet("poplar::RearrangeCopy", copy_cycles, 260, "planner of poplibs, ipu_hardware.md 3.1")
