"""Training as one program a call: forward, loss, backward, accumulation and weight update."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import torch

from torchipu.capture.accumulation import Accumulation, accumulate, all_reduce, as_made, joined
from torchipu.capture.aot import capture_joint
from torchipu.capture.batch_norm import moments_over
from torchipu.capture.built import Built
from torchipu.capture.captured import Captured
from torchipu.capture.gradient_scaling import adapt, count_large, scaled, with_scale_of_the_program
from torchipu.capture.optimiser import FIRST_MOMENTS, SECOND_MOMENTS, OptimiserImport, import_optimiser
from torchipu.capture.tracked_gradients import of_kind, of_names
from torchipu.distributed.members import Members, members_of
from torchipu.errors import OptionsError
from torchipu.host.bound_plan import BoundPlan
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.options import Options
from torchipu.step.base import ProgramStep
from torchipu.step.in_common import described_optimiser

TYPES: Mapping[str, DType | None] = {"gradient": None, "weight": None, "half": DType.HALF, "float": DType.FLOAT}
"""Types of accumulators and moments by the names that options give them; None is that of what they belong to."""


def _is_position(value: object) -> bool:
    """Whether a value numbers something; True and False, integers to Python, do not."""
    return isinstance(value, Integral) and not isinstance(value, bool)


class TrainStep(ProgramStep):
    """Trains a model on the emulated IPU: forward, loss, backward, accumulation and update are one program.

    A call runs ``device_iterations`` weight updates, each over ``gradient_accumulation`` micro-batches.

    Args:
        model: Module whose forward returns the loss among its outputs.
        optimizer: ``torch.optim`` SGD, Adam, AdamW or RMSprop over the model's parameters. Learning rates and
            other hyper-parameters are read at each call.
        options: What to emulate.
        loss: Position of the loss among the flattened outputs; None finds the only 0-d output that
            requires a gradient.

    Raises:
        OptionsError: The model is not a module, the optimiser is of another kind, or the loss is no position.
    """

    default_output_mode = "final"
    ignores_own_step = False  # of an optimiser that is a subclass
    always_damps = False  # SGD, as PopART does: see import_optimiser

    def __init__(
        self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, options: Options | None = None, *,
        loss: int | None = None,
    ) -> None:
        super().__init__(model, options)
        if not hasattr(optimizer, "param_groups"):  # one of torch.optim, or what wraps one
            raise OptionsError(
                f"optimizer must be a torch.optim.Optimizer, got {type(optimizer).__name__}", option="optimizer",
                value=optimizer, remedy="give torch.optim.SGD(model.parameters(), lr=...), or InferenceStep none",
            )
        if loss is not None and not _is_position(loss):
            raise OptionsError(
                f"loss must be a position among the results of forward, got {type(loss).__name__}", option="loss",
                value=loss, allowed="an int, or None for the only 0-d result that needs a gradient",
                remedy="let the model's forward compute the loss, and return it among its results",
            )
        self.optimizer = optimizer
        self.loss = loss
        self._loss_scale = torch.tensor(self.options.loss_scaling, dtype=torch.float32)
        self._scale_history = torch.zeros(3, dtype=torch.int64)
        self._used_scale = self.options.loss_scaling
        self._refreshed: tuple[BoundPlan, list[list[float]]] | None = None  # what memory has which hyper-parameters

    @property
    def micro_batches(self) -> int:
        """Micro-batches between two weight updates."""
        return self.options.gradient_accumulation

    @property
    def iterations(self) -> int:
        """Weight updates in one call."""
        return self.options.device_iterations

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Built:
        options = self.options
        with moments_over(options.batch_norm_group_size):
            capture = self._captured(arguments, keywords)
        accumulated, accumulation = self._accumulate(capture)
        accumulated, reductions = self._reduced(accumulated)
        capture, scale, counted, adapted = self._automatic_scale(capture)
        optimiser = self._scaled(self._import(self.optimizer, capture, accumulated), accumulated.values(), scale)
        added = joined([accumulation, counted])
        graph = Graph(
            capture.graph.name,
            (*capture.graph.inputs, *added.inputs, *adapted.inputs, *optimiser.inputs),
            capture.graph.outputs,
            (*as_made(capture.graph.ops, added.ops), *reductions, *optimiser.ops, *adapted.ops, *added.resets),
            (*capture.graph.updates, *added.updates, *optimiser.updates, *adapted.updates),
        )
        states = self._module_states(capture) | optimiser.host | dict.fromkeys(added.inputs)
        states |= zip(adapted.inputs, (self._loss_scale, self._scale_history), strict=False)
        return Built(capture, graph, states, frozenset(state for state, _ in graph.updates), optimiser)

    def _find_members(self) -> Members | None:
        options = self.options
        if options.pipeline_group is not None and options.process_group is None:
            return None
        return members_of(options.process_group)

    def _described(self) -> dict[str, object]:
        return {"optimiser": described_optimiser(self.optimizer), "calls so far": self._calls}

    def _accumulate(self, capture: Captured) -> tuple[dict[str, Tensor], Accumulation]:
        """Add the gradients up over the micro-batches of an update."""
        options = self.options
        running = options.mean_reduction == "running" and options.accumulation_reduction == "mean"
        return accumulate(
            capture.gradients, self.micro_batches, dtype=TYPES[options.accumulator_type], running_mean=running,
        )

    def _reduced(self, gradients: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], tuple[Op, ...]]:
        """Add gradients up over the replicas of all processes; return what the update reads, and the ops."""
        return all_reduce(gradients, self._replicas.total)

    @property
    def gradient_divisor(self) -> int:
        """By what the sum of gradients is divided before the update."""
        options = self.options
        if options.accumulation_reduction != "mean" or (options.mean_reduction == "running" and self.micro_batches > 1):
            return 1
        return (1 if options.divides_loss else self.micro_batches) * self._replicas.total

    def _automatic_scale(self, capture: Captured) -> tuple[Captured, Tensor | None, Accumulation, Accumulation]:
        """Make the loss scale a state of the program, if it is to follow the gradients."""
        if not self.options.automatic_loss_scaling or capture.loss_scale is None:
            return capture, None, Accumulation(), Accumulation()
        graph, scale = with_scale_of_the_program(capture.graph, capture.loss_scale)
        constants = {t: value for t, value in capture.constants.items() if t is not capture.loss_scale}
        options = self.options
        counters, counted = count_large(self._tracked(capture), options.loss_scale_bin_edge)
        adapted = Accumulation((scale,))
        if counters:
            reduced, reductions = all_reduce({counter.name: counter for counter in counters}, self._replicas.total)
            adapted = adapt(
                scale, tuple(reduced.values()), threshold=options.loss_scale_threshold,
                period=options.loss_scale_period,
            )
            adapted = dataclasses.replace(adapted, ops=(*reductions, *adapted.ops))
        return dataclasses.replace(capture, graph=graph, constants=constants), scale, counted, adapted

    def _tracked(self, capture: Captured) -> tuple[Tensor, ...]:
        """Return the gradients that automatic loss scaling looks at."""
        named = self.options.loss_scale_tensors
        if named is None:
            return of_kind(capture.graph, capture.gradients.values(), self.options.loss_scale_gradients)
        return of_names(capture.graph, capture.gradients, named)

    def _import(
        self, optimizer: torch.optim.Optimizer, capture: Captured, gradients: Mapping[str, Tensor],
    ) -> OptimiserImport:
        """Write an optimiser as ops that read these gradients."""
        options = self.options
        scale = (1.0 if options.automatic_loss_scaling else options.loss_scaling) * self.gradient_divisor
        types = {
            key: TYPES[chosen] for keys, chosen in (
                (FIRST_MOMENTS, options.first_moment_type), (SECOND_MOMENTS, options.second_moment_type),
            ) for key in keys
        }
        return import_optimiser(
            optimizer, self.model, capture.parameters, gradients, gradient_scale=1.0 / scale, state_types=types,
            ignores_own_step=self.ignores_own_step, always_damps=self.always_damps,
        )

    def _scaled(
        self, optimiser: OptimiserImport, gradients: Iterable[Tensor], scale: Tensor | None = None,
    ) -> OptimiserImport:
        """Put clipping and the program's loss scale, as the options ask, between gradients and their optimiser."""
        options = self.options
        return scaled(
            optimiser, gradients, max_norm=options.max_grad_norm, max_value=options.max_grad_value, loss_scale=scale,
        )

    @property
    def loss_scale(self) -> float:
        """Factor on the loss in the next call: the option ``loss_scaling``, or where automatic scaling has led."""
        return float(self._loss_scale)

    @property
    def used_loss_scale(self) -> float:
        """Factor on the loss in the last call; where it follows the gradients, at the beginning of that call."""
        return self._used_scale

    def _run(self, tensors: Sequence[torch.Tensor]) -> Any:
        self._used_scale = self._current_scale()
        self._seen.note_scale(self._calls, self._used_scale)
        return super()._run(tensors)

    def _current_scale(self) -> float:
        return self.loss_scale if self.options.automatic_loss_scaling else self.options.loss_scaling

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        return self._cached(arguments, keywords, f"training, loss {self.loss}", lambda: capture_joint(
            self.model, arguments, keywords, loss=self.loss, loss_scale=self.options.backward_scale,
            strict_ops=self.options.strict_ops,
        ))

    def _everywhere(self) -> tuple[torch.Tensor, ...]:
        return self._loss_scale, self._scale_history

    def _refresh(self) -> None:
        """Read learning rates and the other hyper-parameters anew."""
        assert self._built is not None and self._built.optimiser is not None and self._bound is not None
        self._built.optimiser.refresh()
        hyperparameters = self._built.optimiser.hyperparameters
        refreshed = self._bound, [value.tolist() for value in hyperparameters.values()]
        if refreshed == self._refreshed:
            return
        for tensor, value in hyperparameters.items():
            if tensor not in self._bound.host_plan.states:
                continue  # only other processes of a pipeline read it
            self._bound.state_view(tensor).copy_(value.view(torch.int64))
        self._refreshed = refreshed

    def _mark_stepped(self) -> None:
        # Schedulers of learning rates warn unless the optimiser has made a step before theirs.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]

    def _keep(self) -> Callable[[], None]:
        """Note which states the optimiser has: those of a first step are created before it has run."""
        states = self.optimizer.state
        before = [(parameter, state, dict(state)) for parameter, state in states.items()]

        def undo() -> None:
            known = {id(parameter) for parameter, _, _ in before}
            for parameter in [parameter for parameter in states if id(parameter) not in known]:
                del states[parameter]
            for parameter, state, values in before:
                states[parameter] = state
                state.clear()
                state.update(values)

        return undo
