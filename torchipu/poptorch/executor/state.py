"""What an executor knows: the one object that its parts share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from torchipu.poptorch.arguments.parser import ArgsParser, Arguments
from torchipu.poptorch.executor.session import Session
from torchipu.poptorch.optim.attributes import FixedValues
from torchipu.poptorch.options import Options
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.reports.profile import RunReport
from torchipu.poptorch.trace_points import Channel
from torchipu.poptorch.tracing.traced_model import Function

NOT_COMPILED = "Model has not been compiled or has been destroyed."


@dataclass(eq=False)
class State:
    """What an executor knows.

    Attributes:
        user_model: The user's module or callable.
        model: The module that is captured.
        options: The executor's own, a copy of the user's.
        is_training: Whether it was made for training.
        optimizer: The one that the device follows.
        parser: From a call's arguments to those of ``forward``.
        channel: Its row of trace points.
        executable: The program on the device, or None before a compilation and after `forget`.
        compiled_arguments: Those that it was compiled for, without values.
        was_compiled: Whether there has ever been a program.
        compiled_by: The thread that compiles at this moment, or None.
        compilation_seconds: How long the last compilation took.
        is_attached: Whether the program is on the device.
        is_dirty: Whether the weights of the device are newer than the host's.
        is_optimiser_dirty: Whether the optimiser's states are.
        fixed: What of the optimiser is a constant of the program.
        host_version: How often weights have come to the host.
        seen_version: That of the trainer when weights went to the device; -1 for none.
        has_run: Whether a call has come to its end.
        anchored: What the last call left in tensors that the options name.
        random: Seed and count of calls, if they were read since the last call.
        groups: Arguments of ``replicaGrouping``, by parameter.
        stand_ins: Types of inputs that the device has for those that it lacks.
        report: Of the program, where one was asked for.
    """

    user_model: Any
    model: torch.nn.Module | Function
    options: Options
    is_training: bool
    optimizer: torch.optim.Optimizer | None
    parser: ArgsParser
    channel: Channel
    executable: Session | None = None
    compiled_arguments: Arguments | None = None
    was_compiled: bool = False
    compiled_by: int | None = None
    compilation_seconds: float | None = None
    is_attached: bool = False
    is_dirty: bool = False
    is_optimiser_dirty: bool = False
    fixed: FixedValues | None = None
    host_version: int = 0
    seen_version: int = -1
    has_run: bool = False
    anchored: dict[str, torch.Tensor] = field(default_factory=dict)
    random: tuple[int, int] | None = None
    groups: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    stand_ins: dict[torch.dtype, torch.dtype] = field(default_factory=dict)
    report: RunReport | None = None

    @property
    def session(self) -> Session:
        """The program.

        Raises:
            Error: There is none.
        """
        self.check_compiled()
        assert self.executable is not None
        return self.executable

    def check_compiled(self) -> None:
        """Raise Error if there is no program."""
        if self.executable is None:
            raise createPoptorchError(NOT_COMPILED)

    @property
    def holder(self) -> torch.nn.Module:
        """The module that holds parameters and buffers: the user's, if it is one."""
        return self.user_model if isinstance(self.user_model, torch.nn.Module) else self.model

    @property
    def is_combined(self) -> bool:
        """Whether SGD keeps one tensor for accumulator and velocity."""
        return bool(getattr(self.optimizer, "use_combined_accum", False))

    def complete_report(self) -> None:
        """Let the report of the program tell of its runs."""
        if self.report is not None:
            self.report.complete()

    def forget(self) -> None:
        """Let there be no program any more."""
        self.complete_report()
        self.report = self.executable = None
        self.is_attached = False
        self.compiled_arguments = None
