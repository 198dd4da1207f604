"""Parameters read through an executor: they can be given one value for each group of replicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchipu.poptorch import instrumentation
from torchipu.poptorch._impl import createPoptorchError
from torchipu.poptorch.enums import CommGroupType, VariableRetrievalMode


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
