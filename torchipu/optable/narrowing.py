"""Chains whose integers all have one type of fewer than 64 bits compute in that type: more elements in a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchipu.ir.types import DType
from torchipu.optable.chain import WRAPS, Node, Value, needed_nodes
from torchipu.optable.host_tensor import HostTensor

Results = Sequence[tuple[Value, HostTensor]]
WIDTHS = {DType.INT: "i", DType.SHORT: "s", DType.CHAR: "c", DType.UNSIGNED_CHAR: "u"}
"""The class of registers of a type; bytes without a sign have one of their own."""
MODULAR = frozenset(["copy", "where", "add", "sub", "mul", "neg", "not", "and", "or", "xor", "from_b", "from_f"])
"""Instructions of which the low bits of a result follow from the low bits of its operands."""
EXACT = frozenset(["abs", "max", "min", "shift_right"])
"""Those that need the values themselves; of a shift to the left that is the number of bits alone."""
KEEPING = frozenset(["copy", "where", "and", "or", "xor", "max", "min", "shift_right"])
"""Those whose result is in the range of the type where operands are."""
LEAVING = frozenset(["b_eq_l", "b_ne_l", "b_lt_l", "b_le_l", "b_from_l", "f_from_l"])
"""Those that make something else of integers; they need the values."""
SIGNED = frozenset(["max", "min", "shift_right"])
_MOVES = {
    "i_copy": "f_copy", "i_where": "f_where", "c_copy": "b_copy", "c_where": "b_where", "c_from_b": "b_copy",
}
"""Words and bytes are moved as floats and bools are."""


def copy_of(kind: str) -> str:
    """Return the instruction that copies a register of a class."""
    name = f"{'c' if kind == 'u' else kind}_copy"
    return _MOVES.get(name, name)


def narrowed(nodes: Sequence[Node], results: Results) -> tuple[list[Node], list[tuple[Value, HostTensor]]] | None:
    """Return the nodes of a chain and its results with integers of fewer bits, or None where that is not the same.

    Args:
        nodes: Of the chain, numbered by their places; so are those that are returned, except that none reads what only
            cuts off the upper bits of another.
        results: Values and where they are stored.
    """
    needed = needed_nodes(nodes, (value for value, _ in results))
    operands = [nodes[number].operand for number in needed if nodes[number].kind == "l"]
    types = {held.dtype for held in operands if held is not None}
    types |= {held.dtype for value, held in results if value.kind == "l"}
    if len(types) != 1 or not types <= set(WIDTHS):
        return None
    (dtype,) = types
    in_range: set[int] = set()
    for number in sorted(needed):
        if not _is_same(nodes, number, dtype, in_range):
            return None
    return _rewritten(nodes, results, dtype)


def _is_same(nodes: Sequence[Node], number: int, dtype: DType, in_range: set[int]) -> bool:
    """Whether a node has the same low bits, or is no integer and the same, when it is computed in the type.

    Args:
        nodes: All of them.
        number: Of the node.
        dtype: The type.
        in_range: Nodes before this one whose values the type holds; it is added where its value is one.
    """
    node = nodes[number]
    integers = [value.number for value in node.inputs if value.kind == "l"]
    are_exact = in_range.issuperset(integers)
    if node.kind != "l":
        return not integers or (node.operation in LEAVING and are_exact)
    name = node.operation.removeprefix("l_")
    if node.constant is not None:
        bits = 8 * dtype.host_bytes
        least = 0 if dtype is DType.UNSIGNED_CHAR else -(1 << (bits - 1))
        is_held = least <= node.constant < least + (1 << bits)
    elif node.operand is not None:
        is_held = True
    else:
        is_held = node.operation == WRAPS[dtype] or name == "from_b" or (name in KEEPING and are_exact)
    if is_held:
        in_range.add(number)
    if not node.operation or node.operation == WRAPS[dtype] or name in MODULAR:
        return True
    if name == "shift_left":
        return node.inputs[1].number in in_range
    return are_exact and name in EXACT and (name != "abs" or dtype is not DType.UNSIGNED_CHAR)


def _rewritten(
    nodes: Sequence[Node], results: Results, dtype: DType,
) -> tuple[list[Node], list[tuple[Value, HostTensor]]]:
    kind = WIDTHS[dtype]
    whole: dict[int, int] = {}  # by what cuts off its upper bits

    def value_of(value: Value) -> Value:
        return Value(whole.get(value.number, value.number), kind) if value.kind == "l" else value

    made = []
    for number, node in enumerate(nodes):
        if node.operation == WRAPS[dtype]:
            whole[number] = value_of(node.inputs[0]).number
        inputs = tuple(map(value_of, node.inputs))
        made.append(replace(
            node, kind=kind if node.kind == "l" else node.kind, operation=_instruction(node, kind), inputs=inputs,
        ))
    return made, [(value_of(value), held) for value, held in results]


def _instruction(node: Node, kind: str) -> str:
    """Return the name of an instruction in another class of integers."""
    if node.operation in LEAVING:
        sign_counts = kind == "u" and node.operation in ("b_lt_l", "b_le_l", "f_from_l")
        return node.operation[:-1] + ("u" if sign_counts else "c" if kind == "u" else kind)
    if not node.operation or node.kind != "l":
        return node.operation
    name = node.operation.removeprefix("l_")
    width = "c" if kind == "u" else kind
    suffix = "_u" if kind == "u" and name in SIGNED else ""
    return _MOVES.get(f"{width}_{name}", f"{width}_{name}{suffix}")
