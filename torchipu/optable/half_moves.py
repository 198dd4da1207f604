"""Chains that only choose among halves, by their signs too, or change these, take them as the 16 bits that they are.

So do those of bfloats. No bit of a value is lost on the way to float and back, nor is one here.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from torchipu.ir.types import DType
from torchipu.optable.chain import Node, Value, needed_nodes
from torchipu.optable.host_tensor import HostTensor

Results = Sequence[tuple[Value, HostTensor]]
SIGN, MAGNITUDE = -0x8000, 0x7FFF
CHANGING = frozenset(("f_neg", "f_abs", "f_copysign", "f_relu", "f_threshold_grad"))
MOVING = {"f_where": "s_where", "f_copy": "s_copy"}
OF_BOOLS = frozenset(("b_and", "b_or", "b_xor", "b_not", "b_copy", "b_where"))


def moved_as_bits(nodes: Sequence[Node], results: Results) -> tuple[list[Node], list[tuple[Value, HostTensor]]] | None:
    """Return the nodes of a chain and its results with floats as words of 16 bits, or None where these do not do.

    Args:
        nodes: Of the chain, numbered by their places; so are those that are returned.
        results: Values and where they are stored.
    """
    needed = sorted(needed_nodes(nodes, (value for value, _ in results)))
    if not any(nodes[number].operation in CHANGING for number in needed):
        return None  # copies alone read and write as they lie
    types = {held.dtype for value, held in results if value.kind == "f"}
    types |= {held.dtype for number in needed if (held := nodes[number].operand) and nodes[number].kind == "f"}
    if len(types) != 1 or not types <= {DType.HALF, DType.BFLOAT}:
        return None
    (dtype,) = types
    if not all(_is_moved(nodes[number], dtype) for number in needed):
        return None
    moved = _Moved(dtype)
    for number in needed:
        moved.add(number, nodes[number])
    return moved.nodes, [(moved.values[value.number], _as_words(held)) for value, held in results]


def _is_moved(node: Node, dtype: DType) -> bool:
    if node.kind == "b":
        return not node.operation or node.operation in OF_BOOLS
    if node.kind != "f":
        return False
    if node.constant is not None:
        return _bits_of(node.constant, dtype) is not None
    if node.operation == "f_threshold_grad" and node.scalars != (0.0,):
        return False
    return not node.operation or node.operation in CHANGING or node.operation in MOVING


def _bits_of(number: float, dtype: DType) -> int | None:
    """Return the bits of a number as those of a signed word; None for one that is none of the type, or not a number."""
    try:
        (word,) = struct.unpack("<i", struct.pack("<f", number))
        low, high = struct.unpack("<Hh", struct.pack("<f", number))
        (half,) = struct.unpack("<h", struct.pack("<e", number)) if dtype is DType.HALF else (high,)
    except OverflowError:
        return None
    is_same = low == 0 if dtype is DType.BFLOAT else struct.unpack("<e", struct.pack("<h", half))[0] == number
    is_float = struct.unpack("<f", struct.pack("<i", word))[0] == number
    return int(half) if is_same and is_float else None


def _as_words(held: HostTensor) -> HostTensor:
    return replace(held, dtype=DType.SHORT) if held.dtype.is_floating else held


@dataclass(slots=True)
class _Moved:
    """The nodes that are made anew.

    Attributes:
        dtype: Of what is moved.
        nodes: So far.
        values: Of the nodes that there were, by their numbers.
    """

    dtype: DType
    nodes: list[Node] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)

    def add(self, number: int, node: Node) -> None:
        inputs = tuple(self.values[value.number] for value in node.inputs)
        change = _CHANGES.get(node.operation)
        if change is not None:
            self.values[number] = change(self, inputs)
        elif node.kind == "b":
            self.values[number] = self._append(replace(node, inputs=inputs))
        elif node.constant is not None:
            self.values[number] = self._append(Node("s", constant=_bits_of(node.constant, self.dtype)))
        elif node.operand is not None:
            self.values[number] = self._append(Node("s", operand=_as_words(node.operand)))
        else:
            self.values[number] = self._append(Node("s", operation=MOVING[node.operation], inputs=inputs))

    def masked(self, operation: str, value: Value, bits: int) -> Value:
        """Return a value and a constant together."""
        return self.both(operation, value, self._append(Node("s", constant=bits)))

    def both(self, operation: str, a: Value, b: Value) -> Value:
        return self._append(Node("s", operation=operation, inputs=(a, b)))

    def by_least(self, operation: str, *values: Value) -> Value:
        """Return what an instruction makes of values by where the negative numbers end."""
        least = self._append(Node("s", constant=_bits_of(-math.inf, self.dtype)))
        return self._append(Node("s", operation=operation, inputs=(*values, least)))

    def _append(self, node: Node) -> Value:
        self.nodes.append(node)
        return Value(len(self.nodes) - 1, node.kind)


_CHANGES: dict[str, Callable[[_Moved, tuple[Value, ...]], Value]] = {
    "f_neg": lambda moved, of: moved.masked("s_xor", of[0], SIGN),
    "f_abs": lambda moved, of: moved.masked("s_and", of[0], MAGNITUDE),
    "f_copysign": lambda moved, of: moved.both(
        "s_or", moved.masked("s_and", of[0], MAGNITUDE), moved.masked("s_and", of[1], SIGN),
    ),
    "f_relu": lambda moved, of: moved.by_least("s_relu", *of),
    "f_threshold_grad": lambda moved, of: moved.by_least("s_relu_grad", *of),
}
