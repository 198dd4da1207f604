"""Which tensor a call into torch writes, by its name and its arguments."""

from __future__ import annotations

from typing import Any

import torch

_ITEMS = frozenset({
    "__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__",
    "__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__",
})
"""Writes whose names do not end in one underscore."""
_NO_WRITES = frozenset({"requires_grad_", "rename_", "retain_grad_", "share_memory_", "pin_memory_"})
"""Names that end in one though they leave values as they are."""


def written_by(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """Return the tensor that a call writes into, or None.

    Args:
        function: What is called.
        args: Its arguments.
        kwargs: Its keyword arguments; ``out`` and ``inplace`` among them count.
    """
    name = getattr(function, "__name__", "")
    writes = name in _ITEMS or kwargs.get("inplace") is True or (name.endswith("_") and not name.endswith("__"))
    target = args[0] if writes and args and name not in _NO_WRITES else kwargs.get("out")
    return target if isinstance(target, torch.Tensor) else None
