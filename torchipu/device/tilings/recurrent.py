"""Recurrent layers as a product and a set of cells for each time step, which hand the state on as floats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.products import Addend, Factor, Multiplication, line, plane
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run

KEPT = {"lstm": 5, "gru": 4}
GATES = {"lstm": 4, "gru": 3}
OUTPUTS = "given.outputs"
"""Label of the operand ``outputs``: a label that begins with ``out`` is a result's."""
Body = Callable[["Cells", Mapping[str, Tensor]], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a recurrence, counted in the order of time as the layer sees it.

    Attributes:
        number: Of the step.
        last: The last one.
        batch: Samples.
        hidden: Units.
        state: Values that it hands to the next one: as many as units, or what these are projected to.
        cell: What the layer computes.
        reverse: Whether it runs from the last step to the first.
    """

    number: int
    last: int
    batch: int
    hidden: int
    state: int
    cell: str
    reverse: bool
    projects: bool

    @property
    def gates(self) -> int:
        """Gates of a unit."""
        return GATES.get(self.cell, 1)

    @property
    def kept(self) -> int:
        """Values of a unit that the backward needs."""
        return KEPT.get(self.cell, 0)

    def row(self, number: int) -> int:
        """Return where a step lies among those in memory."""
        return self.last - number if self.reverse else number

    # ------------------------------------------------------------------ products
    def product(self, op: Op) -> Multiplication:
        """Return the product of the state before the step with the weights."""
        state = Factor("h0", line(self.state, 0, 1))
        if self.number:
            state = Factor(f"state {self.number - 1}", line(self.state, 0, 1), dtype=DType.FLOAT)
        bias = None if op.operand("bias") is None else Addend("bias", plane(0, 0, 1), (False, False, True))
        return Multiplication(
            state, Factor("weight", line(self.state, 0, 1)), self.state, f"products {self.number}",
            plane(0, self.gates * self.hidden, 1), addend=bias, dtype=DType.FLOAT,
        )

    def projected(self, op: Op) -> Multiplication:
        """Return the projection of the units to the state: to the result by itself where no step comes after it."""
        is_last, first = self.number == self.last, self.row(self.number) * self.batch * self.state

        def elements(groups: Numbers, positions: Numbers, outputs: Numbers) -> Numbers:
            return (first if is_last else 0) + groups * 0 + positions * self.state + outputs

        return Multiplication(
            Factor(f"units {self.number}", line(self.hidden, 0, 1), dtype=DType.FLOAT),
            Factor("projection", line(self.hidden, 0, 1)), self.hidden, "out" if is_last else f"state {self.number}",
            elements, dtype=None if is_last else DType.FLOAT,
        )

    def gradient_projected(self, op: Op) -> Multiplication:
        """Return the gradient of the units of that of the state."""
        if self.number == self.last:
            first = self.row(self.number) * self.batch * self.state
            left = Factor("grad_outputs", line(self.state, 0, 1, first))
        else:
            left = Factor(f"state gradients {self.number + 1}", line(self.state, 0, 1), dtype=DType.FLOAT)
        return Multiplication(
            left, Factor("projection", line(1, 0, self.hidden), inputs_first=True), self.state,
            f"unit gradients {self.number}", plane(0, self.hidden, 1), dtype=DType.FLOAT,
        )

    def gradient_product(self, op: Op) -> Multiplication:
        """Return the gradient of the state before the step: with a projection, all of it."""
        width, addend = self.gates * self.hidden, None
        if self.cell == "gru":
            addend = Addend(f"direct {self.number}", plane(0, self.hidden, 1), (False, True, True), dtype=DType.FLOAT)
        elif self.projects and self.number:
            first = self.row(self.number - 1) * self.batch * self.state
            addend = Addend(
                "grad_outputs",
                lambda groups, positions, outputs: first + 0 * groups + positions * self.state + outputs,
                (False, True, True),
            )
        return Multiplication(
            Factor(f"gates {self.number}", line(width, 0, 1), dtype=DType.FLOAT),
            Factor("weight", line(1, 0, self.state), inputs_first=True), width,
            f"state gradients {self.number}" if self.number else "out2", plane(0, self.state, 1), addend=addend,
            dtype=DType.FLOAT if self.number else None,
        )

    # ------------------------------------------------------------------ cells
    def cells(self, op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        """Return vertices that make the state of a step, and what the backward keeps, of the sums of gates."""
        made = _Fields(self, op, runs)
        for gate in range(self.gates):
            made.read(f"x{gate}", "projected", self.row(self.number), self.gates, gate)
            made.read(f"h{gate}", f"products {self.number}", 0, self.gates, gate, partial=True)
        if self.cell == "lstm":
            made.read("c", f"cell {self.number - 1}" if self.number else "c0", partial=self.number > 0)
        if self.cell == "gru":
            made.read("before", f"state {self.number - 1}" if self.number else "h0", partial=self.number > 0)
        if self.projects:
            made.write("state", f"units {self.number}", partial=True)
            if self.number:
                made.hand_on(f"state {self.number - 1}", DType.FLOAT, 0, "out", self.row(self.number - 1))
        else:
            made.write("out", "out", self.row(self.number))
            made.write("state", f"state {self.number}", partial=True)
        for kept in range(self.kept):
            made.write(f"kept{kept}", "out2", self.row(self.number), self.kept, kept)
        if self.cell == "lstm":
            made.write("cell", f"cell {self.number}", partial=True)
            if self.number == self.last:
                made.write("last", "out1")
        bodies = {"lstm": _lstm, "gru": _gru, "tanh": _tanh, "relu": _relu}
        return made.vertices(bodies[self.cell])

    def gradient_cells(self, op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
        """Return vertices that make the gradients of the sums of gates."""
        made, here = _Fields(self, op, runs), self.row(self.number)
        if self.projects:
            made.read("dy", f"unit gradients {self.number}", partial=True)
            if self.number == self.last:
                made.hand_on("grad_outputs", op.needed("grad_outputs").dtype, here, "out1", here, partial=False)
            else:
                made.hand_on(f"state gradients {self.number + 1}", DType.FLOAT, 0, "out1", here)
        else:
            made.read("dy", "grad_outputs", here)
            if self.number < self.last:
                made.read("dh", f"state gradients {self.number + 1}", partial=True)
        for kept in range(self.kept):
            made.read(f"kept{kept}", "kept", here, self.kept, kept)
        if self.cell == "lstm":
            is_last = self.number == self.last
            made.read("dc", "grad_cell" if is_last else f"cell gradients {self.number + 1}", partial=not is_last)
            if self.number:
                made.read("c", "kept", self.row(self.number - 1), self.kept, 4)
            else:
                made.read("c", "c0")
            made.write("dc", f"cell gradients {self.number}" if self.number else "out3", partial=self.number > 0)
        elif self.cell == "gru":
            row = self.row(self.number - 1) if self.number else 0
            made.read("before", OUTPUTS if self.number else "h0", row)
            made.write("direct", f"direct {self.number}", partial=True)
        else:
            made.read("y", OUTPUTS, here)
        for gate in range(self.gates):
            made.write(f"d{gate}", "out", here, self.gates, gate)
            made.write(f"gate{gate}", f"gates {self.number}", 0, self.gates, gate, partial=True)
            if self.cell == "gru":
                made.write(f"inner{gate}", "out1", here, self.gates, gate)
        bodies = {
            "lstm": _lstm_gradient, "gru": _gru_gradient, "tanh": _tanh_gradient, "relu": _relu_gradient,
        }
        return made.vertices(bodies[self.cell])


class _Fields:
    """What the vertices of a set of cells touch: for each unit of each sample a value of each field.

    Args:
        step: The step.
        op: The op.
        runs: Of samples and units.
    """

    def __init__(self, step: Step, op: Op, runs: TileMapping) -> None:
        self.step, self.op = step, op
        self.tiles, begin, end = one_a_run(runs)
        self.counts = end - begin
        self.sample, self.unit = np.divmod(np.arange(step.batch * step.hidden, dtype=np.int64), step.hidden)
        self.given: dict[str, tuple[str, Numbers, DType, bool]] = {}
        self.made: dict[str, tuple[str, Numbers, DType, bool]] = {}
        self.handed: tuple[Region, Region, DType, DType] | None = None
        self.shares = np.zeros_like(self.counts)

    def hand_on(self, name: str, dtype: DType, row: int, to: str, to_row: int, *, partial: bool = True) -> None:
        """Let vertices copy a row of the states, each its share, to that of a result.

        Args:
            name: Of what is copied.
            dtype: Its element type.
            row: Of the time.
            to: Label of the result.
            to_row: Of the time.
            partial: Whether it is handed on by an earlier set.
        """
        size = self.step.batch * self.step.state
        borders = np.arange(len(self.counts) + 1) * size // len(self.counts)
        begin, end = borders[:-1], borders[1:]
        result = self.op.outputs[int(to[3:] or 0)].dtype
        read = ranges(name, begin + row * size, end + row * size, dtype if partial else None)
        self.shares = end - begin
        self.handed = read, ranges(to, begin + to_row * size, end + to_row * size), dtype, result

    def read(self, key: str, name: str, row: int = 0, width: int = 1, place: int = 0, *, partial: bool = False) -> None:
        """Let vertices read the value of a place among ``width`` of each unit, in a row of the time."""
        tensors = dict(zip(operand_labels(self.op), self.op.inputs, strict=True))
        dtype = DType.FLOAT if partial else tensors[name].dtype
        self.given[key] = name, self._elements(row, width, place), dtype, partial

    def write(
        self, key: str, name: str, row: int = 0, width: int = 1, place: int = 0, *, partial: bool = False,
    ) -> None:
        """Let vertices write it; see ``read``."""
        dtype = DType.FLOAT if partial else self.op.outputs[int(name[3:] or 0)].dtype
        self.made[key] = name, self._elements(row, width, place), dtype, partial

    def _elements(self, row: int, width: int, place: int) -> Numbers:
        return ((row * self.step.batch + self.sample) * width + place) * self.step.hidden + self.unit

    def vertices(self, body: Body) -> VertexSet:
        """Return the vertices; results without elements count as written."""
        reads, writes = (
            [
                listed(name, elements, self.counts, dtype if partial else None)
                for name, elements, dtype, partial in fields.values()
            ]
            for fields in (self.given, self.made)
        )
        if self.handed is not None:
            reads.append(self.handed[0])
            writes.append(self.handed[1])
        nobody = np.zeros_like(self.counts)
        empty = [number for number, tensor in enumerate(self.op.outputs) if not tensor.num_elements]
        reads += [ranges(operand_labels(self.op)[0], nobody, nobody)] if empty else []
        writes += [ranges(f"out{number}", nobody, nobody) for number in empty]

        def code(sizes: Sizes) -> Graph:
            cells = Cells()
            given = {key: cells.given(dtype, *sizes[:1]) for key, (_, _, dtype, _) in self.given.items()}
            handed = [cells.given(self.handed[2], *sizes[1:])] if self.handed is not None else []
            nothing = [cells.given(self.op.inputs[0].dtype, 0)] if empty else []
            values = body(cells, given)
            made = [cells.copied(values[key], dtype) for key, (_, _, dtype, _) in self.made.items()]
            if self.handed is not None:
                made.append(cells.copied(handed[0], self.handed[3]))
            return cells.graph([*made, *nothing * len(empty)])

        return VertexSet(self.tiles, tuple(reads), tuple(writes), np.stack((self.counts, self.shares), 1), code)


class Cells(Code):
    """Code of cells, whose values are floats in between."""

    def join(self, name: str, left: Tensor, right: Tensor) -> Tensor:
        """Return ``add``, ``sub`` or ``mul`` of two values."""
        return self.binary(name, left, right, DType.FLOAT)

    def of(self, name: str, value: Tensor) -> Tensor:
        """Return a function of one value."""
        return self.unary(name, value, DType.FLOAT)

    def product(self, first: Tensor, *others: Tensor) -> Tensor:
        """Return the product of several values."""
        for other in others:
            first = self.join("mul", first, other)
        return first

    def from_one(self, value: Tensor) -> Tensor:
        """Return one minus a value."""
        return self.run("aten.rsub.Scalar", [(DType.FLOAT, value.shape)], {"other": 1.0}, self=value)[0]

    def slope(self, value: Tensor) -> Tensor:
        """Return the derivative of a hyperbolic tangent that has a value."""
        return self.from_one(self.join("mul", value, value))


# --------------------------------------------------------------------------- what cells compute
def _tanh(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    h = code.of("tanh", code.join("add", given["x0"], given["h0"]))
    return {"out": h, "state": h}


def _relu(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    h = code.of("relu", code.join("add", given["x0"], given["h0"]))
    return {"out": h, "state": h}


def _lstm(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    sums = [code.join("add", given[f"x{gate}"], given[f"h{gate}"]) for gate in range(4)]
    i, f, o = (code.of("sigmoid", sums[gate]) for gate in (0, 1, 3))
    g = code.of("tanh", sums[2])
    c = code.join("add", code.product(f, given["c"]), code.product(i, g))
    h = code.product(o, code.of("tanh", c))
    kept = {f"kept{number}": value for number, value in enumerate((i, f, g, o, c))}
    return {"out": h, "state": h, "cell": c, "last": c, **kept}


def _gru(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    r, z = (code.of("sigmoid", code.join("add", given[f"x{gate}"], given[f"h{gate}"])) for gate in (0, 1))
    n = code.of("tanh", code.join("add", given["x2"], code.product(r, given["h2"])))
    h = code.join("add", n, code.product(z, code.join("sub", given["before"], n)))
    kept = {f"kept{number}": value for number, value in enumerate((r, z, n, given["h2"]))}
    return {"out": h, "state": h, **kept}


def _total(code: Cells, given: Mapping[str, Tensor]) -> Tensor:
    return code.join("add", given["dy"], given["dh"]) if "dh" in given else given["dy"]


def _lstm_gradient(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    i, f, g, o, c = (given[f"kept{number}"] for number in range(5))
    dh, squashed = _total(code, given), code.of("tanh", c)
    dc = code.join("add", given["dc"], code.product(dh, o, code.slope(squashed)))
    d = (
        code.product(dc, g, i, code.from_one(i)), code.product(dc, given["c"], f, code.from_one(f)),
        code.product(dc, i, code.slope(g)), code.product(dh, squashed, o, code.from_one(o)),
    )
    return {"dc": code.product(dc, f), **_gates(d, d)}


def _gru_gradient(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    r, z, n, hn = (given[f"kept{number}"] for number in range(4))
    dh = _total(code, given)
    dn = code.product(dh, code.from_one(z), code.slope(n))
    dr = code.product(dn, hn, r, code.from_one(r))
    dz = code.product(dh, code.join("sub", given["before"], n), z, code.from_one(z))
    inner = dr, dz, code.product(dn, r)
    return {
        "direct": code.product(dh, z), **_gates((dr, dz, dn), inner),
        **{f"inner{gate}": value for gate, value in enumerate(inner)},
    }


def _tanh_gradient(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    d = (code.product(_total(code, given), code.slope(given["y"])),)
    return _gates(d, d)


def _relu_gradient(code: Cells, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    d = code.run(
        "aten.threshold_backward.default", [(DType.FLOAT, given["y"].shape)], {"threshold": 0.0},
        grad_output=_total(code, given), self=given["y"],
    )
    return _gates(d, d)


def _gates(outer: tuple[Tensor, ...], inner: tuple[Tensor, ...]) -> dict[str, Tensor]:
    """Return gradients of gates: as results, and as what is multiplied by the weights."""
    made = {f"d{gate}": value for gate, value in enumerate(outer)}
    return made | {f"gate{gate}": value for gate, value in enumerate(inner)}
