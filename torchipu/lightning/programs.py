"""The Programs of a stage: training and inference steps whose results of every micro-batch are handed back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchipu.capture.accumulation import as_made
from torchipu.capture.built import Built
from torchipu.capture.captured import Captured
from torchipu.capture.gradient_scaling import LOSS_SCALE
from torchipu.host.generic import TORCH_DTYPES
from torchipu.host.resident import Returned
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg, Role
from torchipu.lightning.step_capture import StepCapture
from torchipu.options import Options
from torchipu.step import InferenceStep, TrainStep
from torchipu.step.base import ProgramStep


@dataclasses.dataclass(frozen=True, slots=True)
class _OfEach(Returned):
    """Results as the program wrote them: ``[micro-batches x replicas, ...]``."""

    def shape(self, runs: int, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of all of them."""
        return (runs, *shape)

    def join(self, value: torch.Tensor, device_iterations: int, replicas: int = 1) -> torch.Tensor:
        """Leave them apart."""
        return value


OF_EACH = _OfEach("all")
CARRIED = "carried"
"""Where the names of gradients begin that one program hands on to the next."""


class StepProgram(ProgramStep):
    """What programs of Lightning's steps share."""

    captures_again = False  # a capture belongs to the batch of a Trainer's loop
    capture: StepCapture
    on_compiled: Callable[[ProgramStep], None]

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        captured = self.capture.captured(arguments, strict_ops=self.options.strict_ops)
        constants = {tensor: value.detach().clone() for tensor, value in captured.constants.items()}
        return dataclasses.replace(captured, constants=constants)

    def _slice(self, leaf: Any) -> Any:
        return leaf

    def _returned(self) -> list[Returned]:
        assert self._built is not None
        return [OF_EACH] * len(self._built.graph.outputs)

    def _signature_of(self, leaves: Sequence[Any]) -> tuple[object, ...]:
        return ()  # whoever holds the program knows what it is for

    def run(self, tensors: Sequence[torch.Tensor], example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program once.

        Args:
            tensors: Inputs, micro-batch behind micro-batch.
            example: Those of one micro-batch, to compile for.

        Returns:
            The outputs in the order of the tape, ``[micro-batches x replicas, ...]``.
        """
        with self._lock, torch.inference_mode(False), torch.no_grad():
            self._committed = False
            undo = self._keep()
            try:
                if self._bound is None:
                    with torch.enable_grad():
                        self._compile(tuple(example), {}, lambda done, total: None)
                    self.on_compiled(self)
                results: list[torch.Tensor] = self._run(tensors)
                return results
            except BaseException:
                if not self._committed:
                    undo()
                raise


class InferenceProgram(StepProgram, InferenceStep):
    """A step of evaluation or prediction.

    Args:
        module: The Lightning module.
        options: What to emulate.
        capture: Runs the step.
        on_compiled: Called when the program is there.
    """

    def __init__(
        self, module: torch.nn.Module, options: Options, capture: StepCapture,
        on_compiled: Callable[[ProgramStep], None],
    ) -> None:
        super().__init__(module, options)
        self.capture = capture
        self.on_compiled = on_compiled


class TrainingProgram(StepProgram, TrainStep):
    """A step of training, with the update of the weights.

    Args:
        module: The Lightning module.
        optimizer: The user's own.
        options: What to emulate.
        capture: Runs the step.
        on_compiled: Called when the program is there.
        divisor: By what the sum of gradients is divided.
        carried: Accumulators on the host by parameter name: an update whose micro-batches have several shapes is
            several programs, of which each goes on where the last one stopped. None where one program is enough.
        updates: Whether the weights are updated at the end; otherwise the gradients stay in ``carried``.
    """

    ignores_own_step = True

    def __init__(
        self, module: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Options, capture: StepCapture,
        on_compiled: Callable[[ProgramStep], None], *, divisor: int, carried: dict[str, torch.Tensor] | None = None,
        updates: bool = True,
    ) -> None:
        super().__init__(module, optimizer, options)
        self.capture = capture
        self.on_compiled = on_compiled
        self.divisor = divisor
        self.carried = carried
        self.updates = updates
        self._calls_iterations = 1
        self._carrying: list[tuple[Tensor, Tensor]] = []
        self._next: torch.optim.Optimizer | None = None
        self._iterations_done = 0

    @property
    def iterations(self) -> int:
        """Weight updates in a call, which may have fewer of them than the options say."""
        return self._calls_iterations

    @iterations.setter
    def iterations(self, count: int) -> None:
        self._calls_iterations = count

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Go on with another optimiser from the next run on: each ``fit`` makes its own."""
        self._next = optimizer

    def run(self, tensors: Sequence[torch.Tensor], example: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the program once, with the optimiser that it was given last."""
        if self._next is not None:
            following, self._next = self._next, None
            if not self._adopt(following):
                self._bound = None  # another kind: compiled again
            self.optimizer = following
        # Random bits are counted by calls of one length: no two updates may be given the same.
        self._calls = -(-self._iterations_done // self.iterations)
        results = super().run(tensors, example)
        self._iterations_done = self._calls * self.iterations
        return results

    def _adopt(self, optimizer: torch.optim.Optimizer) -> bool:
        """Let the states of the program be those of another optimiser; return whether it is of the same kind."""
        built = self._built
        if built is None or built.optimiser is None or type(optimizer) is not type(self.optimizer):
            return built is None or not self.updates
        capture, before = built.capture, built.optimiser
        # The gradients are only names here: the ops exist already.
        gradients = {name: tensor for name, tensor in capture.parameters.items() if name in capture.gradients}
        scale = next((state for state in built.states if state.name == LOSS_SCALE), None)
        with torch.inference_mode(False), torch.no_grad():
            after = self._scaled(self._import(optimizer, capture, gradients), gradients.values(), scale)
        pairs = list(zip(before.inputs, after.inputs, strict=False))
        same_ops = [op.target for op in after.ops] == [op.target for op in before.ops]
        if not same_ops or any((one.name, one.dtype) != (other.name, other.dtype) for one, other in pairs):
            return False
        hosts = {one: after.host[other] for one, other in pairs}
        self._mirror(hosts)
        values = {one: after.hyperparameters[other] for one, other in pairs if other in after.hyperparameters}
        optimiser = dataclasses.replace(before, host=hosts, hyperparameters=values, refresh=after.refresh)
        self._built = dataclasses.replace(built, optimiser=optimiser, states={**built.states, **hosts})
        return True

    @property
    def gradient_divisor(self) -> int:
        """By what the sum of gradients is divided: that of one process, times the number of processes."""
        processes = self._replicas.total // self.options.replicas
        return self.divisor * processes if self.options.accumulation_reduction == "mean" else 1

    def _reduced(self, gradients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[Op, ...]]:
        """Add up over replicas, and onto what earlier programs of the same update have handed on."""
        reduced, ops = super()._reduced(gradients)
        if self.carried is None:
            return reduced, ops
        totals = {}
        for name, gradient in reduced.items():
            # No accumulator, which each replica would begin anew.
            held = dataclasses.replace(gradient, name=f"{CARRIED}.{name}", role=Role.BUFFER)
            totals[name] = dataclasses.replace(held, name=f"{CARRIED}_sum.{name}")
            ops = (*ops, Op(
                "add", (held, gradient), (totals[name],), {"alpha": 1}, target="aten.add.Tensor",
                operands=("self", "other"), leg=Leg.UPDATE,
            ))
            self._carrying.append((held, totals[name]))
        return totals, ops

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Built:
        self._carrying.clear()
        if self.carried is None:
            return super()._build(arguments, keywords)
        built = super()._build(arguments, keywords) if self.updates else self._gradients_alone(arguments, keywords)
        held = tuple(tensor for tensor, _ in self._carrying)
        graph = dataclasses.replace(
            built.graph, inputs=(*built.graph.inputs, *held), updates=(*built.graph.updates, *self._carrying),
        )
        return dataclasses.replace(
            built, graph=graph, states=built.states | self._carried_states(held), written=built.written | set(held),
        )

    @property
    def gradients(self) -> list[str]:
        """Names of the parameters that have gradients here."""
        return [held.name.removeprefix(f"{CARRIED}.") for held, _ in self._carrying]

    def _gradients_alone(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Built:
        """Build a program that adds up gradients, and leaves the update to another one."""
        capture = self._capture(arguments, keywords)
        accumulated, added = self._accumulate(capture)
        _, sums = self._reduced(accumulated)
        graph = Graph(
            capture.graph.name, (*capture.graph.inputs, *added.inputs), capture.graph.outputs,
            (*as_made(capture.graph.ops, added.ops), *sums, *added.resets), (*capture.graph.updates, *added.updates),
        )
        states = self._module_states(capture) | dict.fromkeys(added.inputs)
        return Built(capture, graph, states, frozenset(state for state, _ in graph.updates))

    def _carried_states(self, held: Sequence[Tensor]) -> dict[Tensor, torch.Tensor | None]:
        """Return the host's tensor of each gradient that programs hand on."""
        assert self.carried is not None
        states: dict[Tensor, torch.Tensor | None] = {}
        for tensor in held:
            name = tensor.name.partition(".")[2]
            if name not in self.carried:
                self.carried[name] = torch.zeros(tensor.shape, dtype=TORCH_DTYPES[tensor.dtype])
            states[tensor] = self.carried[name]
        return states

    def _refresh(self) -> None:
        if self.updates:
            super()._refresh()

    def _mark_stepped(self) -> None:
        if self.updates:
            super()._mark_stepped()
