"""What stands for the parameters of a module while a step with updates of its own is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import traceback

from torchipu.errors import CaptureError

FORWARD, BACKWARD = "is_forward", "is_backward"
TAG = "partitioner_tag"


class TracedParameters:
    """The places of parameters in a module; each may be bound anew in the course of a step.

    Args:
        module: The Lightning module, with its own parameters.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._names = {id(parameter): name for name, parameter in module.named_parameters()}
        self._slots: dict[str, list[tuple[dict[str, Any], str]]] = {name: [] for name in self._names.values()}
        self._flags = {name: parameter.requires_grad for name, parameter in module.named_parameters()}
        for member in module.modules():
            for key, parameter in member._parameters.items():
                if parameter is not None:
                    self._slots[self._names[id(parameter)]].append((member._parameters, key))
        self._versions: dict[str, list[torch.Tensor]] = {}

    @property
    def names(self) -> list[str]:
        """Names of all parameters."""
        return list(self._slots)

    def name_of(self, parameter: torch.Tensor) -> str:
        """Return the name of a parameter of the module.

        Raises:
            CaptureError: The module does not have it.
        """
        if id(parameter) not in self._names:
            raise CaptureError(
                f"an optimiser updates a parameter of shape {list(parameter.shape)} that the module does not have",
                remedy="make optimisers from parameters of the module, or assign the parameter to an attribute of it",
            )
        return self._names[id(parameter)]

    @contextlib.contextmanager
    def bound(self, gradients: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Bind leaves of autograd in all places, and put back what was there.

        Args:
            gradients: What parameters have in ``grad`` from before, by name.
        """
        before = {name: slots[0][0][slots[0][1]] for name, slots in self._slots.items()}
        self._versions = {name: [] for name in self._slots}
        tag = traceback.current_meta.get(TAG)
        traceback.current_meta[TAG] = FORWARD
        try:
            for name, tensor in before.items():
                self._bind(name, tensor, self._flags[name])
                self.leaf(name).grad = gradients.get(name)
            yield
        finally:
            traceback.current_meta.pop(TAG, None)
            if tag is not None:
                traceback.current_meta[TAG] = tag
            for name, tensor in before.items():
                for held, key in self._slots[name]:
                    held[key] = tensor
            self._versions = {}

    def leaf(self, name: str) -> torch.Tensor:
        """Return what stands for a parameter now."""
        held, key = self._slots[name][0]
        found: torch.Tensor = held[key]
        return found

    def bind(self, name: str, value: torch.Tensor) -> None:
        """Let a parameter have another value; its gradient stays."""
        before = self.leaf(name)
        self._bind(name, value, before.requires_grad)
        self.leaf(name).grad = before.grad

    def _bind(self, name: str, value: torch.Tensor, requires_grad: bool) -> None:
        leaf = value.detach().requires_grad_(requires_grad)
        leaf._is_param = True  # what isinstance(tensor, Parameter) looks at
        self._versions[name].append(leaf)
        for held, key in self._slots[name]:
            held[key] = leaf

    def trained(self) -> list[tuple[str, torch.Tensor]]:
        """Return everything that has stood for a parameter and takes a gradient, with the name of the parameter."""
        return [(name, leaf) for name, leaves in self._versions.items() for leaf in leaves if leaf.requires_grad]

    def was_bound_anew(self, name: str) -> bool:
        """Whether a parameter has been updated."""
        return len(self._versions[name]) > 1

    def changed_flags(self) -> dict[str, bool]:
        """Return which parameters take gradients now, and did not before, or the other way round."""
        return {
            name: self.leaf(name).requires_grad for name, flag in self._flags.items()
            if self.leaf(name).requires_grad != flag
        }

    @contextlib.contextmanager
    def in_backward(self) -> Iterator[None]:
        """Mark what is traced as ops of the backward leg."""
        traceback.current_meta[TAG] = BACKWARD
        try:
            yield
        finally:
            traceback.current_meta[TAG] = FORWARD
