"""Fused chains of elementwise ops: how a chain is built. `optable.emission` makes one kernel call of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchipu._kernels.table.elementwise import MAX_DIMS
from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.size import Size
from torchipu.ir.types import DType
from torchipu.optable.half_values import is_half_valued
from torchipu.optable.host_tensor import (
    TO_NEAREST,
    HostTensor,
    Rounding,
    broadcast,
    collapse,
    contiguous_strides,
    is_transposed,
)
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import spec_of

MAX_OPERANDS = 24  # operands and results of one chain
LEAST_TURNED = 1 << 12  # elements from which on a transposed operand is turned by a step of its own: sooner than walked
# Register classes: f float32, l int64, b bool; the type that a register holds as it stands in memory.
NATIVE = {"f": DType.FLOAT, "l": DType.LONG, "b": DType.BOOL}
WRAPS = {
    DType.INT: "l_wrap_int",
    DType.SHORT: "l_wrap_short",
    DType.CHAR: "l_wrap_char",
    DType.UNSIGNED_CHAR: "l_wrap_uchar",
}
CONVERSIONS = {
    "fl": "f_from_l",
    "fb": "f_from_b",
    "lf": "l_from_f",
    "lb": "l_from_b",
    "bf": "b_from_f",
    "bl": "b_from_l",
}


def class_of(dtype: DType) -> str:
    """Return the register class that holds a dtype's values exactly."""
    return "f" if dtype.is_floating else "b" if dtype is DType.BOOL else "l"


# Eager takes 0-d operands of these as they are, beside halves too.
TAKES_NUMBERS = frozenset(["add", "sub", "rsub", "mul", "div"])
TAKES_INTEGERS = frozenset(["mul", "div"])
"""Of these a 0-d integer too, as the second operand: zero times what is beyond the range of half is zero."""


def _becomes_half(operand: Tensor, op: Op, name: str) -> bool:
    """Whether an operand is an integer or a 0-d float that torch promotes to half for this op."""
    floats = [tensor for tensor in op.inputs if tensor.dtype.is_floating]
    deciding = [tensor for tensor in floats if tensor.shape] or floats
    if {tensor.dtype for tensor in deciding} != {DType.HALF}:
        return False
    if class_of(operand.dtype) == "l":
        return bool(operand.shape) or name != "other" or op.kind not in TAKES_INTEGERS
    return (operand.dtype is DType.FLOAT and op.kind not in TAKES_NUMBERS)


def _integer_type(op: Op) -> DType | None:
    """Return the type in which torch computes with integer operands: 0-d ones have no say beside others."""
    integers = [tensor for tensor in op.inputs if class_of(tensor.dtype) == "l"]
    types = {tensor.dtype for tensor in integers if tensor.shape} or {tensor.dtype for tensor in integers}
    if types == {DType.CHAR, DType.UNSIGNED_CHAR}:
        return DType.SHORT
    return max(types, key=lambda dtype: dtype.host_bytes, default=None)


def _wrapped(number: float, op: Op) -> int:
    """Return what becomes of a whole number beside integer operands: -1 beside bytes is 255."""
    dtype = _integer_type(op)
    if dtype is None:
        return int(number)
    bits = 8 * dtype.host_bytes
    least = 0 if dtype is DType.UNSIGNED_CHAR else -(1 << (bits - 1))
    return (int(number) - least) % (1 << bits) + least


def _wrapping(operand: Tensor, op: Op) -> str | None:
    """Return the instruction that makes of a 0-d integer what it is in a type too narrow for it; None where it fits."""
    dtype = _integer_type(op)
    if operand.shape or dtype is None or dtype is operand.dtype or operand.dtype.host_bytes < dtype.host_bytes:
        return None
    return WRAPS.get(dtype) if class_of(operand.dtype) == "l" else None


@dataclass(frozen=True, slots=True)
class Value:
    """A value inside a chain: its number and its register class."""

    number: int
    kind: str


