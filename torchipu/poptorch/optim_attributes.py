"""Where optimisers that were pickled before look for which of their attributes may change."""

from __future__ import annotations

from torchipu.poptorch.optim.attributes import VariableAttributes

__all__ = [
    "VariableAttributes",
]
