"""The device side of an executor: a compiled program whose weights and optimiser state stay on the device."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from torchipu.capture.captured import Captured
from torchipu.capture.running import capture_by_running
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.resident import Resident, Returned, changed, refuse_misfits
from torchipu.ir.graph import Tensor
from torchipu.ir.types import Role
from torchipu.poptorch._logging import logger
from torchipu.poptorch.held_types import held_as
from torchipu.poptorch.operators.placing import check_depth, refuse_ops_outside, warn_of_unused
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.reports.anchors import UPDATED, Anchor, find_tensor
from torchipu.poptorch.stored.cache import ExecutableCache
from torchipu.poptorch.tracing.grouping import Group
from torchipu.poptorch.tracing.traced_model import TracedModel
from torchipu.step import InferenceStep, TrainStep
from torchipu.step.base import ProgramStep

WEIGHT_ROLES = (Role.WEIGHT, Role.BUFFER)


class Session(ProgramStep):
    """A step whose states are copied between host and device only when the executor says so.

    Attributes:
        traced: Runs the user's model while it is captured.
        anchors: What else than the results is handed back, by the name that the user gave it.
        must_upload: Whether weights and states of the host are to be copied before the next run.
        original: The capture before the loss scale became a state of the program: what files hold.
    """

    captures_again = False  # tracing runs the user's model, with all that it prints

    traced: TracedModel
    anchors: Mapping[str, Anchor]
    must_upload: bool
    captured: Captured | None
    original: Captured | None
    cache: ExecutableCache | None
    is_refreshed: bool
    leaves_states = True
    gives_zeros = False  # the executor wants more of a program than its results

    def prepare(
        self, traced: TracedModel, anchors: Mapping[str, Anchor], captured: Captured | None = None,
        cache: ExecutableCache | None = None,
    ) -> None:
        """Take over what an executor knows of the model.

        Args:
            traced: Runs the user's model.
            anchors: What else is handed back.
            captured: The capture, if it was read from a file.
            cache: Where captures are kept, if they are.
        """
        self.traced, self.anchors, self.captured, self.cache = traced, anchors, captured, cache
        self.must_upload = True
        self.is_refreshed = False
        self.original = None
        self.written_places: list[tuple[int, int]] = []
        self.anchor_places: dict[str, int] = {}
        self.rules: list[Returned] = []
        self.weights: list[Resident] = []
        self.states: list[Resident] = []

    # ------------------------------------------------------------------ compiling
    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        captured = self.captured
        if captured is None:
            captured = self._captured_or_cached((*arguments, *(torch.tensor(0) for _ in self.traced.groups)))
            warn_of_unused(self.traced.strategy, self.traced.blocks)
            refuse_ops_outside(captured.graph.ops)
            check_depth(
                self.traced.strategy, self.traced.ipus, gradient_accumulation=self.options.gradient_accumulation,
                device_iterations=self.options.device_iterations, is_training=isinstance(self, TrainStep),
            )
        dtypes = tuple(map(held_as, captured.output_dtypes))
        # Copies: what the user does to an attribute later is no part of the program.
        constants = {tensor: value.detach().clone() for tensor, value in captured.constants.items()}
        self.original = dataclasses.replace(captured, output_dtypes=dtypes, constants=constants)
        return self.original

    def _captured_or_cached(self, arguments: tuple[torch.Tensor, ...]) -> Captured:
        made: list[Captured] = []

        def make() -> Captured:
            made.append(capture_by_running(
                self.traced, arguments, name=self.name, strict_ops=self.options.strict_ops,
            ))
            return made[-1]

        if self.cache is None:
            return make()
        found = self.cache.fetch(self.traced, arguments, self.options, make)
        if not made:
            self._seen.cache_hits.append(str(self.cache.folder))
        return found

    @property
    def capture(self) -> Captured:
        """The captured model."""
        assert self._built is not None
        captured: Captured = self._built.capture
        return captured

    @property
    def num_ipus(self) -> int:
        """IPUs that a replica uses, those between 0 and the last one among them."""
        return max((op.placement.ipu for op in self.compiled.graph.ops if op.placement is not None), default=0) + 1

    @property
    def name(self) -> str:
        """Name of the graph."""
        return "training" if isinstance(self, TrainStep) else "inference"

    def _compile(self, arguments: tuple[Any, ...], keywords: dict[str, Any], progress: Any) -> None:
        super()._compile(arguments, keywords, progress)
        assert self._built is not None and self._bound is not None
        built = self._built
        tensors = [tensor for tensor, host in built.states.items() if host is not None]
        for tensor, resident in zip(tensors, self._residents, strict=True):
            (self.weights if tensor.role in WEIGHT_ROLES else self.states).append(resident)
        usual = Returned(self.output_mode, self.options.output_period)
        places = {tensor: place for place, tensor in enumerate(built.capture.graph.outputs)}
        self.written_places = [(argument, places[tensor]) for argument, tensor in built.capture.written.items()]
        results = set(built.capture.leaves)
        rules = [usual if tensor in results else Returned("all") for tensor in built.capture.graph.outputs]
        for name, anchor in self.anchors.items():
            if self._is_output(anchor):
                self.anchor_places[name] = len(rules)
                rules.append(Returned("all") if anchor.is_update else self._rule(anchor))
        self.rules = rules

    def _rule(self, anchor: Anchor) -> Returned:
        return anchor.returned or Returned(self.output_mode, self.options.output_period)

    def _is_output(self, anchor: Anchor) -> bool:
        """Whether the program hands an anchor back; the last values of a weight are read from its memory instead."""
        return not anchor.is_update or self._rule(anchor).mode != "final"

    def _anchored(self, built: Any) -> Any:
        """Add what is anchored to the outputs of a graph."""
        outputs = list(built.graph.outputs)
        for anchor in self.anchors.values():
            tensor = find_tensor(anchor.long_name, built.graph, built.capture.gradients)
            if self._is_output(anchor):
                outputs.append(tensor)
        return dataclasses.replace(built, graph=dataclasses.replace(built.graph, outputs=tuple(outputs)))

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        return self._anchored(super()._build(arguments, keywords))

    def cut(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """Return the first micro-batch of inputs."""
        return [self._slice(tensor) for tensor in tensors]

    # ------------------------------------------------------------------ running
    def run(
        self, tensors: list[torch.Tensor], given: Sequence[torch.Tensor],
    ) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        """Run one call.

        Args:
            tensors: Inputs, as the device takes them.
            given: Inputs as the caller has them; those that forward writes into receive what it wrote.

        Returns:
            The flat results of the model, and what is anchored by name.
        """
        with self._lock:
            values = self._run(tensors)
        for argument, place in self.written_places:
            written, target = values[place], given[argument]
            with torch.no_grad():
                target.copy_(written.reshape(target.shape))
        assert self._built is not None
        capture = self._built.capture
        results = capture.restore(values[: len(capture.graph.outputs)])
        return results, {
            name: self._updated(name, anchor, values) if anchor.is_update else values[self.anchor_places[name]]
            for name, anchor in self.anchors.items()
        }

    def _updated(self, name: str, anchor: Anchor, values: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return a weight as it is after each micro-batch: what the next one begins with, and at last what is there.

        Args:
            name: The user's for the anchor.
            anchor: Of the weight.
            values: What the program handed back, in it the weight that each micro-batch began with.
        """
        assert self._bound is not None
        replicas, weight = self._bound.replicas, self._state(anchor.long_name.removeprefix(UPDATED))
        after = self._bound.state_view(weight).reshape(-1, *weight.shape).expand(replicas, *weight.shape).clone()
        if name in self.anchor_places:
            before = values[self.anchor_places[name]].reshape(-1, *weight.shape)
            after = torch.cat((before[replicas:], after))
        return self._rule(anchor).join(after, self.options.device_iterations, replicas)

    def _bind_inputs(self, bound: BoundPlan, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Bind inputs and, behind them, the number of each replica's group of values."""
        groups = self.traced.groups
        numbers = [torch.arange(group.count) for group in groups]
        kept = super()._bind_inputs(bound, [*tensors, *(number[:1] for number in numbers)])
        assert self._built is not None
        arguments = [tensor for tensor in self._built.capture.arguments if tensor is not None]
        for group, number, tensor in zip(groups, numbers, arguments[len(arguments) - len(groups) :], strict=True):
            if tensor in bound.number_of_input:
                place = bound.number_of_input[tensor]
                bound.engine.bind(place, number.data_ptr(), 0, number.element_size(), *group.sharing)
        return [*kept, *numbers]

    def _group_of(self, resident: Resident) -> Group | None:
        """Return how a state is shared by replicas, if they have different ones."""
        held = self.model._parameters
        return next((group for group in self.traced.groups if held[group.name] is resident.host), None)

    def _returned(self) -> list[Returned]:
        return self.rules

    def _deliver(self, values: list[torch.Tensor]) -> Any:
        return values

    def _upload(self) -> bool:
        """Bring what the user has asked for; others write into the memory as well, so nothing is known of it."""
        if self.must_upload:
            self.upload(self._residents)
            self.must_upload = False
        elif not self._has_warned:
            self._warn_of_writes()
        return False

    @property
    def _looked_at(self) -> list[Resident]:
        return self.weights

    def _warn_of_writes(self) -> None:
        """Warn once of weights that the host has written since they were copied: the device keeps its own."""
        with torch._C.DisableTorchFunctionSubclass():  # to look at one is no reason to fetch it
            self._find_unseen(self.weights)
            written = changed(self.weights)
        if written:
            self._has_warned = True
            more = f" and {len(written) - 1} more" if len(written) > 1 else ""
            logger.warning(
                "%r%s of the host's model was written since it was last copied, and the device goes on with what it "
                "has, which the next copy to the host brings back. Call copyWeightsToDevice() after such a write for "
                "the device to use it.", written[0].name, more,
            )

    def _download(self) -> None:
        """Leave everything on the device."""
        self._committed = True

    def upload(self, residents: Iterable[Resident]) -> None:
        """Copy states of the host to the device."""
        chosen = list(residents)
        refuse_misfits(chosen)
        if chosen:
            with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
                for resident in chosen:
                    group = self._group_of(resident)
                    value = resident.host.detach()
                    resident.memory.copy_(value if group is None else group.rows(value))
                    resident.mark()
                self._sample(self.weights)

    def download(self, residents: Iterable[Resident]) -> None:
        """Copy to the host those states that the program changes, or that the host has changed since.

        Raises:
            ExecutionError: The host has some in another shape, or without memory; all others were copied.
        """
        misfits = list[Resident]()
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for resident in residents:
                group = self._group_of(resident)
                is_asked = group is not None and group.returns_all
                if not is_asked and not resident.is_written and not resident.changed():
                    continue
                if resident.misfit():
                    misfits.append(resident)
                    continue
                if group is not None and is_asked:
                    resident.take(resident.memory[group.of_replicas()])
                elif resident.memory.dim() > resident.host.dim():
                    # Each replica has its own: the host's tensor becomes all of them.
                    resident.take(resident.memory.clone())
                else:
                    resident.host.detach().copy_(resident.memory)
                resident.mark()
            self._sample(self.weights)
        refuse_misfits(misfits)

    def buffers(self, names: Iterable[str]) -> list[Resident]:
        """Return the states of buffers by name; those that the program does not use are left out."""
        assert self._built is not None
        wanted = {self._built.capture.buffers[name] for name in names if name in self._built.capture.buffers}
        tensors = [tensor for tensor, host in self._built.states.items() if host is not None]
        return [r for tensor, r in zip(tensors, self._residents, strict=True) if tensor in wanted]

    def state_named(self, name: str) -> torch.Tensor:
        """Return what the device has in a parameter or buffer.

        Raises:
            Error: The program has none of this name.
        """
        assert self._bound is not None
        return self._bound.state_view(self._state(name)).clone()

    def _state(self, name: str) -> Tensor:
        assert self._built is not None
        for tensor in self._built.states:
            if tensor.name == name:
                return tensor
        raise createPoptorchError(f"Anchored tensor {name} is not in the graph.")

    # ------------------------------------------------------------------ random numbers
    @property
    def calls(self) -> int:
        """Calls so far: with the seed, the state of the random numbers."""
        return self._calls

    def set_random_state(self, seed: int, calls: int) -> None:
        """Go on from another seed and count of calls."""
        self.options = dataclasses.replace(self.options, seed=seed)
        self._calls = calls


class InferenceSession(Session, InferenceStep):
    """An inference program on the device."""
