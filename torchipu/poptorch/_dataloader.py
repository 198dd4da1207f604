"""The name under which PopTorch keeps its loaders."""

from __future__ import annotations

from torchipu.poptorch.data.accessor import AsynchronousDataAccessor
from torchipu.poptorch.data.loader import DataLoader

__all__ = ["AsynchronousDataAccessor", "DataLoader"]
