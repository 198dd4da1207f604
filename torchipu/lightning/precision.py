"""Precision on IPUs: float32, half throughout, or half where autocast allows it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

ALLOWED = ("32-true", "16-true", "16-mixed")


class IPUPrecisionMethods:
    """What IPUPrecision does beside Lightning's Precision.

    Args:
        precision: ``32-true``, ``16-true`` or ``16-mixed``.

    Raises:
        ValueError: It is another one.
    """

    precision: Any = "32-true"

    def __init__(self, precision: str = "32-true") -> None:
        self.precision = checked(precision)

    def convert_module(self, module: torch.nn.Module) -> torch.nn.Module:
        """Halve the module for ``16-true``."""
        return module.half() if self.precision == "16-true" else module

    def convert_input(self, data: Any) -> Any:
        """Halve what has a fraction in a batch, unless the precision is ``32-true``."""
        if self.precision == "32-true":
            return data
        return pytree.tree_map(
            lambda leaf: leaf.half() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf, data,
        )

    @contextlib.contextmanager
    def forward_context(self) -> Iterator[None]:
        """Surround the capture of a step."""
        if self.precision != "16-mixed":
            yield
            return
        with torch.autocast("cpu", dtype=torch.float16):
            yield

    @contextlib.contextmanager
    def tensor_init_context(self) -> Iterator[None]:
        """Make tensors of the module in its type."""
        before = torch.get_default_dtype()
        if self.precision == "16-true":
            torch.set_default_dtype(torch.float16)
        try:
            yield
        finally:
            torch.set_default_dtype(before)

    module_init_context = tensor_init_context

    def optimizer_step(self, optimizer: Any, model: Any, closure: Any, **kwargs: Any) -> Any:
        """Run the closure, in which the program has made the update."""
        return closure()

    def clip_gradients(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: gradients are clipped in the program."""


def checked(precision: Any) -> str:
    """Return a precision that IPUs have.

    Raises:
        ValueError: They do not have it.
    """
    names = {"16": "16-mixed", "32": "32-true"}
    found = names.get(str(precision), str(precision))
    if found not in ALLOWED:
        raise ValueError(
            f"`Trainer(accelerator='ipu', precision={precision!r})` is not supported. `precision` must be one of: "
            f"{ALLOWED}."
        )
    return found
