"""Capture of a model of which layers repeat."""

from __future__ import annotations

from collections.abc import Callable

import torch

from torchipu.capture.captured import Captured


def captured_once(model: torch.nn.Module, capture: Callable[[], Captured]) -> Captured:
    """Return the capture of a model."""
    return capture()
