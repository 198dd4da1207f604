"""Host plans of a graph whose sizes are known when it is called: made once for all sizes that decide alike.

A planner that is given numbers which remember how they were computed makes a plan of such numbers. What it has decided
by them, as how many rows a chunk has, is noted as guards; where these hold for the sizes of a call, its plan is the one
made before with plain numbers in it, and memory laid out for them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchipu.host.edge import Edge
from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner
from torchipu.host.sized_steps import SizedSteps
from torchipu.ir.graph import Graph, Tensor
from torchipu.ir.settling import Settling
from torchipu.ir.sizes import Sizes
from torchipu.optable.host_tensor import contiguous_strides, order_of

MOST_PLANS = 32
"""Plans with sizes in them that are kept of a graph."""
MOST_MISSES = 12
"""Sets of sizes in a row that no plan with sizes served, after which each is planned by itself: something in the graph
takes a number as it is."""

_LOG = logging.getLogger("torchipu.sizes")

Orders = tuple[tuple[int, tuple[int, ...]], ...]
"""By its number the order of dimensions in which a tensor lies that is not row-major."""
Lying = tuple[tuple[int, tuple[int, ...], str], ...]
"""The same, with how far elements of each of these dimensions are apart: "d" as those within it fill, "0" not at all,
"f" by a number of its own, as where a tensor is a part of a larger one."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a host plan is made for, without numbers: see ``Planner`` and ``Edge`` for each.

    Attributes:
        lying: Inputs that do not lie row-major without gaps.
        made: Outputs in other orders.
        frozen: Numbers of inputs that seldom change.
        written: Outputs and the inputs that they may be stored over.
        saved: Numbers of outputs in any order.
        plain: Numbers of outputs that would be copied.
        is_strict: Whether no transforms are made.
        is_alone: Whether no other program computes a part of the same.
    """

    lying: Lying
    made: Orders
    frozen: tuple[int, ...]
    written: tuple[tuple[int, int], ...]
    saved: frozenset[int]
    plain: frozenset[int]
    is_strict: bool
    is_alone: bool


@dataclass(slots=True)
class Made:
    """Plans with sizes in them, for the same terms.

    Attributes:
        plans: The one that served last is the first.
        misses: Sets of sizes since one served.
    """

    plans: list[SizedSteps] = field(default_factory=list)
    misses: int = 0


class SizedPlans:
    """The host plans of a graph with sizes.

    Args:
        graph: Placed, with sizes.
        sizes: These.
    """

    def __init__(self, graph: Graph, sizes: Sizes) -> None:
        self.graph = graph
        self.sizes = sizes
        self._made: dict[Terms, Made] = {}

    def plan(
        self, given: Sequence[Any], terms: Terms, lying: Mapping[int, tuple[int, ...]],
        made: Mapping[int, tuple[int, ...]],
    ) -> HostPlan | None:
        """Return the plan for the sizes of a call; None where the graph has to be planned with these.

        Args:
            given: What the sizes are that a call gives.
            terms: What else the plan is for.
            lying: Strides of inputs by number, as the terms have them in orders.
            made: Strides of outputs.
        """
        with self.sizes.lock:
            kept = self._made.setdefault(terms, Made())
            apart = _free(terms.lying, lying)
            numbers = self.sizes.numbers(given, apart)
            found = next((one for one in kept.plans if one.guards.hold(numbers)), None)
            if found is not None:
                kept.misses = 0
            elif kept.misses < MOST_MISSES:
                kept.misses += 1
                found = self._planned(given, apart, terms)
            if found is None:
                return None
            kept.plans[:] = [found, *(one for one in kept.plans if one is not found)][:MOST_PLANS]
            numbers = self.sizes.numbers(given, apart)
            return found.settled(numbers, lying, made)

    def _planned(self, given: Sequence[Any], apart: Sequence[int], terms: Terms) -> SizedSteps | None:
        """Plan with sizes; what is decided by them is decided by these."""
        graph = self.graph
        self.sizes.set(given, apart)
        try:
            with self.sizes.watched() as guards:
                lying = self._lying(terms.lying)
                made = {number: _strides(graph.outputs[number], order) for number, order in terms.made}
                planner = Planner(
                    graph, input_strides={graph.inputs[number]: strides for number, strides in lying.items()},
                    frozen=[graph.inputs[number] for number in terms.frozen], is_strict=terms.is_strict,
                    is_alone=terms.is_alone,
                    edge=Edge(made, terms.saved, terms.plain, written=dict(terms.written)),
                )
                emitted = planner.emitted()
            if emitted.sums.reduced or emitted.states:
                raise TypeError("sums and states of several replicas have no sizes")
            return SizedSteps(guards, len(self.sizes.now), emitted, lying, made)
        except Exception as error:  # planning with plain numbers succeeds, or tells what is wrong
            _LOG.info("%s: each set of sizes is planned by itself", graph.name, exc_info=error)
            self._made[terms].misses = MOST_MISSES
            return None

    def _lying(self, inputs: Lying) -> dict[int, tuple[Any, ...]]:
        """Return the strides of inputs by number, with sizes."""
        found, count = {}, 0
        for number, order, steps in inputs:
            shape, dense = self.graph.inputs[number].shape, 1
            strides: dict[int, Any] = {}
            for dim, step in zip(reversed(order), reversed(steps), strict=True):
                strides[dim] = {"d": dense, "0": 0}.get(step)
                if strides[dim] is None:
                    strides[dim] = self.sizes.apart(count)
                    count += 1
                dense = (strides[dim] or dense) * shape[dim]
            found[number] = tuple(strides[dim] for dim in range(len(order)))
        return found


@dataclass(frozen=True, slots=True)
class PlansOfCall:
    """The host plans of a graph with sizes, for those of a call.

    Attributes:
        plans: For all sizes.
        given: What the sizes are that a call gives.
        settling: What puts them in, and has made the tensors that the call knows.
    """

    plans: SizedPlans
    given: Sequence[Any]
    settling: Settling

    def plan(
        self, terms: Terms, lying: Mapping[int, tuple[int, ...]], made: Mapping[int, tuple[int, ...]],
    ) -> HostPlan | None:
        """Return the plan; None where the graph has to be planned with these sizes. See `SizedPlans.plan`."""
        return self.plans.plan(self.given, terms, lying, made)

    def graph(self) -> Graph:
        """Return the graph with these sizes."""
        return self.settling.graph(self.plans.graph)


def orders_of(shapes: Mapping[int, Sequence[int]], strides: Mapping[int, tuple[int, ...]]) -> Orders:
    """Return the orders of dimensions in which tensors lie, by number."""
    return tuple((number, order_of(shapes[number], lies)) for number, lies in sorted(strides.items()))


def lying_of(shapes: Mapping[int, Sequence[int]], strides: Mapping[int, tuple[int, ...]]) -> Lying:
    """Return how tensors lie, by number."""
    found = []
    for number, order in orders_of(shapes, strides):
        shape, lies, dense, steps = shapes[number], strides[number], 1, []
        for dim in reversed(order):
            steps.append("d" if lies[dim] == dense else "0" if lies[dim] == 0 else "f")
            dense = (lies[dim] or dense) * shape[dim]
        found.append((number, order, "".join(reversed(steps))))
    return tuple(found)


def _free(inputs: Lying, strides: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Return the strides that are numbers of their own, in the order in which `SizedPlans` asks for them."""
    return [
        strides[number][dim] for number, order, steps in inputs
        for dim, step in zip(reversed(order), reversed(steps), strict=True) if step == "f"
    ]


def _strides(tensor: Tensor, order: Sequence[int]) -> tuple[Any, ...]:
    """Return the strides of a tensor without gaps in an order of its dimensions."""
    dense = contiguous_strides([tensor.shape[dim] for dim in order])
    found = dict(zip(order, dense, strict=True))
    return tuple(found[dim] for dim in range(len(order)))

