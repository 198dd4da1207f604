"""Long Fourier transforms of rows, of complex and of real values.

Short ones are products with the matrix of the transform: `torchipu.capture.fourier` says which lengths are which.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torchipu._kernels.table.fourier import (
    FOURIER,
    FOURIER_OF_REAL,
    FOURIER_ROWS,
    FOURIER_TO_REAL,
    MOST_RADIX,
    FourierInts,
)
from torchipu._kernels.table.kernel import Kernel, Nothing
from torchipu.device.codelets import busiest_elements
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.target import Target

SHARE = 16384  # elements of one thread's share
COMPLEX_BYTES = 8


def radices_of(length: int) -> tuple[int, ...]:
    """Return the factors of a length that passes take, fours first, with what is left of it last unless that is 1."""
    factors = []
    for factor in (4, *range(2, MOST_RADIX + 1)):
        while length % factor == 0:
            factors.append(factor)
            length //= factor
    return tuple(factors) if length == 1 else (*factors, length)


# --------------------------------------------------------------------------- host side
def _emit(kernel: Kernel[FourierInts, Nothing], labels: Sequence[str], values_each: int) -> Emitter:
    """Return what transforms rows.

    Args:
        kernel: The transform.
        labels: Of the operands.
        values_each: Values of a row that are one complex number: 2 where they are real.
    """

    def emit(op: Op, plan: HostPlanner) -> None:
        given = [plan.value(op.needed(label), DType.FLOAT) for label in labels]
        made = [plan.output(result, DType.FLOAT) for result in op.outputs]
        length, (outer, kept, inner) = op.integer("length"), made[0].shape
        if not made[0].num_elements:
            return
        angles = [-2 * math.pi * k / length for k in range(length)]
        table = plan.constant([*map(math.cos, angles), *map(math.sin, angles)], DType.FLOAT)
        is_row = inner == 1
        blocks = Blocks.of((outer, kept, inner), (FOURIER_ROWS if is_row else 1, kept, FOURIER_ROWS))
        plan.step(
            kernel, made, [*given, table],
            ints=FourierInts(
                outer=outer, inner=inner, given=given[0].shape[1], kept=kept, length=length,
                is_inverse=op.flag("inverse"), radices=radices_of(length // values_each),
            ),
            items=ceil_div(outer, FOURIER_ROWS) if is_row else outer * ceil_div(inner, FOURIER_ROWS),
            grain=max(1, SHARE // (length * FOURIER_ROWS)),
            scratch_bytes=2 * COMPLEX_BYTES * FOURIER_ROWS * (length // values_each + 1), writes=[blocks] * len(made),
        )

    return emit


# --------------------------------------------------------------------------- device side
def _cycles(target: Target, work: Mapping[str, int]) -> int:
    """Return the cycles of rows, of which each pass takes a pair of complex numbers in eight cycles.

    Workers share out the rows or, where there are too few of these, the pairs of each pass, behind which they wait for
    each other: what is sooner.
    """
    workers, values, passes = target.num_workers, work["values"], work["passes"]
    by_rows = 11 + workers * (29 + 4 * ceil_div(work["rows"], workers) * values * passes)
    by_pairs = passes * (11 + workers * (29 + 8 * ceil_div(work["rows"] * ceil_div(values, 2), workers)))
    return min(by_rows, by_pairs)


TRANSFORM = Codelet("torchipu::Fourier", _cycles, code_bytes=1200, source="estimate")


def _lower(values_each: int) -> Lowering:
    """Return the lowering of a transform: a vertex has rows whole, and works in two rows of its own a worker."""

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        outer, kept, inner = op.outputs[0].shape
        rows, values = outer * inner, op.integer("length") // values_each
        if not rows or not kept:
            return ()
        mine = busiest_elements(target, rows)
        sizes = {"values": values, "passes": max(1, math.ceil(math.log2(values)))}
        brought = sum(operand.device_bytes for operand in op.inputs) * mine // rows
        return (
            Vertices(
                TRANSFORM, rows, lambda count: {"rows": count, **sizes}, gathered_bytes=brought,
                temporary_bytes=brought + 2 * COMPLEX_BYTES * values * min(mine, target.num_workers),
                tiling=sliced(_rows),
            ),
        )

    return lower


def _rows(op: Op) -> Slicing:
    outer, _, inner = op.outputs[0].shape
    labels = ("real", "imaginary", "values", "out", "out1")
    axes = (Axis(outer, dict.fromkeys(labels, (0, 1))), Axis(inner, dict.fromkeys(labels, (2, 1))))
    return Slicing(axes, results=range(len(op.outputs)))


# --------------------------------------------------------------------------- records
def _record(name: str, kernel: Kernel[FourierInts, Nothing], labels: Sequence[str], values_each: int) -> None:
    emit = _emit(kernel, labels, values_each)

    def serves(op: Op) -> bool:
        length = op.integer("length")
        return length % values_each == 0 and max(radices_of(length // values_each), default=1) <= MOST_RADIX

    register(OpSpec(f"ipu.{name}.default", name, _lower(values_each), emit, dtypes=FLOATING, supports=serves))


_record("fourier", FOURIER, ("real", "imaginary"), 1)
_record("fourier_of_real", FOURIER_OF_REAL, ("values",), 2)
_record("fourier_to_real", FOURIER_TO_REAL, ("real", "imaginary"), 2)
