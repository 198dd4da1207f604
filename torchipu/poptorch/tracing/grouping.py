"""Parameters with one value for each group of replicas, ``[groups, ...]``.

A program holds all values. Every replica begins its micro-batch by picking that of its group, whose number it is given
like an input; the gradient goes back into that row alone, so that rows are averaged over the replicas of a group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Group:
    """How the replicas share the values of a parameter.

    Attributes:
        name: Of the parameter, an attribute of the model itself.
        count: Groups, each with a value.
        size: Replicas in a group.
        is_orthogonal: Whether the replicas of a group lie ``count`` apart, and are no neighbours.
        returns_all: Whether the host is given the value of every replica, and not of every group.
    """

    name: str
    count: int
    size: int
    is_orthogonal: bool
    returns_all: bool

    @property
    def sharing(self) -> tuple[int, int]:
        """Divisor and modulus by which a replica's number gives that of its group; modulus 0 for none."""
        return (1, self.count) if self.is_orthogonal else (self.size, 0)

    def of_replicas(self) -> list[int]:
        """Return the group of each replica."""
        replicas = range(self.count * self.size)
        return [r % self.count if self.is_orthogonal else r // self.size for r in replicas]

    def rows(self, value: torch.Tensor) -> torch.Tensor:
        """Return the value of each group.

        Args:
            value: One row for each group or for each replica.
        """
        if len(value) == self.count:
            return value
        groups = self.of_replicas()
        return value[[groups.index(group) for group in range(self.count)]]


@contextlib.contextmanager
def picked(
    model: torch.nn.Module, groups: Sequence[Group], numbers: Sequence[torch.Tensor], *, is_mean: bool,
) -> Iterator[None]:
    """Let a model see the values of a replica's groups.

    Args:
        model: Owner of the parameters.
        groups: How they are shared.
        numbers: Number of the replica's group in each, an int64 without sizes.
        is_mean: Whether gradients are averaged over all replicas: then those of a group are scaled to its own mean.
    """
    held: dict[str, Any] = model._parameters
    before = {group.name: held[group.name] for group in groups}
    for group, number in zip(groups, numbers, strict=True):
        value = held[group.name].index_select(0, number.reshape(1)).squeeze(0)
        held[group.name] = _Factor.apply(value, group.count) if is_mean else value
    try:
        yield
    finally:
        held.update(before)


class _Factor(torch.autograd.Function):
    """Passes a value on, and its gradient times a number."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: int) -> torch.Tensor:
        """Return the value."""
        ctx.factor = factor
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        """Return the gradient times the number."""
        return gradient * ctx.factor, None
