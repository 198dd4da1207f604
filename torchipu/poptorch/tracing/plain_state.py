"""What a model keeps in plain attributes, set back before each run of its forward.

Capturing runs forward several times, where PopTorch runs it once. A counter would count them all, and a list that
forward appends to would still hold the tensors of an earlier run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.poptorch.arguments import structure

OWN = frozenset(vars(torch.nn.Module()))
"""Attributes that torch keeps itself."""


class PlainState:
    """The plain attributes of the modules of a model, as they were before forward first ran.

    Args:
        model: Its modules.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._attributes = [(member, dict(_plain(member))) for member in model.modules()]
        self._contents = [
            (held, _content(held))
            for _, attributes in self._attributes for held in attributes.values() if type(held) in (list, dict, set)
        ]

    def restore(self) -> None:
        """Set everything back."""
        for member, attributes in self._attributes:
            for name in set(dict(_plain(member))) - set(attributes):
                del member.__dict__[name]
            member.__dict__.update(attributes)
        for held, content in self._contents:
            _refill(held, content)

    def drop_traced(self, value_of: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Set back what holds tensors of the capture, which have no values; leave counters and the like.

        Args:
            value_of: Returns the value of a tensor of the capture, if it is known: that is left in its place.
        """
        for member, attributes in self._attributes:
            for name, value in list(_plain(member)):
                if not _is_traced(value):
                    continue
                known = value_of(value) if isinstance(value, torch.Tensor) else None
                if known is not None:
                    member.__dict__[name] = known
                elif name in attributes:
                    member.__dict__[name] = attributes[name]
                else:
                    del member.__dict__[name]
        for held, content in self._contents:
            if _is_traced(held):
                _refill(held, content)


def _plain(member: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes that are neither torch's nor parameters or buffers."""
    if isinstance(member, torch.jit.ScriptModule):
        return iter(())  # its attributes are TorchScript's
    known = {*OWN, *member._parameters, *member._buffers}
    return ((name, value) for name, value in member.__dict__.items() if name not in known)


def _content(held: Any) -> Any:
    """Return a copy of a container."""
    return type(held)(held)


def _refill(held: Any, content: Any) -> None:
    """Give a container its content back."""
    if isinstance(held, list):
        held[:] = content
    else:
        held.clear()
        held.update(content)


def _is_traced(value: Any) -> bool:
    if not isinstance(value, (torch.Tensor, Mapping, list, tuple, set)):
        return False
    return any(isinstance(tensor, (FunctionalTensor, FakeTensor)) for tensor in structure.tensors_in(value))
