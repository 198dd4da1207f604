"""Vertices of convolutions and what they cost; formulas take numbers, or arrays of many plans at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from torchipu.device.matrix_unit import AMP, LOAD_CYCLES_PER_UNIT, reduction_cycles
from torchipu.optable.codelet import Codelet

if TYPE_CHECKING:
    from torchipu.target import Target

Sizes = Mapping[str, Any]
"""Sizes by name: whole numbers, or arrays of them."""
WEIGHTS_OF_A_UNIT = {True: 16, False: 8}  # half, float; ipu_hardware.md 1.2
START_CYCLES = {1: 15, 2: 46, 4: 60}  # of a panel that 1, 2 or 4 rows of the window share
ROW_CYCLES = {True: 16, False: 15}  # 3 + w'(p) - 9 of ipu_hardware.md 2.2 less what grows with p; half, float
POSITION_CYCLES = {True: 4, False: 8}
ENTRY_CYCLES = 17


def pointwise_cycles(target: Target, sizes: Sizes) -> Any:
    """Cycles of windows of one element: `torchipu.device.matrix_unit.amp_cycles`, of many plans at a time."""
    is_half, workers = bool(sizes["is_half"]), target.num_workers
    more, fewer = np.ceil(sizes["positions"] / workers), np.floor(sizes["positions"] / workers)

    def panel(accumulates: int) -> Any:
        most, least = _worker_cycles(more, accumulates, is_half), _worker_cycles(fewer, accumulates, is_half)
        return np.maximum(workers * np.maximum(most, least), workers * np.minimum(most, least) + 14)

    loads, inputs, outputs = LOAD_CYCLES_PER_UNIT * sizes["output_group"], sizes["input_groups"], sizes["output_groups"]
    cycles = 50 + 6 * (7 + 3 * (inputs - 1)) + 13 + 11 + outputs * (18 + loads + 7 + panel(0))
    return sizes["groups"] * (cycles + (inputs - 1) * (15 + outputs * (19 + loads + 6 + panel(1))))


def _worker_cycles(positions: Any, accumulates: int, is_half: bool) -> Any:
    first, further = ((20, 31, 41), 37) if is_half else ((24, 47, 46), 46)
    few = np.array(first)[np.minimum(positions, 2).astype(int)]
    return np.where(positions < 3, few, further + accumulates + POSITION_CYCLES[is_half] * (positions - 3)) - 7


def window_cycles(target: Target, sizes: Sizes) -> Any:
    """Cycles of windows of several elements, each loaded as a panel of weights of its own.

    Args:
        target: The machine.
        sizes: ``taps`` elements of the window in ``tap_rows`` rows, of which rows of ``input_group`` channels share
            panels; ``met`` pairs of a position and an element that has an operand there, in ``pieces`` rows;
            ``positions`` whose partials are zeroed first; ``input_groups``, ``output_groups`` of ``output_group``
            channels, ``groups``; ``is_half``; ``partial_bytes`` of one partial.

    Source: poplibs estimator, ipu_hardware.md 2.2, AMP nx1. A worker begins and ends within a row: one piece more.
    """
    is_half, workers = bool(sizes["is_half"]), target.num_workers
    together = max(1, WEIGHTS_OF_A_UNIT[is_half] // sizes["input_group"])
    rows = np.ceil(sizes["tap_rows"] / together)
    panels = rows * np.ceil(sizes["taps"] / sizes["tap_rows"])
    share = panels / sizes["taps"]
    # Shares of workers are rounded up for each panel: by half a position on average.
    places = sizes["met"] * share + workers / 2 * panels
    pieces = sizes["pieces"] * share + workers * panels
    load = LOAD_CYCLES_PER_UNIT * sizes["output_group"]
    cycles = rows * 14 + panels * (12 + load + START_CYCLES[together] + 3 + workers * ENTRY_CYCLES)
    cycles += POSITION_CYCLES[is_half] * places + ROW_CYCLES[is_half] * pieces
    channels = sizes["output_groups"] * sizes["output_group"]
    zero = 30 + sizes["positions"] * channels * sizes["partial_bytes"] / 8
    inner = sizes["input_groups"] * (16 + sizes["output_groups"] * (14 + cycles))
    return np.ceil(109 + 54 + 57 + sizes["groups"] * (16 + zero + inner))


SLIC_CHANNELS = 4
"""Channels that vertices of the slim unit take at a time: one of each of four groups, two of two, four of one."""

SLIC_TAPS = 4
"""Neighbouring elements of a window's row that they take at a time."""

UNITS_OF_ALL_CHAINS = 16
"""Units of the matrix unit where none of its four chains is taken by partials in float."""

SLIC_LOAD_CYCLES = {1: 34, 2: 97, 4: 110}
"""To load the weights of so many groups; those of several are laid out in registers first (``ipu_hardware.md`` 2.2)."""

SLIC_BUFFER_BYTES = 208
"""Beside a second copy of the partials of four channels; the planner of PopLibs counts 200, allocations are of 8."""


