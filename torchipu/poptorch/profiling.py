"""The name under which PopTorch keeps its trace points."""

from __future__ import annotations

from torchipu.poptorch.trace_points import Channel

__all__ = ["Channel"]
