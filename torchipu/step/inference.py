"""Inference as one program a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchipu.capture.aot import capture_inference
from torchipu.capture.batch_norm import moments_over
from torchipu.capture.built import Built
from torchipu.capture.captured import Captured
from torchipu.errors import OptionsError
from torchipu.ir.graph import Tensor
from torchipu.options import Options
from torchipu.step.base import ProgramStep


class InferenceStep(ProgramStep):
    """Runs a model's forward on the emulated IPU, ``device_iterations`` micro-batches a call.

    Args:
        model: Module; its training flags are taken as they are.
        options: What to emulate.

    Raises:
        OptionsError: The model is not a module, or ``gradient_accumulation`` is not 1.
    """

    def __init__(self, model: torch.nn.Module, options: Options | None = None) -> None:
        super().__init__(model, options)
        if self.options.gradient_accumulation != 1:
            raise OptionsError(
                f"gradient_accumulation must be 1 for inference, got {self.options.gradient_accumulation}",
                option="gradient_accumulation", value=self.options.gradient_accumulation, allowed="1",
                remedy="use device_iterations to run several micro-batches in one call",
            )

    @property
    def micro_batches(self) -> int:
        """Micro-batches in one call."""
        return self.options.device_iterations

    @property
    def iterations(self) -> int:
        """One: inference has no weight update."""
        return 1

    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Built:
        with moments_over(self.options.batch_norm_group_size):
            capture = self._captured(arguments, keywords)
        written = frozenset(state for state, _ in capture.graph.updates)
        return Built(capture, capture.graph, self._module_states(capture), written)

    def _frozen(self, built: Built) -> Sequence[Tensor]:
        """Return the weights, and what stands in the program, where these are to be prepared once."""
        is_alone = self._parts is None and self._replicas.count == 1
        if not self.options.frozen_weights or built.written or not is_alone:
            return ()
        return [*built.states, *built.capture.constants]

    def _capture(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Captured:
        return self._cached(arguments, keywords, "inference", lambda: capture_inference(
            self.model, arguments, keywords, strict_ops=self.options.strict_ops,
        ))
