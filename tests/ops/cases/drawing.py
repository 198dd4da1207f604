"""Operands of the calls that the op table is tested with: seeded, of one type, with a batch that may be empty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch


class Call(NamedTuple):
    """A call of an ATen overload.

    Attributes:
        target: The overload, as the op table names it.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = {}


def call(name: str, *args: Any, **kwargs: Any) -> Call:
    """Return a call of ``aten.<name>``."""
    return Call(f"aten.{name}", args, kwargs)


class Draw:
    """Draws operands.

    Args:
        dtype: Element type of values.
        batch: Size of what families of ops take as their outermost dimension; 0 makes operands empty.
    """

    def __init__(self, dtype: torch.dtype = torch.float32, batch: int = 3) -> None:
        self.dtype = dtype
        self.batch = batch
        self.generator = torch.Generator().manual_seed(11)

    def __call__(self, *shape: int) -> torch.Tensor:
        """Return values that tie nowhere where the type has enough of them: normal, whole or true and false."""
        return self.typed(torch.randn(shape, generator=self.generator))

    def typed(self, values: torch.Tensor) -> torch.Tensor:
        """Return normal values in the element type."""
        if self.dtype is torch.bool:
            return values > 0
        if self.dtype.is_floating_point:
            return values.to(self.dtype)
        return (values * 4).round().clamp(0 if self.dtype is torch.uint8 else -12, 12).to(self.dtype)

    def apart(self, *shape: int) -> torch.Tensor:
        """Return values of which no two are equal, in half too; those of bool and small types repeat."""
        count = torch.Size(shape).numel()
        ranks = torch.randperm(count, generator=self.generator).reshape(shape)
        if self.dtype.is_floating_point:
            return (ranks.float() / 64 - count / 128).to(self.dtype)
        return (ranks % 2 if self.dtype is torch.bool else ranks % 100).to(self.dtype)

    def within(self, low: float, high: float, *shape: int) -> torch.Tensor:
        """Return evenly drawn values."""
        return self.typed(torch.rand(shape, generator=self.generator) * (high - low) + low)

    def index(self, bound: int, *shape: int) -> torch.Tensor:
        """Return positions below a bound."""
        return torch.randint(max(1, bound), shape, generator=self.generator)

    def distinct(self, bound: int, count: int) -> torch.Tensor:
        """Return positions below a bound of which no two are equal."""
        return torch.randperm(bound, generator=self.generator)[:count]

    def mask(self, *shape: int) -> torch.Tensor:
        """Return booleans."""
        return torch.rand(shape, generator=self.generator) < 0.5