@dataclass(slots=True)
class Node:
    """How a value comes about: an operand in memory, a constant, or an instruction.

    Attributes:
        kind: Register class.
        operand: Memory that it is loaded from.
        constant: Its constant value.
        operation: Name of the instruction.
        inputs: Values that the instruction reads.
        scalars: Constants that the instruction takes.
        random: Words of the random op that a rounding draws from.
    """

    kind: str
    operand: HostTensor | None = None
    constant: float | None = None
    operation: str = ""
    inputs: tuple[Value, ...] = ()
    scalars: tuple[float, ...] = ()
    random: HostTensor | None = None


def _real(number: Any) -> Any:
    """Return a number as a float; one that is computed of sizes as it is, so that a plan serves others too."""
    return number if isinstance(number, Size) else float(number)


def needed_nodes(nodes: Sequence[Node], values: Iterable[Value]) -> set[int]:
    """Return the numbers of the nodes that values come about by.

    Args:
        nodes: Numbered by their places.
        values: Of some of them.
    """
    needed: set[int] = set()
    waiting = [value.number for value in values]
    while waiting:
        number = waiting.pop()
        if number not in needed:
            needed.add(number)
            waiting += [value.number for value in nodes[number].inputs]
    return needed


class Chain:
    """Builds the program of one chain.

    Args:
        plan: Says where operands lie.
        shape: Shape of every result.
        order: Of its dimensions, in which elements are gone through; as they stand unless given.
    """

    def __init__(self, plan: HostPlanner, shape: Sequence[int], order: Sequence[int] | None = None) -> None:
        self.plan = plan
        self.shape = tuple(shape)
        self.order = None if order is None else tuple(order)
        self.nodes: list[Node] = []
        self.known: dict[object, Value] = {}
        self.exact: dict[Value, tuple[Value, DType]] = {}
        self._half_valued: list[bool] = []  # of each node: whether a half holds it

    # ------------------------------------------------------------------ what instructions are made of
    def read(self, tensor: Tensor) -> Value:
        """Return a tensor's value: made in this chain, or loaded."""
        if tensor not in self.known:
            held = self.plan.value(tensor, contiguous=False)
            if self._num_dims(held) > MAX_DIMS or self._is_turned(held):
                held = self.plan.value(tensor)
            self.known[tensor] = self.load(held)
        return self.known[tensor]

    def load(self, held: HostTensor) -> Value:
        """Return the value that lies in memory, broadcast to the chain's shape."""
        return self._add(Node(class_of(held.dtype), operand=self._shown(held)))

    def scalar(self, number: float, kind: str) -> Value:
        """Return a constant."""
        number = _real(number) if kind == "f" else int(bool(number)) if kind == "b" else int(number)
        key = (repr(number), kind)
        if key not in self.known:
            self.known[key] = self._add(Node(kind, constant=number))
        return self.known[key]

    def run(self, operation: str, *inputs: Value, scalars: Sequence[float] = ()) -> Value:
        """Return the result of an instruction; its name begins with the class of the result."""
        return self._add(Node(operation[0], operation=operation, inputs=inputs, scalars=tuple(map(_real, scalars))))

    def round(self, value: Value, rounding: Rounding) -> Value:
        """Return the value as a half holds it."""
        if rounding is TO_NEAREST:
            return self.run("f_round_half", value)
        node = Node("f", operation="f_round_by", inputs=(value,), scalars=(float(rounding.overflow),))
        node.random = rounding.random
        return self._add(node)

    def convert(self, value: Value, kind: str) -> Value:
        """Return the value in another register class."""
        return value if value.kind == kind else self.run(CONVERSIONS[kind + value.kind], value)

    def argument(self, op: Op, name: str, kind: str) -> Value:
        """Return an argument of an op, a tensor or a Python number, in a register class."""
        tensor = op.operand(name)
        if tensor is not None:
            value = self.convert(self.read(tensor), kind)
            wrapping = _wrapping(tensor, op) if kind == "l" else None
            if wrapping is not None:
                return self.run(wrapping, value)
            # Beside halves, integers become halves before they are computed with.
            return self.run("f_round_half", value) if kind == "f" and _becomes_half(tensor, op, name) else value
        number = op.number(name)
        return self.scalar(_wrapped(number, op) if kind == "l" else number, kind)

    # ------------------------------------------------------------------ results
    def bind(self, tensor: Tensor, value: Value, rounding_of: Rounding = TO_NEAREST) -> None:
        """Make a value the result of an op, rounded to the result's type for those who read it in this chain."""
        exact = self.convert(value, class_of(tensor.dtype))
        if tensor.dtype is DType.HALF and self.is_kept_by(exact, rounding_of):
            self.known[tensor] = exact
            return
        if tensor.dtype is DType.HALF and rounding_of is not TO_NEAREST:
            self.known[tensor] = self.round(exact, rounding_of)
            return
        rounding = "f_round_half" if tensor.dtype is DType.HALF else WRAPS.get(tensor.dtype)
        node = self.nodes[exact.number]
        is_loaded_wider = node.operand is not None and node.operand.dtype is not tensor.dtype
        if rounding and (node.operation or is_loaded_wider):
            rounded = self.run(rounding, exact)
            self.exact[rounded] = exact, tensor.dtype  # a store of that type rounds by itself
            exact = rounded
        self.known[tensor] = exact

    def is_kept_by(self, value: Value, rounding: Rounding) -> bool:
        """Whether a value is the same once it is rounded to half."""
        return self._half_valued[value.number] and rounding.overflow is HalfOverflow.INFINITY

    def keeps(self, op: Op, result: Tensor, value: Value) -> bool:
        """Whether a value is that of a half result of an op as it stands, so that nothing is drawn to round it."""
        if result.dtype is not DType.HALF or op.text("half_overflow", "infinity") != "infinity":
            return False
        return value.kind == "b" or self._half_valued[value.number]

    def rounded(self, value: Value) -> Value:
        """Return a value that is stored as half as such a store leaves it."""
        return value if self._half_valued[value.number] else self.run("f_round_half", value)

    def to_store(self, value: Value, held: HostTensor) -> Value:
        """Return what a store makes a value from: a cast to a wider type keeps what rounding has left."""
        exact, dtype = self.exact.get(value, (value, held.dtype))
        return exact if dtype is held.dtype else value

    def _add(self, node: Node) -> Value:
        self.nodes.append(node)
        operands = [self._half_valued[value.number] for value in node.inputs if value.kind == "f"]
        self._half_valued.append(node.kind == "f" and is_half_valued(
            node.operation, node.scalars, operands, node.operand, node.constant,
        ))
        return Value(len(self.nodes) - 1, node.kind)

    def _shown(self, held: HostTensor) -> HostTensor:
        view = broadcast(held, self.shape)
        return view if self.order is None else view.permuted(self.order)

    def _is_turned(self, held: HostTensor) -> bool:
        """Whether neighbours of the chain lie apart in an operand while others lie side by side, as in a transpose."""
        shown = self._shown(held)
        if len(held.shape) != len(self.shape) or 0 in shown.strides:
            return False
        # Of sizes that change some decide whether there is enough to turn, but few whether it is turned: asked first.
        is_turned = is_transposed(replace(shown, strides=contiguous_strides(shown.shape)), shown)
        return is_turned and held.num_elements >= LEAST_TURNED

    def _num_dims(self, held: HostTensor) -> int:
        view = self._shown(held)
        return len(collapse(view.shape, view.strides)[0])


Instruction = Callable[[Chain, Op], Value | tuple[Value, ...]]
"""How an op enters a chain: the `instruction` of its record; it returns the value of each result."""


# --------------------------------------------------------------------------- which ops
def is_widening(op: Op) -> bool:
    """Return whether an op makes a float of a half and does nothing else."""
    is_cast = op.target in ("aten._to_copy.default", "ipu.cast.default") and len(op.inputs) == 1
    return is_cast and (op.inputs[0].dtype, op.outputs[0].dtype) == (DType.HALF, DType.FLOAT)


def can_join(op: Op) -> bool:
    """Return whether an op is elementwise, so that it may enter a chain."""
    spec = spec_of(op)
    return spec is not None and spec.instruction is not None
