"""Codelets that op families share, and the cycle formulas of simple ones.

Formulas are those of the poplibs estimators and of measurements on silicon, restated in ``ipu_hardware.md`` section 2.
Sizes go from a compute set to a cycle formula by these names:

    elements      elements on the busiest tile
    vector_width  elements of one 64-bit access: 4 halves or 2 floats
    partials      values reduced into one
    rows          pieces handled one after another
    bytes         bytes moved
    element_bytes bytes of one element
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from torchipu.ir.arithmetic import ceil_div
from torchipu.optable.codelet import Codelet
from torchipu.target import Target

Work = Mapping[str, int]
Count = TypeVar("Count", int, NDArray[np.int64])
MIN_BYTES_PER_TILE = 128  # least share of a linearly mapped variable; poplibs, ipu_hardware.md 3.3


def busiest_elements(
    target: Target, elements: int, grain: int = 1, element_bytes: int | None = None, max_tiles: int | None = None,
) -> int:
    """Return how many elements the busiest tile holds when they are spread linearly.

    Args:
        target: The machine.
        elements: Elements in all.
        grain: Elements that stay together.
        element_bytes: With it, a tile gets 128 bytes at least, as storage does; without, a grain at least.
        max_tiles: Tiles used at most.
    """
    least = ceil_div(MIN_BYTES_PER_TILE, element_bytes) if element_bytes else grain
    grains = ceil_div(elements, grain)
    tiles = max(1, min(max_tiles or target.num_tiles, target.num_tiles, grains // max(1, ceil_div(least, grain))))
    return min(elements, ceil_div(grains, tiles) * grain)


def vector_codelet(
    name: str, half: float, single: float, *, supervisor: int = 11, worker_half: int = 26, worker_single: int = 29,
    code_bytes: int = 258, source: str = "poplibs estimator, ipu_hardware.md 2.3",
) -> Codelet:
    """Return a codelet that steps through 64-bit vectors: ``supervisor + 6 (worker + c ceil(n / 6v))`` cycles.

    Args:
        name: Poplibs-like name.
        half: Cycles of a vector of four halves (also of smaller types).
        single: Cycles of a vector of two floats or words.
        supervisor: Cycles before the workers start.
        worker_half: Fixed cycles of a worker on halves.
        worker_single: Fixed cycles of a worker on floats.
        code_bytes: Bytes of code.
        source: Where the numbers come from.
    """

    def cycles(target: Target, work: Work) -> int:
        width = work["vector_width"]
        per_vector, fixed = (half, worker_half) if width >= 4 else (single, worker_single)
        vectors = ceil_div(work["elements"], target.num_workers * width)
        return supervisor + target.num_workers * (fixed + int(per_vector * vectors))

    return Codelet(name, cycles, code_bytes, source)


def element_codelet(
    name: str, half: float, single: float, *, supervisor: int = 20, worker: int = 30, code_bytes: int = 400,
    source: str = "poplibs estimator, ipu_hardware.md 2.3",
) -> Codelet:
    """Return a codelet that steps through single elements: ``supervisor + 6 (worker + c ceil(n / 6))`` cycles.

    Args:
        name: Poplibs-like name.
        half: Cycles of a half element.
        single: Cycles of a float element.
        supervisor: Cycles before the workers start.
        worker: Fixed cycles of a worker.
        code_bytes: Bytes of code.
        source: Where the numbers come from.
    """

    def cycles(target: Target, work: Work) -> int:
        per_element = half if work["vector_width"] >= 4 else single
        return supervisor + target.num_workers * (
            worker + int(per_element * ceil_div(work["elements"], target.num_workers))
        )

    return Codelet(name, cycles, code_bytes, source)


def reduction_codelet(
    name: str, *, code_bytes: int = 600, source: str = "poplibs estimator, ipu_hardware.md 2.2 and 2.4",
) -> Codelet:
    """Return a codelet that reduces ``partials`` values into each of ``elements`` results.

    Many results: ``33 + 6 (20 + (2 P + 8) ceil(n / 6 a))``, with an accumulator of a = 4 floats or 8 halves. One or a
    few results: the workers share the partials, and a last step joins their six values. Whichever takes less, but where
    ``is_strided`` says how the partials of a result lie: apart (1), or as neighbours (0).
    """

    def cycles(target: Target, work: Work) -> int:
        workers, width = target.num_workers, work["vector_width"]
        results, partials = work["elements"], work["partials"]
        strided = workers * (20 + (2 * partials + 8) * ceil_div(results, workers * 2 * width))
        # Along the partials, one vector a cycle; six workers take rows, or shares of one row where rows are few.
        shares = max(1, workers // max(1, results))
        rows = ceil_div(results, max(1, workers // shares))
        contiguous = workers * (24 + rows * (17 + ceil_div(partials, shares * width))) + (40 if shares > 1 else 0)
        ways = {0: contiguous, 1: strided}
        return 33 + ways.get(work.get("is_strided", -1), min(strided, contiguous))

    return Codelet(name, cycles, code_bytes, source)


def _copy_cycles(target: Target, work: Work) -> int:
    """Local copy: 8 bytes a cycle for long pieces; fitted cycles a byte for scattered elements."""
    per_byte = 1 / 8 if work.get("rows", 1) <= 1 else {1: 5.15, 2: 5.15, 4: 3.125}.get(
        work["element_bytes"], ARRANGED_CYCLES_PER_BYTE
    )
    fixed = 40 if work.get("rows", 1) <= 1 else 587
    return fixed + int(per_byte * work["bytes"])


def _fill_cycles(target: Target, work: Work) -> int:
    """Fill: a vector a cycle of each worker."""
    return 11 + target.num_workers * (25 + ceil_div(work["elements"], target.num_workers * work["vector_width"]))


def multi_slice_cycles(
    target: Target, here: Count, elsewhere: Count, width: Count, element_bytes: int, /,
) -> Count:
    """Return the cycles of a vertex that copies rows by index, for numbers or for arrays of them.

    Args:
        target: The machine.
        here: Indices of rows that the vertex has; the workers share them.
        elsewhere: Indices of rows that it does not have.
        width: Elements of a row.
        element_bytes: Of each.
    """
    workers = target.num_workers
    copied = 19 + 2 * -(-width * element_bytes // 8)
    return 25 + workers * (30 + -(-here // workers) * copied + 8 * -(-elsewhere // workers))


def multi_update_cycles(
    target: Target, here: Count, elsewhere: Count, width: Count, element_bytes: int, /, *, is_one_point: bool = False,
) -> Count:
    """Return the cycles of a vertex that adds rows to others by index, for numbers or for arrays of them.

    Each worker has some of the vertex' rows, so that no two of them add to the same one, and goes through all indices.
    Elements below a word are added one by one, 20 cycles each, where they do not come in whole words.

    Args:
        target: The machine.
        here: Indices of rows that the vertex has.
        elsewhere: Indices of rows that it does not have.
        width: Elements of a row.
        element_bytes: Of each.
        is_one_point: Whether one worker may have the rows of all these; else the workers have equally many.
    """
    mine = here if is_one_point else -(-here // target.num_workers)
    per_word = max(1, 4 // element_bytes)
    odd = width * (per_word > 1) * (width % per_word != 0)
    added = 9 + 3 * -(-width // per_word) + 17 * odd
    return 25 + target.num_workers * (32 + mine * added + 5 * (here + elsewhere - mine))


def _slice_cycles(target: Target, work: Work) -> int:
    """Look up ``rows`` rows of ``elements / rows`` elements, and pass over ``elsewhere`` indices of others."""
    rows = max(1, work["rows"])
    width = ceil_div(work["elements"], rows)
    return multi_slice_cycles(target, rows, work.get("elsewhere", 0), width, work["element_bytes"])


def _update_add_cycles(target: Target, work: Work) -> int:
    """Update ``rows`` rows of ``elements / rows`` elements, and pass over ``elsewhere`` indices of others."""
    rows = max(1, work["rows"])
    width = ceil_div(work["elements"], rows)
    return multi_update_cycles(
        target, rows, work.get("elsewhere", 0), width, work["element_bytes"],
        is_one_point=bool(work.get("is_one_point", 0)),
    )


def _sum_of_slices_cycles(target: Target, work: Work) -> int:
    """Reduction of parts of tables, which come in pieces of a few elements and are laid out 8 bytes at a time."""
    num_bytes = work["partials"] * work["elements"] * work["element_bytes"]
    return SUM_OF_TABLES.cycles(target, work) + int(ARRANGED_CYCLES_PER_BYTE * num_bytes)


ARRANGED_CYCLES_PER_BYTE = 0.44  # of a copy in pieces of 8 bytes; poplibs log, ipu_hardware.md 2.5
SUM_OF_TABLES = reduction_codelet("popops::ReduceAdd<slices>")
"""Of partial tables, each of which is in one piece."""
SUM_OF_SLICES = Codelet(SUM_OF_TABLES.name, _sum_of_slices_cycles, SUM_OF_TABLES.code_bytes, SUM_OF_TABLES.source)


def _arranged_cycles(target: Target, work: Work) -> int:
    """Local copy of rows that come in pieces of a few elements."""
    return 40 + int(ARRANGED_CYCLES_PER_BYTE * work["bytes"])


ARRANGED_ROWS = Codelet("popops::ArrangeSlices", _arranged_cycles, 240, "poplibs log, ipu_hardware.md 2.5")
COPY = Codelet("poplar::Copy", _copy_cycles, 120, "poplibs log, ipu_hardware.md 2.5")
STRIDED_COPY = Codelet("poplar::StridedCopy", _copy_cycles, 240, "poplibs log, ipu_hardware.md 2.5")
FILL = Codelet("popops::Fill", _fill_cycles, 120, "poplibs estimator, ipu_hardware.md 2.3")
CAST = vector_codelet("popops::Cast", 2, 2, supervisor=12, worker_half=18, worker_single=19, code_bytes=180)
MULTI_SLICE = Codelet("popops::MultiSlice", _slice_cycles, 420, "poplibs estimator, ipu_hardware.md 2.5")
MULTI_UPDATE_ADD = Codelet("popops::MultiUpdateAdd", _update_add_cycles, 480, "poplibs estimator, ipu_hardware.md 2.5")
INDEX_TO_PART = element_codelet("popops::Divide<index>", 128, 128, source="estimate: 32 bits of a quotient, 4 each")
"""Divides an index by the rows of a part, to know who has its row. The machine has no division of integers: a loop
shifts, compares, subtracts and sets a bit for each of the quotient's 32."""


SOFTPLUS_CYCLES = 92.0
"""Of a vector of two floats: ``log(1 + exp(x))`` in a form that does not overflow. No source has it; fitted, see
torchipu/score/constants.py. Its halves are an estimate."""

CIRCLE_CYCLES = 2775.0
"""Of the sine or cosine of a float, which software computes in wider numbers; what it takes depends on the angle.

The estimator has 2,300 (``ipu_hardware.md`` 2.3). Fitted; see torchipu/score/constants.py."""


def _softplus_cycles(target: Target, work: Work) -> int:
    return vector_codelet("", 10, SOFTPLUS_CYCLES).cycles(target, work)


def _circle_cycles(target: Target, work: Work) -> int:
    return element_codelet("", 25, CIRCLE_CYCLES).cycles(target, work)


SOFTPLUS = Codelet("popops::Softplus", _softplus_cycles, 258, "fitted to rows of SchNet's blocks on a Bow")
CIRCLE_FUNCTIONS = {
    name: Codelet(f"popops::UnaryOp1D<{name}>", _circle_cycles, 400, "fitted to rows of SchNet's blocks on a Bow")
    for name in ("sin", "cos")
}
