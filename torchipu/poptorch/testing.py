"""The name under which PopTorch keeps the comparison of nested results."""

from __future__ import annotations

from torchipu.poptorch.arguments.comparison import allclose

__all__ = ["allclose"]
