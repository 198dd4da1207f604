"""The stages of softmax and log-softmax along rows, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.reduction import Reduction, add_up, rows_along
from torchipu.device.tilings.stage import Stage, operand, partial_of, result
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.region import Numbers
from torchipu.ir.types import DType

Computed = tuple[Callable[[Op], Reduction | Stage | None], ...]
Split = Callable[[Op], tuple[int, int, int]]
"""Gives the sizes before, of and after the dimension that an op goes along."""


def _row_of(split: tuple[int, int, int]) -> Numbers:
    outer, extent, inner = split
    rows = np.arange(outer * inner, dtype=np.int64).reshape(outer, 1, inner)
    return np.broadcast_to(rows, (outer, extent, inner)).reshape(-1)


def _largest(split: Split) -> Callable[[Op], Reduction]:
    def fold(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        attrs: dict[str, object] = {"dim": [1], "keepdim": True}
        return [code.run("aten.amax.default", [(types[0], (values[0].shape[0], 1))], attrs, self=values[0])[0]]

    def reduction(op: Op) -> Reduction:
        kind = op.inputs[0].dtype
        written = (partial_of("largest", dtype=kind),)
        return Reduction(rows_along(split(op)), (operand(op, "self"),), written, fold, fold, (("pieces", kind),))

    return reduction


def _total(split: Split, of: Callable[[Op], object]) -> Callable[[Op], Reduction]:
    def reduction(op: Op) -> Reduction:
        return Reduction(rows_along(split(op)), (of(op),), (partial_of("total"),), add_up, add_up)  # type: ignore[arg-type]

    return reduction


def forward(split: Split, *, is_log: bool, is_safe: bool) -> Computed:
    """Return what the sets of a softmax compute: extremes, differences, exponentials, their sums, and the result.

    Args:
        split: Sizes around the dimension.
        is_log: Whether logarithms are asked for.
        is_safe: Whether rows of nothing but minus infinity become 0.
    """

    def shifted(op: Op) -> Stage:
        kind = op.inputs[0].dtype

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            x, largest = values
            if is_safe:
                none = c.compared("eq", largest, -math.inf)
                largest = c.chosen(none, c.full(0.0, kind), largest)
            return [c.binary("sub", x, largest, DType.FLOAT)]

        reads = operand(op, "self"), partial_of("largest", _row_of(split(op)), kind)
        return Stage(reads, (partial_of("shifted"),), code)

    def exponentials(op: Op) -> Stage:
        return Stage((partial_of("shifted"),), (partial_of("exponentials"),), lambda c, v: [c.unary("exp", v[0])])

    def of_rows(op: Op) -> Stage:
        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            if is_log:
                return [c.unary("log", values[0])]
            inverse = c.unary("reciprocal", values[0])
            if is_safe:
                inverse = c.chosen(c.compared("eq", values[0], 0.0), c.full(0.0, DType.FLOAT), inverse)
            return [inverse]

        return Stage((partial_of("total"),), (partial_of("factor"),), code)

    def last(op: Op) -> Stage:
        name, function = ("shifted", "sub") if is_log else ("exponentials", "mul")
        reads = partial_of(name), partial_of("factor", _row_of(split(op)))
        return Stage(reads, (result(op),), lambda c, v: [c.binary(function, v[0], v[1], op.outputs[0].dtype)])

    total = _total(split, lambda op: partial_of("exponentials"))
    return _largest(split), shifted, exponentials, total, of_rows, last


def backward(split: Split) -> Computed:
    """Return what the sets of the gradient of a softmax compute: ``y (dy - sum(dy y))``."""

    def products(op: Op) -> Stage:
        return Stage((operand(op, "grad_output"), operand(op, "output")), (partial_of("products"),),
                     lambda c, v: [c.binary("mul", v[0], v[1], DType.FLOAT)])

    def centred(op: Op) -> Stage:
        return Stage((operand(op, "grad_output"), partial_of("total", _row_of(split(op)))), (partial_of("centred"),),
                     lambda c, v: [c.binary("sub", v[0], v[1], DType.FLOAT)])

    def last(op: Op) -> Stage:
        return Stage((operand(op, "output"), partial_of("centred")), (result(op),),
                     lambda c, v: [c.binary("mul", v[0], v[1], op.outputs[0].dtype)])

    return products, _total(split, lambda op: partial_of("products")), centred, last


def log_backward(split: Split) -> Computed:
    """Return what the sets of the gradient of a log-softmax compute: ``dy - exp(y) sum(dy)``."""

    def exponentials(op: Op) -> Stage:
        return Stage((operand(op, "output"),), (partial_of("exponentials"),),
                     lambda c, v: [c.unary("exp", v[0], DType.FLOAT)])

    def scaled(op: Op) -> Stage:
        reads = partial_of("exponentials"), partial_of("total", _row_of(split(op)))
        return Stage(reads, (partial_of("scaled"),), lambda c, v: [c.binary("mul", v[0], v[1])])

    def last(op: Op) -> Stage:
        return Stage((operand(op, "grad_output"), partial_of("scaled")), (result(op),),
                     lambda c, v: [c.binary("sub", v[0], v[1], op.outputs[0].dtype)])

    return exponentials, _total(split, lambda op: operand(op, "grad_output")), scaled, last
