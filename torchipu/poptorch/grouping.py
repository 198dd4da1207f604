"""Parameters with one value for each group of replicas, ``[groups, ...]``.

A program holds all values. Every replica begins its micro-batch by picking that of its group, whose number it is given
like an input; the gradient goes back into that row alone, so that rows are averaged over the replicas of a group.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from torchipu.poptorch import instrumentation
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch.enums import CommGroupType, VariableRetrievalMode


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


def groups_of(
    asked: Mapping[str, tuple[CommGroupType, int, VariableRetrievalMode]], model: Any, replicas: int,
) -> list[Group]:
    """Return how parameters are shared.

    Args:
        asked: Arguments of `GroupedParameter.replicaGrouping` by name.
        model: Owner of the parameters.
        replicas: Replicas that run.

    Raises:
        Error: Groups do not divide the replicas, or a parameter has not as many rows as there are groups.
    """
    found = []
    for name, (kind, shards, retrieval) in asked.items():
        if kind is CommGroupType.All:
            continue
        size = 1 if kind is CommGroupType.NoGrouping else shards
        if size < 1 or replicas % size:
            raise createPoptorchError(
                f"replicaGrouping of {name}: groups of {size} replicas do not divide the {replicas} replicas"
            )
        rows, count = model._parameters[name].shape[0], replicas // size
        is_all, retrieves_all = rows == replicas, retrieval is VariableRetrievalMode.AllReplicas
        if rows != count and not (is_all and retrieves_all):
            raise createPoptorchError(
                f"replicaGrouping of {name}: the first size of the parameter must be the number of groups, {count}, "
                f"but it is {rows}"
            )
        group = Group(name, count, size, kind is CommGroupType.Orthogonal, retrieves_all)
        if rows != count:  # as an earlier program gave them back
            model._parameters[name].data = group.rows(model._parameters[name].detach())
        found.append(group)
    return found


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


class GroupedParameter(instrumentation.PoptorchParameter):
    """A parameter with the memory of the user's one, and a method beside those of a tensor."""

    _set_group: Callable[..., None]

    @classmethod
    def of(cls, parameter: torch.nn.Parameter, set_group: Callable[..., None]) -> GroupedParameter:
        """Return a parameter of a model as an executor shows it.

        Args:
            parameter: The model's.
            set_group: Told the arguments of `replicaGrouping`.
        """
        twin = instrumentation.plain(parameter)
        twin.__class__ = cls
        twin.__dict__[instrumentation.OWNERS] = list(parameter.__dict__.get(instrumentation.OWNERS, ()))
        twin.__dict__["_set_group"] = set_group
        return twin  # type: ignore[return-value]

    def replicaGrouping(
        self, comm_group_type: CommGroupType, shards: int, variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Give each group of replicas a value of its own: ``[groups, ...]``.

        Args:
            comm_group_type: Which replicas form a group.
            shards: Replicas in a group.
            variable_retrieval_mode: Which replicas' values are read back.
        """
        if self.dim() == 0:
            raise createPoptorchError("Scalars cannot be passed as per-replica weight tensor values")
        arguments: tuple[Any, ...] = (
            CommGroupType(comm_group_type), shards, VariableRetrievalMode(variable_retrieval_mode),
        )
        self.__dict__["_set_group"](*arguments)
