"""Products of complex numbers whose parts lie side by side, which one instruction makes as they lie."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple

from torchipu.optable.chain import Node, Value
from torchipu.optable.host_tensor import HostTensor, take_turns


class Part(NamedTuple):
    """A part of an operand.

    Attributes:
        held: Where it lies.
        sign: -1 where the product takes its negative.
    """

    held: HostTensor
    sign: float


class PairProduct(NamedTuple):
    """A product of complex numbers.

    Attributes:
        results: Places of the real and of the imaginary part among the results of the chain.
        operands: Real parts of the factors, which lie before the imaginary ones.
        others: The imaginary parts.
        signs: -1 for a factor that is conjugated.
    """

    results: tuple[int, int]
    operands: tuple[HostTensor, HostTensor]
    others: tuple[HostTensor, HostTensor]
    signs: tuple[float, float]


def product_of_pairs(
    nodes: Sequence[Node], results: Sequence[tuple[Value, HostTensor]], turns: Mapping[int, int],
) -> PairProduct | None:
    """Return the product that a chain is; None where it is anything else, or stores anything else.

    Args:
        nodes: Of the chain.
        results: Values and where they are stored.
        turns: Places of results that take turns in memory with another one, and the place of that.
    """
    if len(results) != 2 or len(turns) != 2:
        return None
    real, imaginary = sorted((0, 1), key=lambda place: results[place][1].offset)
    differs, adds = (nodes[results[place][0].number] for place in (real, imaginary))
    sign = 1.0
    if adds.operation == "f_neg":
        adds, sign = nodes[adds.inputs[0].number], -1.0
    if differs.operation != "f_sub" or adds.operation != "f_add":
        return None
    reals, imaginaries, one, other = (
        _factors(nodes, value) for value in (*differs.inputs, *adds.inputs)
    )
    if reals is None or imaginaries is None or one is None or other is None:
        return None
    for (a, b), (c, d) in _orders(reals, imaginaries):
        crossed = {_places(one), _places(other)}
        are_parts = take_turns(a.held, c.held) and take_turns(b.held, d.held) and a.sign == b.sign == 1
        if not are_parts or a.held.offset > c.held.offset or b.held.offset > d.held.offset:
            continue
        if crossed == {_places((a, d)), _places((b, c))}:
            return PairProduct((real, imaginary), (a.held, b.held), (c.held, d.held), (sign * c.sign, sign * d.sign))
    return None


def _factors(nodes: Sequence[Node], value: Value) -> tuple[Part, Part] | None:
    """Return what a product of two operands in memory multiplies."""
    node = nodes[value.number]
    if node.operation not in ("f_mul", "f_square"):
        return None
    parts = [_part(nodes, factor) for factor in node.inputs]
    first, second = parts if len(parts) == 2 else (*parts, *parts)
    return None if first is None or second is None else (first, second)


def _part(nodes: Sequence[Node], value: Value) -> Part | None:
    node, sign = nodes[value.number], 1.0
    if node.operation == "f_neg":
        node, sign = nodes[node.inputs[0].number], -1.0
    return None if node.operand is None or node.kind != "f" else Part(node.operand, sign)


def _orders(one: tuple[Part, Part], other: tuple[Part, Part]) -> Iterator[tuple[tuple[Part, ...], tuple[Part, ...]]]:
    """Give the ways in which factors may belong to those of another product."""
    for order in permutations(other):
        yield one, order


def _places(parts: tuple[Part, ...]) -> frozenset[tuple[int, int, tuple[int, ...], float]]:
    return frozenset((part.held.buffer, part.held.offset, part.held.strides, part.sign) for part in parts)
