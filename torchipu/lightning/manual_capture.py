"""Runs a ``training_step`` of manual optimisation while it is captured: backward and updates are marks in its graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from torchipu.capture.manual_updates import kept
from torchipu.capture.segments import Segments, cut
from torchipu.errors import CaptureError
from torchipu.lightning.expressions import Guard, Surroundings
from torchipu.lightning.step_capture import StepCapture
from torchipu.lightning.tape import Tape, standing_in
from torchipu.lightning.traced_optimizers import CHANGES, Recorder, Stepped
from torchipu.lightning.traced_parameters import TracedParameters
from torchipu.lightning.watched_module import Reading


@dataclass(frozen=True, slots=True)
class FlagsSet:
    """Which parameters take gradients behind the step, where it is not as before."""

    flags: dict[str, bool]

    def do(self, module: Any, at: Surroundings) -> None:
        """Let the parameters take gradients, or not."""
        for name, flag in self.flags.items():
            module.get_parameter(name).requires_grad_(flag)


def with_gradients(module: torch.nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters that have a gradient."""
    return tuple(name for name, parameter in module.named_parameters() if parameter.grad is not None)


class ManualCapture(StepCapture):
    """A step that calls backward and its optimisers itself.

    Args:
        *args: As for `StepCapture`.
        held: Names of the parameters that have a gradient from before; the gradients are the last inputs.
        replicas: Of all processes.
        averages: Whether gradients of replicas are averaged, rather than added up.
        **kwargs: As for `StepCapture`.

    Attributes:
        early: What changes hyper-parameters, by the number of the step before which it has to be done.
    """

    keeps_writes = True  # a gradient from before may be changed in its place

    def __init__(self, *args: Any, held: Sequence[str], replicas: int, averages: bool, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.loss_scale = 0.0
        self.held = tuple(held)
        self.num_behind = len(self.held)
        self.replicas = replicas
        self.share = 1.0 / replicas if averages else 1.0
        self.traced = TracedParameters(self.inner)
        self._left: list[torch.Tensor] = []
        self.early: dict[int, list[Any]] = {}
        self._segments: Segments | None = None

    # ------------------------------------------------------------------ running
    @contextlib.contextmanager
    def in_force(self, tape: Tape, given: list[torch.Tensor], reading: Reading) -> Iterator[None]:
        """Stand in for what the step does with gradients and optimisers."""
        count = len(given) - len(self.held)
        gradients = dict(zip(self.held, given[count:], strict=True))
        del given[count:]
        recorder = Recorder(self.inner, tape, self.guards, self.traced, self.share)
        module = self.inner
        self.guards.append(Guard(lambda at: with_gradients(module), self.held))
        reading.steps = lambda: recorder.steps
        clip: Any = torch.nn.utils.clip_grad
        with (
            torch.enable_grad(), self.traced.bound(gradients), standing_in(self.inner, recorder.members()),
            mock.patch.object(torch.autograd, "backward", recorder.backward),
            mock.patch.object(clip, "_has_foreach_support", lambda *args, **kwargs: False),
        ):
            yield
            self._note_end(tape)

    def _note_end(self, tape: Tape) -> None:
        """Mark what is there at the end of the step."""
        flags = self.traced.changed_flags()
        if flags:
            tape.actions.append(FlagsSet(flags))
        self._left = []
        with torch.no_grad():
            for name in self.traced.names:
                leaf = self.traced.leaf(name)
                if self.traced.was_bound_anew(name):
                    self._left.append(kept(leaf.detach(), "parameter", name))
                if leaf.grad is not None:
                    self._left.append(kept(leaf.grad.detach(), "gradient", name))

    def outcome(self, returned: Any, tape: Tape) -> tuple[list[torch.Tensor], int | None]:
        """Return the results of the step, and behind them marks of what is there at its end."""
        if returned is not None and not isinstance(returned, (torch.Tensor, dict)):
            raise self.error("In manual optimization, `training_step` must either return a Tensor or have no return.")
        self.returned = tape.hold(returned)
        self._take_early(tape)
        return [*tape.tensors, *self._left], None

    def _take_early(self, tape: Tape) -> None:
        """Take out of the tape what has to be done before a step."""
        self.early = {}
        pending: dict[int, list[Any]] = {}
        for action in tape.actions:
            if isinstance(action, CHANGES):
                pending.setdefault(action.optimiser, []).append(action)
            elif isinstance(action, Stepped):
                changes = pending.pop(action.optimiser, [])
                if changes:
                    self.early[action.step] = changes
        done = {id(action) for changes in self.early.values() for action in changes}
        tape.actions = [action for action in tape.actions if id(action) not in done]

    # ------------------------------------------------------------------ the programs
    def segments(self) -> Segments:
        """Return the step as programs."""
        if self._segments is None:
            assert self._captured is not None
            tensors = [tensor for tensor in self._captured.arguments if tensor is not None]
            held = dict(zip(self.held, tensors[len(tensors) - len(self.held) :], strict=True))
            self._segments = cut(self._captured, len(self.tape.tensors), held, self.replicas)
        return self._segments

    def do_early(self, steps: Sequence[int], at: Surroundings) -> None:
        """Change hyper-parameters as the step does before it calls optimisers.

        Raises:
            CaptureError: A change needs a value that a later program computes.
        """
        for step in steps:
            for action in self.early.get(step, ()):
                try:
                    action.do(self.inner, at)
                except LookupError as error:
                    raise CaptureError(
                        f"{type(self.inner).__name__}.training_step changes a learning rate by a value that is there "
                        "only when the update has been made", remedy="call the scheduler behind the last step of its "
                        "optimiser, or in on_train_batch_end",
                    ) from error
