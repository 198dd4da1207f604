"""The order in which replicas are added up, which does not depend on how many of them a process runs.

Replicas are the leaves of a binary tree. Each node holds ``2 ** k`` neighbours, of which the first has a number that
``2 ** k`` divides; where their number is no power of two, the largest such nodes are added from the last to the first.
A process adds up the nodes that lie within its own replicas, in the order in which they run, with as many sums at hand
as the tree is deep; the others are added to them later. So the sum over four replicas, ``(0 + 1) + (2 + 3)``, has the
same bits whether one process runs all of them, two run two each, or four run one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Replicas:
    """Which replicas of all a process runs.

    Attributes:
        count: How many.
        first: Number of the first of them.
        total: How many all processes run.
    """

    count: int = 1
    first: int = 0
    total: int = 1

    @property
    def leaves(self) -> tuple[Node, ...]:
        """The replicas as nodes of the tree."""
        return tuple(Node(number) for number in range(self.first, self.first + self.count))


@dataclass(frozen=True, slots=True)
class Node:
    """Neighbouring replicas that are added up among themselves first.

    Attributes:
        first: Number of the first of them.
        count: How many: a power of two that divides ``first``.
    """

    first: int
    count: int = 1

    def is_twin_of(self, other: Node) -> bool:
        """Whether this node and the one behind it are the halves of a node."""
        return self.count == other.count and self.first % (2 * self.count) == 0

    def joined(self) -> Node:
        """Return the node of which this is the first half."""
        return Node(self.first, 2 * self.count)


@dataclass(frozen=True, slots=True)
class Push:
    """How a value goes onto the stack of sums.

    Attributes:
        depth: Sums that lie on the stack before.
        joins: How many of them, the latest first, are added to the value, which then takes their place.
    """

    depth: int
    joins: int


def pushes(nodes: Sequence[Node]) -> tuple[tuple[Push, ...], tuple[Node, ...]]:
    """Return how sums are added up that come in the order of their replicas.

    Args:
        nodes: What comes, without a gap.

    Returns:
        What becomes of each value, and the nodes that lie on the stack at the end.
    """
    stack: list[Node] = []
    done = []
    for node in nodes:
        depth = len(stack)
        while stack and stack[-1].is_twin_of(node):
            node = stack.pop().joined()
        done.append(Push(depth, depth - len(stack)))
        stack.append(node)
    return tuple(done), tuple(stack)


def slots_of(nodes: Sequence[Node]) -> int:
    """Return how many sums are at hand at most."""
    return max(push.depth - push.joins + 1 for push in pushes(nodes)[0])


def additions(nodes: Sequence[Node]) -> tuple[tuple[int, int], ...]:
    """Return the additions that make one sum of values that lie side by side.

    Args:
        nodes: What they are the sums of, in their order and without a gap.

    Returns:
        Pairs (to, from) of positions: the value at ``from`` is added to the one at ``to``. The sum ends at position 0.
    """
    stack: list[int] = []
    pairs = []
    for position, push in enumerate(pushes(nodes)[0]):
        stack.append(position)
        for _ in range(push.joins):
            last = stack.pop()
            pairs.append((stack[-1], last))
    while len(stack) > 1:
        last = stack.pop()
        pairs.append((stack[-1], last))
    return tuple(pairs)
