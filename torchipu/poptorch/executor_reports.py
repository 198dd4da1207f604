"""What an executor tells of its program: tensors by name, times, cycles, the program as text."""

from __future__ import annotations

import datetime
import json

import torch

from torchipu.poptorch import ir_text, perf
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch.anchors import UPDATED, tensor_names
from torchipu.poptorch.options import Options
from torchipu.poptorch.session import Session


class Reports:
    """The part of `PoplarExecutor` that only tells."""

    _executable: Session | None
    _options: Options
    _training: bool
    _has_run: bool
    _perf: perf.Counters
    _anchor_memory: dict[str, torch.Tensor]
    _compilation_seconds: float | None
    _optimizer: torch.optim.Optimizer | None

    def _session(self) -> Session:
        raise NotImplementedError

    # ------------------------------------------------------------------ tensors by name
    def getTensorNames(self) -> list[str]:
        """Return the names of all tensors of the program."""
        assert self._executable is not None, "Model must be compiled before tensor names can be read"
        built = self._executable._built
        assert built is not None
        return list(tensor_names(built.graph, built.capture.gradients))

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return what the last run left in a tensor that `Options.anchorTensor` has named.

        Args:
            short_name: First argument of that call.
        """
        assert short_name in self._anchor_memory, f"No tensor with name {short_name} found."
        return self._anchor_memory[short_name]

    # ------------------------------------------------------------------ figures
    def getPerfCounters(self) -> dict[str, list[list[float]]]:
        """Return when each micro-batch's inputs were asked for and there, and its outputs ready and there, in s."""
        return self._perf.lists()

    def getLatency(self) -> tuple[float, float, float]:
        """Return least, greatest and mean seconds from a batch's first input to its last output."""
        return self._perf.latency("input", "output_complete")

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Return the same from the first input to the last one being there."""
        return self._perf.latency("input", "input_complete")

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Return the same from the last input being there to the last output being ready."""
        return self._perf.latency("input_complete", "output")

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Return the same from the first output being ready to the last one being there."""
        return self._perf.latency("output", "output_complete")

    def cycleCount(self) -> int:
        """Return the modelled cycles of a run; the emulator needs no hardware for it."""
        if not self._options._popart.options.get("instrumentWithHardwareCycleCounter"):
            raise createPoptorchError(
                "Cycle count logging is disabled. Please set the logCycleCount option to True to enable it."
            )
        if not self._has_run:
            raise createPoptorchError("Please run the model at least once to obtain the cycle count.")
        session = self._session()
        per_update = session.compiled.cost.cycles
        return int(per_update * (session.iterations if self._training else 1))

    def compilationTime(self) -> datetime.timedelta:
        """Return how long the compilation took."""
        if self._compilation_seconds is None:
            raise createPoptorchError("Please compile the model before obtaining compilation time.")
        if not self._options._show_compilation_progress_bar:
            raise createPoptorchError("Please set showCompilationProgressBar option to True to get compilation time.")
        return datetime.timedelta(seconds=self._compilation_seconds)

    def _debugGetPopartIR(self) -> str:
        """Return the program's ops as JSON."""
        return json.dumps(ir_text.popart_ir(self._session().compiled, is_combined=self._is_combined))

    @property
    def _is_combined(self) -> bool:
        """Whether SGD keeps one tensor for accumulator and velocity."""
        return bool(getattr(self._optimizer, "use_combined_accum", False))

    def _keep_anchored(self, session: Session, anchored: dict[str, torch.Tensor]) -> None:
        for name, (long_name, *_) in self._options.anchored_tensors.items():
            if long_name.startswith(UPDATED):
                anchored[name] = session.state_named(long_name.removeprefix(UPDATED))
        self._anchor_memory = anchored
