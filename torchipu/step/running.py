"""One run of a program: binds what the caller gives, and brings states into its memory and back."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchipu.distributed.handshake import agree
from torchipu.distributed.members import Members
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.copying import RepeatedCopy, copy_all, count_writes
from torchipu.host.kept_states import undrawn_where_it_fails
from torchipu.host.laid import Laid
from torchipu.host.resident import Resident, Returned, Versions, changed, mark, refuse_misfits
from torchipu.host.unseen_writes import Sampled, warn_of_unseen
from torchipu.optable.random_streams import Seeding
from torchipu.step import watching
from torchipu.step.compiling import CompilingStep
from torchipu.step.edge import Arguments, Results
from torchipu.step.in_common import described
from torchipu.step.in_parts import InParts
from torchipu.step.on_tiles import run_on_tiles


class RunningStep(CompilingStep):
    """A program that runs on the tensors of a call."""

    default_output_mode = "all"

    # ------------------------------------------------------------------ for subclasses
    @property
    def output_mode(self) -> str:
        """Which micro-batches' results a call returns: ``all``, ``final``, ``sum`` or ``every_n``."""
        return self.options.output_mode or self.default_output_mode

    @property
    def used_loss_scale(self) -> float | None:
        """Factor on the loss in the last update of the last call; None for inference."""
        return None

    def _returned(self) -> list[Returned]:
        """Say for each output of the graph which micro-batches' results are handed back."""
        assert self._built is not None
        return [Returned(self.output_mode, self.options.output_period)] * len(self._built.graph.outputs)

    def _deliver(self, values: list[torch.Tensor]) -> Any:
        """Build what a call returns from the joined results of the graph's outputs."""
        assert self._built is not None
        return self._built.capture.restore(values)

    def _refresh(self) -> None:
        """Bring what may change between calls into the program's memory."""

    def _mark_stepped(self) -> None:
        """Tell the optimiser, if there is one, that it has made a step."""

    def _keep(self) -> Callable[[], None]:
        """Note what capture and refreshing change of the user's; return what undoes it."""
        return lambda: None

    # ------------------------------------------------------------------ running
    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        if self.options.host_times and self._bound is not None:
            return self._seen.timed(lambda: self._run_watched(tensors), self._bound)
        return self._run_watched(tensors)

    def _run_watched(self, tensors: Sequence[torch.Tensor]) -> Any:
        with self._among_members() as members:
            if members is not None:
                agree(members, {"what is done": "training", "inputs": described(tensors), **self._described()})
            ends = watching.begun(self, tensors)
            results = self._run_among(members, tensors)
        for end in ends:
            end(results)
        return results

    def _seeding_of_next_call(self) -> Seeding:
        """Return from what the streams of random bits of the next call begin, in one process; draws nothing."""
        with torch.random.fork_rng(devices=[]):
            return self._seeding_of(None)

    def _seeding_of(self, members: Members | None) -> Seeding:
        """Return from what the streams of random bits of a call begin; without a seed, torch's generator gives one."""
        seed, rounds = self.options.seed, self._rounds_stochastically
        if seed is None:
            return Seeding(self._key_of(members), 0, self.micro_batches, rounds)
        return Seeding(seed, self._calls * self.micro_batches * self.iterations, self.micro_batches, rounds)

    def _run_among(self, members: Members | None, tensors: Sequence[torch.Tensor]) -> Any:
        assert self._bound is not None and self._built is not None
        bound = self._bound
        if self._laid is not None:
            self._place_states(bound)
        inputs = self._bind_inputs(bound, tensors)
        if self._results is None:
            self._results = self._results_of(bound)
        outputs = self._results.bind()
        self._refresh()
        is_prepared = self._upload()
        self._clean = False
        bound.begin()
        try:
            self._run_seeded(bound, tensors, outputs, members, is_prepared)
            if self._is_in_place:
                self._finish()
        except BaseException:
            if self._is_in_place and not self._clean and bound.has_changed(self.iterations):
                self._finish()  # an interrupt behind the update: the other states follow those that the user has
            raise
        results = self._deliver(
            self._results.joined(outputs) if self._parts is None else self._joined(self._parts, bound, outputs)
        )
        del inputs
        if not self._is_in_place:
            self._finish()  # nothing that can fail follows the write-back
        return results

    def _joined(self, parts: InParts, bound: BoundPlan, outputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the results of all processes of a pipeline."""
        assert self._results is not None
        every = self._shared(parts, bound, self._results.by_run(outputs, keeps_lanes=True))
        iterations = self.options.device_iterations
        return [
            rule.join(value, iterations, bound.replicas) for rule, value in zip(self._returned(), every, strict=True)
        ]

    def _finish(self) -> None:
        """Let the user's tensors have the states after the call, and count it."""
        self._download()
        self._clean = True
        self._calls += 1
        self._mark_stepped()

    def _run_seeded(
        self, bound: BoundPlan, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor],
        members: Members | None, is_prepared: bool,
    ) -> None:
        """Run what is bound, with the streams of random bits where they are in this call."""
        if bound.random_rows is None:
            self._run_bound(bound, tensors, outputs, Seeding(), members, is_prepared)
            return
        with undrawn_where_it_fails():
            seeding = self._seeding_of(members)
            bound.seed(seeding.seed, self._replicas.first, stochastic_rounding=seeding.is_rounding)
            bound.count_calls(seeding.first_micro_batch)
            self._run_bound(bound, tensors, outputs, seeding, members, is_prepared)

    def _run_bound(
        self, bound: BoundPlan, tensors: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], seeding: Seeding,
        members: Members | None, is_prepared: bool,
    ) -> None:
        """Run what is bound, on the machine that the options say."""
        if self.options.executor == "tiles":
            assert self._built is not None and self._results is not None
            run_on_tiles(
                self._built, self.compiled, bound, self.options, tensors, self.micro_batches,
                self._results.by_run(outputs), seeding, has_members=members is not None,
            )
            return
        bound.run(
            self.micro_batches, self.iterations, self._host_threads, is_prepared=is_prepared,
            is_restored=self.leaves_states or self._is_in_place,
        )

    def _bind_inputs(self, bound: BoundPlan, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Let the program read the tensors of a call; return what has to live until it has run."""
        if self._arguments is None:
            self._arguments = self._arguments_of(bound)
        # What shares memory with the states that the program works on would change under it.
        return self._arguments.bind(tensors, bound.placed_states.overlap if self._is_in_place else None)

    def _arguments_of(self, bound: BoundPlan) -> Arguments:
        assert self._built is not None
        capture, options = self._built.capture, self.options
        groups = options.input_groups
        # Groups of neighbours: replica r reads value r // size; of replicas that lie apart: value r % groups.
        sharing = (1, groups) if options.input_grouping == "orthogonal" else (options.input_group_size, 0)
        return Arguments(
            bound, [tensor for tensor in capture.arguments if tensor is not None], list(capture.constants.items()),
            pieces=self.micro_batches * self.iterations * groups, groups=groups, sharing=sharing,
        )

    def _results_of(self, bound: BoundPlan) -> Results:
        rules, parts = self._returned(), self._parts
        if parts is not None:
            assert parts.piece is not None
            rules = [rules[place] for place in parts.piece.part.outputs]
        return Results(
            bound, rules, runs=self.micro_batches * self.iterations, micro_batches=self.micro_batches,
            iterations=self.options.device_iterations, replicas=self.options.replicas, is_by_run=self._is_by_run,
        )

    @property
    def _is_by_run(self) -> bool:
        """Whether results are looked at run by run, before they are handed back."""
        return self._parts is not None or self.options.executor == "tiles"

    def _place_states(self, bound: BoundPlan) -> None:
        """Look whether the user's tensors lie as they did, and let the program work where they lie now."""
        assert self._laid is not None
        if self._laid.holds(self._hosts):
            return
        are_users = bound.place_states([host.detach() for host in self._hosts])
        for resident, view, is_users in zip(self._residents, bound.placed_states.views, are_users, strict=True):
            resident.memory, resident.is_users = view, is_users
        self._note_places()
        self._clean = False
        self._laid = Laid(self._hosts)  # last: what is interrupted is done again

    def _upload(self) -> bool:
        """Bring the user's tensors into the program's memory.

        Returns:
            Whether all were there as they were, and something was made of them that still holds.
        """
        looked_at = self._looked_at
        if not looked_at:
            return False  # nobody asks what has changed
        unseen = self._find_unseen(looked_at) if self._clean else []
        if unseen and not self._has_warned:
            self._has_warned = True
            warn_of_unseen([f"weight {resident.name!r}" for resident in unseen], "it is taken from this call on")
        if self._clean and not unseen and self._versions is not None and self._versions.hold():
            return True
        stale = changed(looked_at) if self._clean else looked_at
        copied = [resident for resident in stale if not resident.is_users]
        if copied:
            refuse_misfits(copied)
            with torch.no_grad():
                copy_all([r.memory for r in copied], [r.source() for r in copied], self._host_threads)
        if stale:
            mark(stale)
            self._sample(looked_at)
        if self._has_prepared and self._laid is not None:  # they lie where they lay
            self._versions = Versions(self._hosts)
        return self._has_prepared and not stale and self._clean

    @property
    def _looked_at(self) -> list[Resident]:
        """States of which is asked, before each call, whether the user has written them."""
        return self._residents if self._has_prepared else self._copied

    def _find_unseen(self, looked_at: Sequence[Resident]) -> list[Resident]:
        """Return the states that the user has written as torch does not count; from now on they count as written."""
        if self._sampled is None:
            return []
        found = [looked_at[number] for number in self._sampled.changed(lie_there=self._laid is not None)]
        found = [resident for resident in found if not resident.changed()]
        for resident in found:
            resident.forget()
        return found

    def _sample(self, looked_at: Sequence[Resident]) -> None:
        """Keep a few elements of the user's tensors as they are now."""
        if self._sampled is None or not self._sampled.take(lie_there=self._laid is not None):
            self._sampled = Sampled([resident.host for resident in looked_at])

    def _download(self) -> None:
        """Let the user's tensors have all states: each where the program works on it, the others by one call.

        No signal cuts that in two.
        """
        written = [resident for resident in self._copied if resident.is_written]
        back = self._way_back(written) if written or self._parts is not None else None
        self._committed = True
        if back is not None:
            with torch.no_grad():
                back.copy(self._host_threads)
            mark(written)
            self._sample(self._looked_at)
        count_writes(self._written_in_place)

    def _way_back(self, written: Sequence[Resident]) -> RepeatedCopy:
        """Return the copies of states to the user's tensors: those of the last call, where they are the same."""
        ends = [tensor for resident in written for tensor in (resident.host, resident.memory)]
        if self._parts is None and len(ends) == len(self._ends) and all(map(operator.is_, ends, self._ends)):
            return self._back
        pairs = [pair for resident in written for pair in resident.targets()]
        if self._parts is not None:
            pairs += self._parts.arrived
        self._ends, self._back = ends, RepeatedCopy([host for host, _ in pairs], [memory for _, memory in pairs])
        return self._back
