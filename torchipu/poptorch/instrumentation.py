"""Where models that were pickled before while wrapped for training look for what restores them."""

from __future__ import annotations

from torchipu.poptorch.executor.instrumentation import PoptorchBuffer, PoptorchParameter, restore_module

__all__ = [
    "PoptorchBuffer",
    "PoptorchParameter",
    "restore_module",
]
