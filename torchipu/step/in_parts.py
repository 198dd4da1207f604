"""A step whose program several processes run, each a part of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from torchipu.distributed.exchange import Bucket, Exchange
from torchipu.distributed.order import Replicas
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.observation import Observation
from torchipu.host.transfers import Order
from torchipu.installation import torch_version
from torchipu.ir.graph import Graph, Tensor
from torchipu.options import Options
from torchipu.parts.processes import Processes
from torchipu.parts.program import Piece, facts, ipus_of_a_process, make_piece
from torchipu.parts.state import check_materialised, fill_from_bytes, flat_bytes, gather
from torchipu.parts.traffic import Traffic

States = Mapping[Tensor, torch.Tensor | None]
MakeExchange = Callable[[torch.Tensor, Sequence[Bucket]], Exchange]


class InParts:
    """What a step of several processes knows beside what every step does.

    Args:
        options: ``pipeline_group`` and ``ipus_per_process`` say who takes part.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.processes = Processes(options.pipeline_group)
        self.piece: Piece | None = None
        self.key = 0
        self.arrived: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._order: Order | None = None
        self._traffic: Traffic | None = None
        self._sizes: list[int] = []
        self._shared: list[tuple[Tensor, torch.Tensor]] = []
        self._drawn: torch.Tensor | None = None

    # ------------------------------------------------------------------ before a call
    def meet(self, what: str, facts: Mapping[str, str], *, is_stale: bool) -> bool:
        """Agree with the other processes on what comes; return whether the program has to be compiled.

        Raises:
            PeerError: Another process is about to do something else, or is gone or silent.
        """
        key, self._drawn = 0, None
        if self.options.seed is None and (self.piece is None or is_stale or self.piece.is_random):
            self._drawn = torch.random.get_rng_state()
            key = int(torch.randint(2**62, ()).item())
        is_stale, self.key = self.processes.meet({"call": what, **facts}, is_stale=is_stale, key=key)
        return is_stale

    def settle_key(self) -> None:
        """Leave torch's generator as it was where the program turns out to need no key."""
        if self._drawn is not None and self.piece is not None and not self.piece.is_random:
            torch.random.set_rng_state(self._drawn)
        self._drawn = None

    def forget_key(self) -> None:
        """Leave torch's generator as it was after a compilation that no run follows."""
        if self._drawn is not None:
            torch.random.set_rng_state(self._drawn)
        self._drawn = None

    # ------------------------------------------------------------------ compiling
    def make_piece(
        self, graph: Graph, states: States, micro_batches: int, replicas: Replicas, observation: Observation,
    ) -> Piece:
        """Plan the part of this process; errors as for `torchipu.parts.program.make_piece`."""
        processes = self.processes
        piece = make_piece(
            graph, list(states), self.options, rank=processes.rank, processes=processes.size,
            micro_batches=micro_batches, replicas=replicas, observation=observation,
        )
        ipus = ipus_of_a_process(graph, self.options, processes.size)
        check_materialised(piece.part.graph.inputs, states, rank=processes.rank, ipus=ipus)
        return piece

    def agree(self, make: Callable[[], tuple[Any, Graph, Piece]], runs: int) -> Any:
        """Make a program on all processes or on none, and set the order in which they run it.

        Args:
            make: Makes what is returned, the compiled graph, and this process's piece of it.
            runs: Micro-batches of an iteration x replicas.

        Raises:
            PeerError: Another process has failed, or has another program.
        """
        import torchipu

        def told(made: tuple[Any, Graph, Piece]) -> dict[str, str]:
            limit = made[2].limit(self.processes.size)
            found = {"torchipu": torchipu.__version__, "torch": str(torch_version()), "_limit": str(limit)}
            return found | facts(made[1], self.options)

        (made, _, piece), heard = self.processes.agree(make, told)
        timetable = piece.timetable(runs, [int(one["_limit"]) for one in heard])
        self.piece = piece
        self._order = piece.order(timetable, self.processes.rank, self.options.replicas)
        self._traffic = self.processes.carry(piece, timetable)
        return made

    def bind(self, observation: Observation, exchange: MakeExchange | None) -> BoundPlan:
        """Give this process's plan its memory, if every process has that for its own.

        Args:
            observation: What of results is looked at.
            exchange: Makes the exchange of sums with the processes of other pipelines that have the same part.
        """
        piece, traffic = self.piece, self._traffic
        assert piece is not None and traffic is not None

        def make() -> BoundPlan:
            return BoundPlan(
                piece.plan, piece.planner.graph, self.options.replicas, observation=observation, order=self._order,
                carrier=traffic.carrier, exchange=exchange,
            )

        return self.processes.agree(make, lambda bound: {})[0]

    # ------------------------------------------------------------------ a call
    def prepare(self, outputs: Sequence[tuple[int, torch.dtype]], shared: Mapping[Tensor, torch.Tensor]) -> None:
        """Say what a call gives.

        Args:
            outputs: Elements that a call returns of each output of the whole graph, and their type.
            shared: The host's tensor of states that every process wants to see.
        """
        assert self.piece is not None
        cut, sizes = self.piece.cut, [0] * self.processes.size
        for owner, (count, dtype) in zip(cut.output_owners, outputs, strict=True):
            sizes[owner] += count * dtype.itemsize
        self._shared = list(shared.items())
        for tensor, value in self._shared:
            sizes[cut.owners[tensor]] += value.numel() * value.element_size()
        self._sizes = sizes

    @contextlib.contextmanager
    def call(self, iterations: int) -> Iterator[None]:
        """Run a call; see `torchipu.parts.processes.Processes.call`."""
        assert self._traffic is not None
        with self.processes.call(self._traffic, self._sizes, iterations):
            yield
        self.arrived = []

    def share(self, outputs: Sequence[torch.Tensor], bound: BoundPlan) -> None:
        """Give the other processes this one's results, and fill in theirs.

        Args:
            outputs: Of every output of the whole graph its place; those of this process hold the results.
            bound: The plan that has run.

        Raises:
            PeerError: The call has failed on another process.
        """
        assert self.piece is not None and self._traffic is not None
        rank, cut = self.processes.rank, self.piece.cut
        by_owner: list[list[torch.Tensor]] = [[] for _ in range(self.processes.size)]
        for owner, value in zip(cut.output_owners, outputs, strict=True):
            by_owner[owner].append(value)
        self.arrived = []
        for tensor, host in self._shared:
            if cut.owners[tensor] == rank:
                by_owner[rank].append(bound.state_view(tensor))
            else:
                fresh = torch.empty_like(host)
                by_owner[cut.owners[tensor]].append(fresh)
                self.arrived.append((host, fresh))
        taken = self.processes.end(self._traffic, flat_bytes(by_owner[rank]), self._sizes)
        for process, values in enumerate(by_owner):
            if process != rank:
                fill_from_bytes(values, taken[process])

    def last(self, value: torch.Tensor, micro_batches: int) -> torch.Tensor:
        """Return the last micro-batch's result of each replica from what the lanes have: ``[lanes, replicas, ...]``."""
        assert self._order is not None
        replicas = range(self.options.replicas)
        return torch.stack([value[self._order.lane_of(micro_batches - 1, replica), replica] for replica in replicas])

    # ------------------------------------------------------------------ states
    def gather(self, states: States, onto: int | None) -> dict[Tensor, torch.Tensor]:
        """Bring all states to every process or to one; see `torchipu.parts.state.gather`."""
        assert self.piece is not None
        return gather(self.processes.peers, self.piece.cut.owners, states, onto)

    def owns(self, tensor: Tensor) -> bool:
        """Whether a state is in this process."""
        return self.piece is not None and self.piece.cut.owners.get(tensor) == self.processes.rank
