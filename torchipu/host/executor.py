"""Runs a graph once a call, through plans for the layouts that its inputs have."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from torchipu import forks
from torchipu._kernels.abi import Call, are_row_major
from torchipu.host import output_memory
from torchipu.host.apartness import Apartness
from torchipu.host.bound_plan import FIRST_EXTERNAL, BoundPlan
from torchipu.host.complex_pairs import COMPLEX, strides_of_complex
from torchipu.host.draws import Draws
from torchipu.host.edge import Edge
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.kept_states import undrawn_where_it_fails
from torchipu.host.observation import Observation
from torchipu.host.output_memory import Room
from torchipu.host.packing import Block, Packing
from torchipu.host.plan import HostPlan
from torchipu.host.planner import Planner
from torchipu.host.resting import is_resting, zeros_of
from torchipu.host.sized_plans import PlansOfCall, Terms, lying_of, orders_of
from torchipu.host.unseen_writes import warn_of_unseen
from torchipu.ir.garbage import seldom_collected
from torchipu.ir.graph import Graph, Tensor

MAX_PLANS = 8
GRAPH_BYTES = 2048
"""What an op of a graph takes in Python: an estimate, to bound what is kept."""

Layout = tuple[tuple[int, ...] | None, ...] | None
"""Strides of each argument that is not row-major; None where all are."""
Key = tuple[Layout, bool]
"""What a plan is made for: a layout, and whether inputs that are written over overlap no others."""
HOST_THREADS = "TORCHIPU_HOST_THREADS"


def default_threads() -> int:
    """Return how many host threads a program uses unless told: the CPUs this process may run on.

    A launcher that starts several processes gives each its share of them by the variable ``TORCHIPU_HOST_THREADS``.
    """
    available = len(os.sched_getaffinity(0))
    share = os.environ.get(HOST_THREADS, "")
    return min(int(share), available) if share.isdecimal() and int(share) > 0 else available


def threads_of_torch() -> int:
    """Return how many host threads a program of ``torch.compile`` uses unless told: those of torch, at most one a CPU.

    Dynamo compiles anew once ``torch.set_num_threads`` has been called. The share that a launcher gives comes first.
    """
    return default_threads() if os.environ.get(HOST_THREADS) else min(default_threads(), torch.get_num_threads())


class GraphExecutor:
    """Runs a graph once a call, on tensors whose strides may differ from call to call.

    Args:
        graph: Placed graph.
        constants: Values of the graph inputs that the caller does not give.
        threads: Host threads; None for all CPUs.
        seed: Key of random ops; None draws one from torch's default generator at each call.
        frozen: Inputs of which what depends on them alone is computed at the first call, and again only after they
            changed.
        traps: Whether a floating-point exception stops the graph.
        counts: Whether the magnitudes of all results are counted; `counting.statistics` returns them.
        is_strict: Whether convolutions are the sums that define them, and no transforms are made.
        is_alone: Whether no other program computes a part of the same, whose values would have to have the same bits.
        sized: Plans of the same graph with sizes that are known when it is called; its ops may have sizes in them then.
        edge: What the caller has and expects.
    """

    def __init__(
        self, graph: Graph, constants: Mapping[Tensor, torch.Tensor] | None = None, *, threads: int | None = None,
        seed: int | None = None, frozen: Sequence[Tensor] = (), traps: bool = False, counts: bool = False,
        is_strict: bool = False, is_alone: bool = False, sized: PlansOfCall | None = None, edge: Edge | None = None,
    ) -> None:
        self.graph = graph
        self.constants = {tensor: value.contiguous() for tensor, value in (constants or {}).items()}
        self.threads = threads or default_threads()
        self.seed = seed
        self.traps, self.counts, self.is_strict = traps, counts, is_strict
        self.calls = 0
        self.is_alone, self.sized = is_alone, sized
        self.edge = edge or Edge()
        self.apartness = Apartness(graph.inputs, set(self.edge.written.values()))
        self.frozen = [*frozen, *self.constants] if frozen else []
        self.frozen_places = [place for place, tensor in enumerate(graph.inputs) if tensor in set(frozen)]
        self._has_warned = False  # of weights that were written as torch does not count
        self._lock = forks.lock()
        self.output_memory = output_memory.SHARED.get()
        self.border_memory = output_memory.BORDER.get()
        self.plans: dict[Key, BoundPlan] = {}
        self.last_layout: Layout = None
        self.shared_results: set[int] = set()  # numbers of results that may lie in memory of another, or of an input
        self.arguments = [tensor for tensor in graph.inputs if tensor not in self.constants]
        bfloats = self.edge.bfloat_inputs
        self.types_held = [
            torch.bfloat16 if tensor in bfloats else TORCH_DTYPES[tensor.dtype] for tensor in self.arguments
        ]
        self.dtypes = [
            COMPLEX[dtype] if tensor in self.edge.complex_inputs else dtype
            for tensor, dtype in zip(self.arguments, self.types_held, strict=True)
        ]
        # Hashing a Tensor costs a microsecond, so calls go by position.
        self.fixed = [(place, self.constants[t]) for place, t in enumerate(graph.inputs) if t in self.constants]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Run the graph.

        Args:
            *tensors: Values of ``graph.inputs`` less the constants, in order; complex ones as pairs, ``[..., 2]``.

        Returns:
            Values of ``graph.outputs``, in order.
        """
        if is_resting():
            return [
                zero.bfloat16() if number in self.edge.bfloat_outputs
                else torch.view_as_complex(zero) if number in self.edge.complex_outputs else zero
                for number, zero in enumerate(zeros_of(self.graph.outputs))
            ]
        given = list(tensors)
        places = [place for place, dtype in enumerate(self.types_held) if given[place].dtype is not dtype]
        converted = [given[place] for place in places], [self.types_held[place] for place in places]
        for place, value in zip(places, self.border_memory.copies(*converted), strict=True):
            given[place] = value
        strides = tuple([None if value.is_contiguous() else value.stride() for value in given])
        return self._call(given, strides if any(strides) else None)

    def as_they_lie(self, tensors: list[torch.Tensor]) -> list[torch.Tensor] | None:
        """Run the graph as a call does, on tensors as most calls bring them; None where something is to be seen to.

        Args:
            tensors: As in a call; what is to be seen to is another element type, another order than row-major, or a
                sign that torch keeps apart.
        """
        if is_resting() or not are_row_major(tensors, self.dtypes):
            return None
        return self._call(tensors, None)

    def _call(self, given: list[torch.Tensor], layout: Layout) -> list[torch.Tensor]:
        for place, value in self.fixed:
            given.insert(place, value)
        self.last_layout = layout
        are_apart = bool(self.edge.written) and self.apartness.holds(given)
        bound = self.plans.get((layout, are_apart)) or self._plan(layout, are_apart)
        with self._lock:  # the plan's buffers and its random words belong to one call at a time
            try:
                return self._run(bound, given)
            finally:
                bound.lent.give_back()

    def repeated(
        self, places: Sequence[int], results: Sequence[tuple[int | None, int | None]],
        packing: Packing | None = None, block: Block | None = None,
    ) -> Call | None:
        """Return a call that does as the last one did with all found that stays, which most calls of a graph are.

        Args:
            places: Of each tensor that `as_they_lie` takes that among the arguments of a call.
            results: What the call returns: by number a tensor that is made, or an argument; None of both for None.
            packing: Where the last call's results are to lie; each as a tensor of its own where it is None.
            block: Holds some of what the graph reads, whose places do not count; numbers are those of the tensors that
                `as_they_lie` takes.

        Returns:
            The call, for tensors that lie as those of the last one; None where a run of it takes more than that, or
            what the block holds did not lie so.
        """
        layout = self.last_layout  # read once: other threads call too
        bound = self.plans.get((layout, False))
        if bound is None or self.edge.written or not bound.is_repeatable:
            return None
        if packing is not None and packing.rooms != tuple(bound.rooms):
            return None
        if bound.random_rows is not None and self.seed is not None:
            return None  # which counts its calls
        constants = dict(self.fixed)
        numbers = [place for place in range(len(self.graph.inputs)) if place not in constants]
        for place, value in constants.items():
            bound.engine.bind_tensors(FIRST_EXTERNAL + place, [value])
        argument_of = dict(zip(numbers, places, strict=True))
        frozen = [
            (None, constants[place]) if place in constants else (argument_of[place], None)
            for place in self.frozen_places
        ]
        strides = [
            lying if lying is None or not dtype.is_complex else strides_of_complex(lying)
            for dtype, lying in zip(self.dtypes, layout or (None,) * len(numbers), strict=True)
        ]
        inputs = [
            (place, dtype, FIRST_EXTERNAL + number, lying)
            for place, dtype, number, lying in zip(places, self.dtypes, numbers, strides, strict=True)
        ]
        if block is not None:
            if not all(room.is_of(self.dtypes[number], strides[number]) for number, (_, room) in block.rooms.items()):
                return None
            inputs = [given for number, given in enumerate(inputs) if number not in block.rooms]
            block = replace(block, rooms={numbers[number]: held for number, held in block.rooms.items()})
        return bound.call(
            inputs, results, self.threads, self._lock, self.output_memory, frozen, packing, block,
            None if bound.random_rows is None else Draws(bound.random_rows, bound.seed),
        )

    def last_rooms(self) -> Sequence[Room] | None:
        """Return what the results of the last call took; None where they were not all in memory of their own."""
        bound = self.plans.get((self.last_layout, False))
        return bound.rooms if bound is not None and bound.are_fresh else None

    @property
    def num_bytes(self) -> int:
        """Memory that the plans hold, about."""
        return GRAPH_BYTES * len(self.graph.ops) + sum(bound.num_bytes for bound in list(self.plans.values()))

    def _plan(self, layout: Layout, are_apart: bool) -> BoundPlan:
        if len(self.plans) >= MAX_PLANS:
            self.plans.clear()
        strides = {t: s for t, s in zip(self.arguments, layout or (), strict=bool(layout)) if s is not None}
        observation = Observation(traps=self.traps, counts=self.counts)
        with seldom_collected():
            graph, edge = self.graph, self.edge if are_apart else replace(self.edge, written={})
            host_plan = None if observation.is_on else self._sized_plan(strides, edge)
            if host_plan is None:
                graph = graph if self.sized is None else self.sized.graph()
                host_plan = Planner(
                    graph, input_strides=strides, frozen=self.frozen, observation=observation,
                    is_strict=self.is_strict, is_alone=self.is_alone, edge=edge,
                ).plan()
            # What a backward reads is no affair of the user's, who saves other results with all of their memory.
            roomy = self.edge.saved if self.sized is not None else ()
            bound = BoundPlan(
                host_plan, graph, shares_arena=not self.traps, observation=observation, roomy=roomy,
                complex_outputs=edge.complex_outputs,
            )
        self.plans[layout, are_apart] = bound
        self.shared_results |= {index for index, _, _, _ in bound.viewing_outputs}
        return bound

    def _sized_plan(self, strides: Mapping[Tensor, tuple[int, ...]], edge: Edge) -> HostPlan | None:
        """Return a plan that was made for more sizes than these, if there is one."""
        if self.sized is None:
            return None
        inputs, outputs = (dict(enumerate(held)) for held in (self.graph.inputs, self.graph.outputs))
        lying = {number: strides[tensor] for number, tensor in inputs.items() if tensor in strides} if strides else {}
        frozen = set(self.frozen)
        terms = Terms(
            lying=lying_of({number: tensor.shape for number, tensor in inputs.items()}, lying),
            made=orders_of({number: tensor.shape for number, tensor in outputs.items()}, edge.strides),
            frozen=tuple(number for number, tensor in inputs.items() if tensor in frozen) if frozen else (),
            written=tuple(edge.written.items()), saved=edge.saved, plain=edge.plain, is_strict=self.is_strict,
            is_alone=self.is_alone,
        )
        return self.sized.plan(terms, lying, edge.strides)

    def _run(self, bound: BoundPlan, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        bound.engine.bind_tensors(FIRST_EXTERNAL, inputs)
        made = self.output_memory.empty(bound.rooms)
        bound.lent.lend(FIRST_EXTERNAL, inputs)
        results: list[torch.Tensor | None]
        if bound.are_fresh:
            bound.engine.bind_tensors(FIRST_EXTERNAL + len(inputs), made)
            bound.lent.lend(FIRST_EXTERNAL + len(inputs), made)
        else:
            results = [None] * len(bound.host_plan.outputs)
            for (index, number), fresh in zip(bound.fresh_outputs, made, strict=True):
                results[index] = fresh
                bound.engine.bind(number, fresh.data_ptr())
                bound.lent.lend(number, [fresh])
            for index, place in bound.host_plan.over_inputs.items():
                results[index] = inputs[place]
        frozen = [inputs[place] for place in self.frozen_places]
        if bound.random_rows is None:
            self._run_steps(bound, frozen)
        elif self.seed is not None:
            bound.seed(self.seed)
            bound.count_calls(self.calls)
            self._run_steps(bound, frozen)
        else:
            with undrawn_where_it_fails():
                bound.seed(int(torch.randint(2**62, ()).item()))
                self._run_steps(bound, frozen)
        self.calls += 1
        if bound.are_fresh:
            return made
        for index, is_input, source, held in bound.viewing_outputs:
            base = inputs[source] if is_input else results[source]
            assert base is not None
            base = torch.view_as_real(base) if base.is_complex() else base
            results[index] = base.as_strided(held.shape, held.strides, base.storage_offset() + held.offset)
        return [result for result in results if result is not None]

    def _run_steps(self, bound: BoundPlan, frozen: Sequence[torch.Tensor]) -> None:
        """Run the plan; without the steps that depend on the frozen inputs alone where these are as they were."""
        if not frozen:
            bound.run(1, 1, self.threads, borrow=self.threads == torch.get_num_threads())
            return
        is_prepared = bound.prepared_from.holds(frozen)
        if not is_prepared and (unseen := bound.prepared_from.unseen(frozen)):
            self._warn_of(unseen)
        bound.prepared_from.forget()
        borrow = self.threads == torch.get_num_threads()
        bound.run(1, 1, self.threads, borrow=borrow, is_prepared=is_prepared)
        bound.prepared_from.note(frozen, is_anew=not is_prepared)

    def _warn_of(self, unseen: Sequence[int]) -> None:
        """Warn once of frozen inputs, by number among them, that were written as torch does not count."""
        if not self._has_warned:
            self._has_warned = True
            held = [self.graph.inputs[self.frozen_places[number]] for number in unseen]
            warn_of_unseen(
                [f"weight of shape {list(tensor.shape)}" for tensor in held],
                "what frozen_weights makes of it once is made anew from this call on",
            )
