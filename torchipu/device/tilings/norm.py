"""The stages of norms, forward and backward: whitened rows, and a scale and a shift along rows or across them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.reduction import Reduction, add_up, rows_of
from torchipu.device.tilings.stage import Stage, Taken, operand, partial_of, result
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.region import Numbers
from torchipu.ir.types import DType

Computed = tuple[Callable[[Op], "Reduction | Stage | None"], ...]


@dataclass(frozen=True, slots=True)
class Normed:
    """How the elements of an op go together, by their number: element i is of row ``i // stride % rows``.

    Attributes:
        elements: How many there are.
        row_stride: Elements from where one row begins to where the next does.
        rows: What is whitened together.
        column_stride: The same of columns.
        columns: What is scaled by one weight.
    """

    elements: int
    row_stride: int
    rows: int
    column_stride: int
    columns: int

    @property
    def length(self) -> int:
        """Elements of a row."""
        return self.elements // self.rows

    @property
    def row(self) -> Numbers:
        """``[elements]``, the row of each."""
        return np.arange(self.elements, dtype=np.int64) // self.row_stride % self.rows

    @property
    def column(self) -> Numbers:
        """``[elements]``, the column of each."""
        return np.arange(self.elements, dtype=np.int64) // self.column_stride % self.columns

    @property
    def shape(self) -> tuple[int, int, int]:
        """Sizes around the rows, of the rows, and within them."""
        return self.elements // (self.rows * self.row_stride), self.rows, self.row_stride

    @property
    def table(self) -> Numbers:
        """``[rows, length]``: the elements of each row."""
        return rows_of(self.shape, (0, 2))

    @property
    def by_column(self) -> Numbers:
        """``[columns, length]``: the elements of each column."""
        around = self.elements // (self.columns * self.column_stride)
        return rows_of((around, self.columns, self.column_stride), (0, 2))


Geometry = Callable[[Op], Normed]
Present = Callable[[Op], Sequence[Tensor | None]]


# --------------------------------------------------------------------------- forward
def forward(geometry: Geometry) -> Computed:
    """Return what the sets of a norm by the statistics of its rows compute."""
    return _mean(geometry), _squares(geometry), _statistics(geometry), *_applied(geometry)


def by_running(geometry: Geometry) -> Computed:
    """Return what the sets of a norm by running statistics compute."""

    def statistics(op: Op) -> Stage:
        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            mean, variance = values
            spread = c.binary("add", variance, float(op.number("eps")), DType.FLOAT)
            return [c.copied(mean, DType.FLOAT), c.unary("rsqrt", spread)]

        return Stage(_of_rows(op, "running_mean", "running_var"), (partial_of("mean"), partial_of("inverse")), code)

    return statistics, *_applied(geometry)


def _of_rows(op: Op, *names: str) -> list[Taken]:
    return [Taken(name, op.needed(name).dtype) for name in names]


def _mean(geometry: Geometry) -> Callable[[Op], Reduction]:
    def reduction(op: Op) -> Reduction:
        shape = geometry(op)
        return Reduction(
            shape.table, (operand(op, "input"),), (partial_of("mean"),), add_up, add_up, (("mean.sums", DType.FLOAT),),
            finish=lambda code, sums: [code.binary("mul", sums[0], 1 / shape.length)],
        )

    return reduction


def _squares(geometry: Geometry) -> Callable[[Op], Reduction]:
    """Squares about the mean: those about 0 would lose what little differs from a large mean."""

    def begin(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        apart = code.binary("sub", values[0], values[1], DType.FLOAT)
        return [code.summed(code.binary("mul", apart, apart))]

    def reduction(op: Op) -> Reduction:
        return Reduction(geometry(op).table, (operand(op, "input"),), (partial_of("squares"),), begin, add_up,
                         (("squares.sums", DType.FLOAT),), (partial_of("mean"),))

    return reduction


def _statistics(geometry: Geometry) -> Callable[[Op], Stage]:
    def stage(op: Op) -> Stage:
        length = geometry(op).length
        running = ("running_mean", "running_var") if len(op.outputs) == 5 and op.operand("running_mean") else ()

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            mean, squares, *old = values
            spread = c.binary("add", c.binary("mul", squares, 1 / length), float(op.number("eps")))
            inverse = c.unary("rsqrt", spread)
            saved = [c.copied(mean, op.outputs[1].dtype), c.copied(inverse, op.outputs[2].dtype)]
            share = float(op.number("momentum")) if old else 0.0
            fresh = [mean, c.binary("div", squares, max(1, length - 1))] if old else []
            kept = [
                c.binary("add", c.binary("mul", before, 1 - share, DType.FLOAT), c.binary("mul", now, share), one.dtype)
                for before, now, one in zip(old, fresh, op.outputs[3:], strict=False)
            ]
            return [inverse, *saved, *kept]

        written = [result(op, number) for number in range(1, 3 + len(running))]
        reads = (partial_of("mean"), partial_of("squares"), *_of_rows(op, *running))
        return Stage(reads, (partial_of("inverse"), *written), code)

    return stage


def _applied(geometry: Geometry) -> Computed:
    def whitened(op: Op) -> Stage:
        row = geometry(op).row
        return Stage((operand(op, "input"), partial_of("mean", row), partial_of("inverse", row)),
                     (partial_of("whitened"),), _whitened)

    def scaled(op: Op) -> Stage:
        column, kind = geometry(op).column, op.outputs[0].dtype
        names = [name for name in ("weight", "bias") if op.operand(name) is not None]

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            made = values[0]
            for name, value in zip(names, values[1:], strict=True):
                last = kind if name == names[-1] else DType.FLOAT
                made = c.binary("mul" if name == "weight" else "add", made, value, last)
            return [c.cast(made, kind)]

        return Stage((partial_of("whitened"), *(operand(op, name, column) for name in names)), (result(op),), code)

    return whitened, scaled


def _whitened(code: Code, values: list[Tensor]) -> list[Tensor]:
    x, mean, inverse = values
    return [code.binary("mul", code.binary("sub", x, mean, DType.FLOAT), inverse)]


# --------------------------------------------------------------------------- backward of norms along rows
def backward(geometry: Geometry, present: Present) -> Computed:
    """Return what the sets of the gradient of a norm compute whose weights go across its rows.

    Whitened activations, their gradients, sums along rows for the gradient of the input and across them for those of
    weight and bias, and the gradient of the input.

    Args:
        geometry: How elements go together.
        present: The gradients of input, weight and bias, None for those that nobody asked for.
    """

    def whitened(op: Op) -> Stage:
        row = geometry(op).row
        return Stage([operand(op, "input"), operand(op, "mean", row), operand(op, "rstd", row)],
                     (partial_of("whitened"),), _whitened)

    def scaled(op: Op) -> Stage:
        weight = [operand(op, "weight", geometry(op).column)] if op.operand("weight") is not None else []
        return Stage(
            (operand(op, "grad_out"), *weight), (partial_of("scaled"),),
            lambda c, v: [c.binary("mul", v[0], v[1], DType.FLOAT) if weight else c.copied(v[0], DType.FLOAT)],
        )

    def along(op: Op) -> Reduction | None:
        if present(op)[0] is None:
            return None
        return Reduction(geometry(op).table, (partial_of("scaled"), partial_of("whitened")),
                         (partial_of("total"), partial_of("product")), _sum_and_product, add_up,
                         (("along.total", DType.FLOAT), ("along.product", DType.FLOAT)))

    def across(op: Op) -> Reduction | None:
        results = _gradients(op, present(op))
        if not results:
            return None
        wanted = [number - 1 for number, tensor in enumerate(present(op)) if number and tensor is not None]

        def begin(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
            product = [_product(code, values, types[0])] if 0 in wanted else []
            return [*product, code.summed(values[0], types[-1])] if 1 in wanted else product

        partials = [(("across.product", "across.total")[number], DType.FLOAT) for number in wanted]
        return Reduction(geometry(op).by_column, (operand(op, "grad_out"), partial_of("whitened")), results, begin,
                         add_up, partials)

    return whitened, scaled, along, across, _drawn(geometry, present), _along_rows(geometry, present)


def _gradients(op: Op, present: Sequence[Tensor | None]) -> list[Taken]:
    """Return the writings of the gradients of weight and bias that are asked for."""
    return [result(op, op.outputs.index(tensor)) for tensor in present[1:] if tensor is not None]


def _product(code: Code, values: list[Tensor], dtype: DType) -> Tensor:
    return code.summed(code.binary("mul", values[0], values[1], DType.FLOAT), dtype)


def _sum_and_product(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
    return [code.summed(values[0], types[0]), _product(code, values, types[1])]


def _drawn(geometry: Geometry, present: Present) -> Callable[[Op], Stage | None]:
    """What the statistics of a row take off the gradients of its elements."""

    def stage(op: Op) -> Stage | None:
        if present(op)[0] is None:
            return None
        shape = geometry(op)

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            whitened, total, product = values
            drawn = c.binary("add", c.binary("mul", whitened, product), total)
            return [c.binary("mul", drawn, 1 / shape.length)]

        return Stage((partial_of("whitened"), partial_of("total", shape.row), partial_of("product", shape.row)),
                     (partial_of("drawn"),), code)

    return stage


def _along_rows(geometry: Geometry, present: Present) -> Callable[[Op], Stage | None]:
    def stage(op: Op) -> Stage | None:
        if present(op)[0] is None:
            return None

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            scaled, drawn, inverse = values
            return [c.binary("mul", c.binary("sub", scaled, drawn), inverse, op.outputs[0].dtype)]

        reads = partial_of("scaled"), partial_of("drawn"), operand(op, "rstd", geometry(op).row)
        return Stage(reads, (result(op),), code)

    return stage


# --------------------------------------------------------------------------- backward of batch norms
def batch_backward(geometry: Geometry, present: Present) -> Computed:
    """Return what the sets of the gradient of a norm compute that has a weight for each of its rows.

    Args:
        geometry: How elements go together.
        present: The gradients of input, weight and bias, None for those that nobody asked for.
    """

    def whitened(op: Op) -> Stage:
        row, eps = geometry(op).row, float(op.number("eps"))

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            return _whitened(c, [*values[:2], _inverse(c, op, values[2], eps)])

        mean, spread = _statistics_of(op)
        return Stage((operand(op, "input"), operand(op, mean, row), operand(op, spread, row)),
                     (partial_of("whitened"),), code)

    def products(op: Op) -> Stage:
        return Stage((operand(op, "grad_out"), partial_of("whitened")), (partial_of("products"),),
                     lambda c, v: [c.binary("mul", v[0], v[1], DType.FLOAT)])

    def summed(name: str, value: Callable[[Op], Taken], number: int) -> Callable[[Op], Reduction]:
        def reduction(op: Op) -> Reduction:
            gradient = present(op)[number]
            written = [] if gradient is None else [result(op, op.outputs.index(gradient))]

            def finish(code: Code, sums: list[Tensor]) -> list[Tensor]:
                return [sums[0], *(code.copied(sums[0], one.dtype) for one in written)]

            return Reduction(geometry(op).table, (value(op),), (partial_of(name), *written), add_up, add_up,
                             ((f"{name}.sums", DType.FLOAT),), finish=finish)

        return reduction

    def drawn(op: Op) -> Stage | None:
        return _drawn(geometry, present)(op) if op.flag("train") else None

    total = summed("total", lambda op: operand(op, "grad_out"), 2)
    product = summed("product", lambda op: partial_of("products"), 1)
    return whitened, products, total, product, drawn, _across_rows(geometry, present)


def _statistics_of(op: Op) -> tuple[str, str]:
    return ("save_mean", "save_invstd") if op.flag("train") else ("running_mean", "running_var")


def _inverse(code: Code, op: Op, spread: Tensor, eps: float) -> Tensor:
    """Return the inverse deviation, which is saved of the batch, but not of running statistics."""
    return spread if op.flag("train") else code.unary("rsqrt", code.binary("add", spread, eps, DType.FLOAT))


def _across_rows(geometry: Geometry, present: Present) -> Callable[[Op], Stage | None]:
    def stage(op: Op) -> Stage | None:
        if present(op)[0] is None:
            return None
        row, eps, kind = geometry(op).row, float(op.number("eps")), op.outputs[0].dtype
        weight = [operand(op, "weight", row)] if op.operand("weight") is not None else []
        drawn = [partial_of("drawn")] if op.flag("train") else []

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            made, spread, *others = values
            for value in others[len(weight) :]:
                made = c.binary("sub", made, value, DType.FLOAT)
            for value in others[: len(weight)]:
                made = c.binary("mul", made, value, DType.FLOAT)
            return [c.binary("mul", made, _inverse(c, op, spread, eps), kind)]

        reads = operand(op, "grad_out"), operand(op, _statistics_of(op)[1], row), *weight, *drawn
        return Stage(reads, (result(op),), code)

    return stage
