"""The one-Program door: a whole training step, or a loop of inferences, as one program a call."""

from __future__ import annotations

from torchipu.step.compiling import Progress
from torchipu.step.inference import InferenceStep
from torchipu.step.training import TrainStep

__all__ = ["InferenceStep", "Progress", "TrainStep"]
