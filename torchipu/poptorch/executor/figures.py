"""What an executor tells of its program: tensors by name, times, cycles, the program as text."""

from __future__ import annotations

import datetime
import json

import torch

from torchipu.poptorch.executor.state import State
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.reports import ir_text
from torchipu.poptorch.reports.anchors import tensor_names
from torchipu.poptorch.reports.perf import Counters


class Figures:
    """Tells of the program of an executor and of its runs.

    Args:
        state: The executor's.
        counters: When inputs and results of the last run were there.
    """

    def __init__(self, state: State, counters: Counters) -> None:
        self._state = state
        self.counters = counters

    def tensor_names(self) -> list[str]:
        """Return the names of all tensors of the program."""
        session = self._state.executable
        if session is None:
            raise AssertionError("Model must be compiled before tensor names can be read")
        built = session._built
        assert built is not None
        return list(tensor_names(built.graph, built.capture.gradients))

    def anchored(self, name: str) -> torch.Tensor:
        """Return what the last run left in a tensor that the options name."""
        if name not in self._state.anchored:
            raise AssertionError(f"No tensor with name {name} found.")
        return self._state.anchored[name]

    def cycles(self) -> int:
        """Return the modelled cycles of a run.

        Raises:
            Error: They were not asked for, or there has been no run.
        """
        state = self._state
        if not state.options._popart.options.get("instrumentWithHardwareCycleCounter"):
            raise createPoptorchError(
                "Cycle count logging is disabled. Please set the logCycleCount option to True to enable it."
            )
        if not state.has_run:
            raise createPoptorchError("Please run the model at least once to obtain the cycle count.")
        per_update = state.session.compiled.cost.cycles
        return int(per_update * (state.session.iterations if state.is_training else 1))

    def compilation_time(self) -> datetime.timedelta:
        """Return how long the compilation took.

        Raises:
            Error: There was none, or its progress was not shown.
        """
        state = self._state
        if state.compilation_seconds is None:
            raise createPoptorchError("Please compile the model before obtaining compilation time.")
        if not state.options._show_compilation_progress_bar:
            raise createPoptorchError("Please set showCompilationProgressBar option to True to get compilation time.")
        return datetime.timedelta(seconds=state.compilation_seconds)

    def popart_ir(self) -> str:
        """Return the program's ops as JSON."""
        return json.dumps(ir_text.popart_ir(self._state.session.compiled, is_combined=self._state.is_combined))
