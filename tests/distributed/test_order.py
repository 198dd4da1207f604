"""The order of sums: the same for any split of the replicas, with few sums at hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchipu.distributed.order import Node, Replicas, additions, pushes, slots_of


def summed(values: np.ndarray, processes: int) -> np.float32:
    """Add values up as so many processes do, each with its share: on a stack first, then by the additions of all."""
    count = len(values) // processes
    nodes: list[Node] = []
    terms: list[np.float32] = []
    for process in range(processes):
        own = Replicas(count, process * count, len(values))
        steps, held = pushes(own.leaves)
        stack = [np.float32(0)] * slots_of(own.leaves)
        for push, leaf in zip(steps, own.leaves, strict=True):
            value = values[leaf.first]
            for place in range(1, push.joins + 1):
                value = np.float32(stack[push.depth - place] + value)
            stack[push.depth - push.joins] = value
        nodes += held
        terms += stack[: len(held)]
    for to, term in additions(nodes):
        terms[to] = np.float32(terms[to] + terms[term])
    return terms[0]


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=48))
def test_any_split_gives_the_same_bits(numbers: list[float]) -> None:
    values = np.array(numbers, np.float32)
    divisors = [size for size in range(1, len(values) + 1) if len(values) % size == 0]
    sums = {summed(values, processes).tobytes() for processes in divisors}
    assert len(sums) == 1
    tolerance = 1e-6 + 1e-5 * float(np.abs(values).sum())
    assert float(np.frombuffer(sums.pop(), np.float32)[0]) == pytest.approx(math.fsum(values), abs=tolerance)


def test_four_replicas_are_added_up_in_pairs() -> None:
    values = np.array([2.0**24, 1, 1, -(2.0**24)], np.float32)
    assert summed(values, 1) == (values[0] + values[1]) + (values[2] + values[3]) != np.float32(sum(map(float, values)))


@pytest.mark.parametrize(("count", "first", "slots", "held"), [
    (1, 0, 1, 1), (4, 0, 2, 1), (4, 4, 2, 1), (16, 16, 4, 1), (6, 0, 2, 2), (3, 3, 2, 2), (7, 0, 3, 3),
])
def test_a_process_has_few_sums_at_hand(count: int, first: int, slots: int, held: int) -> None:
    leaves = Replicas(count, first, first + count).leaves
    assert slots_of(leaves) == slots
    assert len(pushes(leaves)[1]) == held
