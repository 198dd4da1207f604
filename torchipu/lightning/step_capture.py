"""Runs a step of a Lightning module while it is captured: tensors in, tensors out, and the tape of all else it does."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.capture.captured import Captured
from torchipu.capture.distributions import unvalidated
from torchipu.capture.running import Running, capture_by_running
from torchipu.errors import CaptureError, IpuError
from torchipu.lightning.effects import Assigned
from torchipu.lightning.expressions import Number, NumbersInTorch, Output, Surroundings, number
from torchipu.lightning.repetition import Repetition
from torchipu.lightning.tape import Tape
from torchipu.lightning.watched_module import Reading, watched
from torchipu.poptorch.capturing import on_ipu
from torchipu.poptorch.operators.placing import check_depth, placing, refuse_ops_outside
from torchipu.poptorch.options import Options

NUMBER_SLOTS = 16
"""Python numbers of a step that may be inputs of its program; more of them are fixed by guards."""
SKIPPED = "Skipping backward by returning `None` from your `training_step` is not implemented for IPUs."


@dataclass(frozen=True, slots=True)
class StepCall:
    """How a step is called: its batch in tensors and what is no tensor.

    Attributes:
        hook: Name of the step.
        spec: Structure of the batch.
        leaves: Its leaves; None for a tensor.
        rest: The arguments behind the batch: index of the batch, then that of the loader.
    """

    hook: str
    spec: pytree.TreeSpec
    leaves: tuple[Any, ...]
    rest: tuple[int, ...]

    def batch(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Return a batch of other tensors."""
        given = iter(tensors)
        return pytree.tree_unflatten([next(given) if leaf is None else leaf for leaf in self.leaves], self.spec)