def slic_cycles(target: Target, sizes: Sizes) -> Any:
    """Cycles of windows of few channels, whose rows the matrix unit slides over in pieces of four elements.

    Workers share the positions in their order, and begin anew at each row of the image. With half of its chains, which
    is what partials in float leave it, the unit goes over them twice.

    Args:
        target: The machine.
        sizes: As of `window_cycles`, and ``rows`` of positions, ``pieces_of_rows`` of four elements that a row of the
            window has, ``step`` from one position to the next in the image, ``together`` groups, ``passes``.

    Source: poplibs estimator, ipu_hardware.md 2.2, SLIC.
    """
    share = np.ceil(sizes["positions"] / target.num_workers)
    rows = np.maximum(1, np.ceil(share * sizes["rows"] / sizes["positions"]))  # none where windows lie in the padding
    along = np.maximum(15, 10 + share / rows) if sizes["step"] == 1 else np.maximum(15, 9 + 2 * share / rows)
    worker = 20 + rows * (11 + sizes["passes"] * along)
    windows = sizes["tap_rows"] * sizes["pieces_of_rows"]
    each = windows * (20 + SLIC_LOAD_CYCLES[int(sizes["together"])] + target.num_workers * worker)
    return np.ceil(28 + sizes["groups"] * sizes["input_groups"] * sizes["output_groups"] * each)


DOT_CYCLES = 14.4
"""Of a sum of products beside its vectors; the estimator has about 8 (``ipu_hardware.md`` 2.2, horizontal MAC).

Fitted; see torchipu/score/constants.py."""


def multiply_cycles(target: Target, sizes: Sizes) -> Any:
    """Cycles without the matrix unit: an output is a sum of products of vectors along the input channels.

    Args:
        target: The machine.
        sizes: As of `window_cycles`, with ``inputs`` and ``outputs`` channels.

    Source: poplibs estimator, ipu_hardware.md 2.2, horizontal MAC: a row takes 19 cycles, a position
    ``7 + outputs (DOT_CYCLES + inputs / v)``, and a worker's share is rounded up to positions and rows.
    """
    width = 4 if sizes["is_half"] else 2
    position = 7 + sizes["outputs"] * (DOT_CYCLES + np.ceil(sizes["inputs"] / width))
    workers = target.num_workers
    taps = sizes["taps"]
    worked = (sizes["met"] + workers / 2 * taps) * position + (sizes["pieces"] + workers * taps) * 19
    return np.ceil(sizes["groups"] * (16 + worked))


VERTICAL_LANES = 8
"""Halves that are multiplied in `VERTICAL_CYCLES`."""

VERTICAL_CYCLES = 3


def vertical_cycles(target: Target, sizes: Sizes) -> Any:
    """Cycles without the matrix unit where groups lie side by side: vectors of them are multiplied and added up.

    Workers share the rows of windows, an element after the other along each, and add to partials of their own. These
    are zeroed before, and added up behind.

    Args:
        target: The machine.
        sizes: As of `window_cycles`, with ``rows`` of windows and ``lanes`` groups side by side.

    Source: poplibs estimator, ipu_hardware.md 2.2, vertical MAC: a row takes 7 cycles, 3 to 5 (the first one 15), and 3
    for each vector; sums of workers are added up as partials of tiles are.
    """
    workers = target.num_workers
    rows = np.ceil(sizes["rows"] / workers)
    length = sizes["met"] / np.maximum(sizes["rows"], 1)  # none where all windows lie in the padding
    step = VERTICAL_CYCLES * max(1.0, sizes["lanes"] / VERTICAL_LANES)
    inner = workers * (15 + (rows - 1) * 4 + rows * (7 + VERTICAL_CYCLES + step * (length - 1)))
    outputs = sizes["positions"] * sizes["lanes"]
    zero = workers * (4 + outputs / 4)
    add = reduction_cycles(workers, np.array(workers), np.ceil(outputs).astype(np.int64), partial_bytes=4)
    each = 32 + zero + add + sizes["input_groups"] * (24 + inner)
    return np.ceil(100 + sizes["groups"] * sizes["output_groups"] * each)


def _vertex_cycles(formula: Callable[[Target, Sizes], Any], target: Target, work: Sizes) -> int:
    """Cycles of what a tile has: copies that lay operands out, and the vertices."""
    return int(work["laid"] + formula(target, work)) * work["calls"]


POINTWISE = replace(AMP, cycles=partial(_vertex_cycles, pointwise_cycles))
WINDOW = replace(
    AMP, name="poplin::ConvPartialnx1", cycles=partial(_vertex_cycles, window_cycles), code_bytes=2000,
)
SLIC = replace(
    AMP, name="poplin::ConvPartial1x4SLIC", cycles=partial(_vertex_cycles, slic_cycles), code_bytes=1200,
)
MULTIPLY = Codelet(
    "poplin::ConvPartialHorizontalMac", partial(_vertex_cycles, multiply_cycles), 900,
    "poplibs estimator, ipu_hardware.md 2.2",
)
VERTICAL = Codelet(
    "poplin::ConvPartialVerticalMac", partial(_vertex_cycles, vertical_cycles), 1000,
    "poplibs estimator, ipu_hardware.md 2.2",
)
CODELETS = {"pointwise": POINTWISE, "window": WINDOW, "slic": SLIC, "multiply": MULTIPLY, "vertical": VERTICAL}
