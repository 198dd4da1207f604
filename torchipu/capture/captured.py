"""What capture makes of a module: a graph, and what joins it to the module's tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.errors import CaptureError
from torchipu.host.border import as_type
from torchipu.ir.graph import Graph, Tensor


@dataclass(frozen=True)
class Captured:
    """A module as one graph, and what joins it to the module's tensors.

    Attributes:
        graph: Forward ops and, for training, backward ops; ``outputs`` are the user's, ``updates`` the mutated buffers.
        arguments: For each leaf of the flattened ``(args, kwargs)``: its tensor, or None where the leaf is no tensor
            (its value was fixed at capture). A tensor that no op reads is absent from ``graph.inputs``.
        parameters: Graph inputs by parameter name; of tied parameters the first name, as ``named_parameters`` has it.
        buffers: Graph inputs by buffer name.
        gradients: Gradient by parameter name; parameters that are frozen or do not reach the loss are absent.
        constants: Values of the graph inputs with the role CONSTANT, the loss scale among them.
        loss: The loss, one of ``graph.outputs``; None for inference.
        loss_scale: The constant that the backward ops begin from; None for inference.
        in_spec: Structure of ``(args, kwargs)``.
        out_spec: Structure of what ``forward`` returned.
        leaves: Leaves of that structure: a Tensor of ``graph.outputs``, or a Python constant.
        output_dtypes: torch dtype of each of ``graph.outputs``, for those computed in another type.
        generic_targets: ATen overloads without a record, each with its count.
        written: By the place of an argument that forward writes into: what it holds after a micro-batch, one of
            ``graph.outputs``. Empty where capture went through Dynamo: there such writes are lost, with a warning.
    """

    graph: Graph
    arguments: tuple[Tensor | None, ...]
    parameters: Mapping[str, Tensor]
    buffers: Mapping[str, Tensor]
    gradients: dict[str, Tensor]
    constants: Mapping[Tensor, torch.Tensor]
    loss: Tensor | None
    loss_scale: Tensor | None
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    leaves: tuple[object, ...]
    output_dtypes: tuple[torch.dtype, ...]
    generic_targets: Mapping[str, int]
    written: Mapping[int, Tensor] = dataclasses.field(default_factory=dict)

    @cached_property
    def num_plain(self) -> int | None:
        """How many arguments there are, where all are tensors given by place; None for nested ones and by name."""
        count = self.in_spec.num_leaves
        is_plain = None not in self.arguments and self.in_spec == pytree.tree_structure(((0,) * count, {}))
        return count if is_plain else None

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> list[torch.Tensor]:
        """Return the tensors of a call in the order of ``arguments`` without its Nones.

        Raises:
            CaptureError: The structure differs from the captured one.
        """
        leaves, spec = pytree.tree_flatten((args, dict(kwargs or {})))
        if spec != self.in_spec:
            raise CaptureError(
                "the arguments have another structure than those the model was captured with",
                detail=f"expected {self.in_spec}\ngot      {spec}",
                remedy="call with the same arguments, or capture again",
            )
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    def restore(self, values: Sequence[Any]) -> Any:
        """Build what ``forward`` returns from the values of ``graph.outputs``."""
        known = [
            as_type(value, dtype) if isinstance(value, torch.Tensor) else value
            for value, dtype in zip(values, self.output_dtypes, strict=True)
        ]
        leaves = [
            leaf if place is None else known[place] for leaf, place in zip(self.leaves, self._places, strict=True)
        ]
        return tuple(leaves) if self._is_tuple else pytree.tree_unflatten(leaves, self.out_spec)

    @cached_property
    def _places(self) -> list[int | None]:
        """For each of the leaves its place in ``graph.outputs``; None for what is no tensor."""
        places = {tensor: place for place, tensor in enumerate(self.graph.outputs)}
        return [places[leaf] if isinstance(leaf, Tensor) else None for leaf in self.leaves]

    @cached_property
    def _is_tuple(self) -> bool:
        """Whether ``forward`` returned a tuple of leaves."""
        return self.out_spec == pytree.tree_structure((0,) * self.out_spec.num_leaves)