class StepCapture(Running):
    """A step as a function from flat tensors to flat tensors.

    Args:
        module: The Lightning module.
        call: How the step is called.
        options: PopTorch's options of the stage: how blocks become stages.
        surrounding: Made anew around each run of the step; the precision's context.
        is_training: Whether there must be a loss.
        loss_scale: What the backward ops begin from.
        error: Lightning's exception for configurations.

    Attributes:
        tape: What the step did beside computing.
        returned: What it returned, with outputs in the places of tensors.
        guards: What must hold for the capture to be right.
        numbers: Python numbers that are inputs, in the order of their slots.
    """

    keeps_writes = False
    num_behind = 0
    """Inputs behind the numbers."""

    def __init__(
        self, module: Any, call: StepCall, options: Options, surrounding: Callable[[], AbstractContextManager[Any]], *,
        is_training: bool, loss_scale: float = 1.0, error: type[Exception] = RuntimeError,
    ) -> None:
        super().__init__(module, loss_scale if is_training else 0.0)
        self.call = call
        self.poptorch_options = options
        self.surrounding = surrounding
        self.is_training = is_training
        self.error = error
        self.tape = Tape(module)
        self.returned: Any = None
        self.guards: list[Any] = []
        self.numbers: list[Number] = []
        self.counters: set[str] = set()
        self.plain: list[tuple[dict[str, Any], str, Any]] = []
        self.ipus: list[int] = []
        self._uses_blocks: bool | None = None
        self._captured: Captured | None = None

    # ------------------------------------------------------------------ running
    def run(self, tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], int | None]:
        """Run the step, and note what it does."""
        given = list(tensors)
        slots = given.pop(len(given) - 1 - self.num_behind)
        module: Any = self.inner
        self.guards, self.numbers = [], []
        tape = Tape(module)
        rest = self.call.rest
        indices = (number(rest[0], lambda at: at.names["batch_idx"], self.guards), *rest[1:]) if rest else ()

        def as_input(found: Number) -> torch.Tensor | None:
            if len(self.numbers) == NUMBER_SLOTS:
                return None
            self.numbers.append(found)
            return slots[len(self.numbers) - 1]

        strategy = self.poptorch_options._execution_strategy
        with contextlib.ExitStack() as stack:
            placed = stack.enter_context(placing(strategy)) if self._uses_blocks is not False else None
            stack.enter_context(on_ipu(self.is_training, module))
            stack.enter_context(unvalidated())
            stack.enter_context(torch.autograd.set_detect_anomaly(False))
            stack.enter_context(self.surrounding())
            stack.enter_context(tape.noting())
            read = stack.enter_context(watched(module, self.guards, self.counters))
            stack.enter_context(self.in_force(tape, given, read))
            stack.enter_context(NumbersInTorch(as_input))
            returned = getattr(module, self.call.hook)(self.call.batch(given), *indices)
        if placed is not None:
            self._uses_blocks, self.ipus = bool(placed.names), placed.ipus
        self.counters |= read.written
        self.plain = read.plain_attributes()
        self.tape = tape
        return self.outcome(returned, tape)

    @contextlib.contextmanager
    def in_force(self, tape: Tape, given: list[torch.Tensor], reading: Reading) -> Iterator[None]:
        """Surround the call of the step.

        Args:
            tape: What the step does beside computing.
            given: Inputs; those that are not of the batch are taken off.
            reading: What the step reads of the state of the training.
        """
        yield

    def outcome(self, returned: Any, tape: Tape) -> tuple[list[torch.Tensor], int | None]:
        """Return the results of a step: those of its tape, and which of them is the loss."""
        loss = self._loss_of(returned)
        self.returned = tape.hold(returned)
        place = None if loss is None else tape.hold(loss)
        if isinstance(place, Output):
            tape.reductions.setdefault(place.place, "mean")
            return tape.tensors, place.place
        return tape.tensors, None

    def _loss_of(self, returned: Any) -> torch.Tensor | None:
        """Return the loss among what training_step returned."""
        if not self.is_training:
            return None
        if returned is None:
            raise self.error(SKIPPED)
        loss = returned.get("loss") if isinstance(returned, dict) else returned
        if not isinstance(loss, torch.Tensor):
            raise self.error(
                "In automatic_optimization, `training_step` must return a Tensor, a dict with key `loss` or None "
                f"(where the step will be skipped), got {type(loss).__name__}"
            )
        if not loss.requires_grad:
            raise RuntimeError(
                "element 0 of tensors does not require grad and does not have a grad_fn: the loss of training_step "
                "does not depend on any parameter that is trained"
            )
        return loss

    # ------------------------------------------------------------------ capturing
    def captured(self, tensors: Sequence[torch.Tensor], *, strict_ops: bool) -> Captured:
        """Return the step as a graph.

        Args:
            tensors: Those of a micro-batch.
            strict_ops: Refuse ops that would run through the generic codelet.

        Raises:
            CaptureError: The step needs a value on the host while it runs.
            Exception: Whatever the step raises.
        """
        if self._captured is None:
            given = list(tensors)
            given.insert(len(given) - self.num_behind, torch.zeros(NUMBER_SLOTS))
            try:
                self._captured = capture_by_running(
                    self, given, name=self.call.hook, strict_ops=strict_ops,
                )
            except CaptureError as error:
                raise self._explained(error) from error
            refuse_ops_outside(self._captured.graph.ops)
            verdict = Repetition(self, given).verdict() if self.tape.may_differ() else None
            if verdict is not None:
                self.tape.judge(verdict)
        return self._captured

    def _explained(self, error: CaptureError) -> IpuError:
        cause = error.__cause__
        trace = cause.__traceback__ if cause is not None else None
        own = type(self.inner).__module__
        line = ""
        while trace is not None:
            if trace.tb_frame.f_globals.get("__name__") == own:
                line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
            trace = trace.tb_next
        where = f"{type(self.inner).__name__}.{self.call.hook}" + (f" at {line}" if line else "")
        return CaptureError(
            f"{where} looks at values of tensors while it is captured: {str(error).splitlines()[0]}",
            source=error.source,
            remedy="keep it in tensors (torch.where, masks), or do it in a hook such as on_train_batch_end",
        )

    def check_depth(self, *, gradient_accumulation: int, device_iterations: int) -> None:
        """Refuse a pipeline that a call cannot fill, in PopTorch's words."""
        check_depth(
            self.poptorch_options._execution_strategy, self.ipus, gradient_accumulation=gradient_accumulation,
            device_iterations=device_iterations, is_training=self.is_training,
        )

    # ------------------------------------------------------------------ later calls
    def holds(self, at: Surroundings) -> bool:
        """Whether what the capture took for given is still so."""
        return all(guard.holds(at) for guard in self.guards) and all(
            held.get(name) == value for held, name, value in self.plain
        )

    def advanced(self, at: Surroundings) -> dict[str, Any]:
        """Return what counters are after a micro-batch."""
        return {
            action.path[1]: action.content.expression(at) for action in self.tape.actions
            if isinstance(action, Assigned) and len(action.path) == 2 and action.path[0] == ""
            and isinstance(action.content, Number)
        }

    def slots(self, at: Surroundings) -> list[float]:
        """Return the values of the numbers that are inputs."""
        values = [float(found.expression(at)) for found in self.numbers]
        return values + [0.0] * (NUMBER_SLOTS - len(values))
