"""Which parameters have one value for each group of replicas, as a program asks for it through its executor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from torchipu.poptorch.enums import CommGroupType, VariableRetrievalMode
from torchipu.poptorch.executor import instrumentation
from torchipu.poptorch.poptorch_core import createPoptorchError
from torchipu.poptorch.tracing.grouping import Group


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
