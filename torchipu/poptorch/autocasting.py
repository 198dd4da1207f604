"""The name under which PopTorch keeps regions that are computed in other types."""

from __future__ import annotations

from torchipu.poptorch.operators.autocasting import Policy, autocast

__all__ = ["Policy", "autocast"]
