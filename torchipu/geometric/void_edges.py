"""Edges that mean nothing: what torch_geometric takes out of a graph stays in it, as its size is fixed, and is skipped.

A layer's self-loops are removed before one is added to each node. The edges removed are marked here; when messages
along them are normalised or added up, they go to a group of their own behind the nodes, which is then cut off.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn import MessagePassing

from torchipu import poptorch

_VOID: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""For the edges ``[2, E]`` of a graph with some that mean nothing: which do ``[E]``."""
_WEIGHTLESS: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""The same, where messages along them are multiplied by a weight of zero: a sum needs not to skip them."""


class _Sending(threading.local):
    """Which messages of the layer that is at work in this thread mean nothing, until they are added up."""

    void: torch.Tensor | None = None
    weightless: torch.Tensor | None = None


_sending = _Sending()


def mark_void(edge_index: torch.Tensor, void: torch.Tensor, *, is_weightless: bool = False) -> None:
    """Mark edges that mean nothing.

    Args:
        edge_index: Edges ``[2, E]``.
        void: Which of them ``[E]``.
        is_weightless: Whether they have a weight of zero.
    """
    (_WEIGHTLESS if is_weightless else _VOID)[edge_index] = void


def void_of(edge_index: torch.Tensor) -> torch.Tensor | None:
    """Return which of a graph's edges mean nothing ``[E]``, or None."""
    return _VOID.get(edge_index)


def weightless_of(edge_index: torch.Tensor) -> torch.Tensor | None:
    """Return which of a graph's edges have a weight of zero because they mean nothing ``[E]``, or None."""
    return _WEIGHTLESS.get(edge_index)


def watch_layers() -> None:
    """Let layers of message passing tell along which graph they send."""
    original = MessagePassing._check_input

    def check_input(self: MessagePassing, edge_index: object, size: object) -> object:
        if poptorch.isRunningOnIpu():
            is_tensor = isinstance(edge_index, torch.Tensor)
            _sending.void = _VOID.get(edge_index) if is_tensor else None
            weightless = _WEIGHTLESS.get(edge_index) if is_tensor else None
            _sending.weightless = weightless
            # Messages of torch_geometric's own layers have those weights; others need not.
            if weightless is not None and not type(self).__module__.startswith("torch_geometric."):
                _sending.void = weightless if _sending.void is None else _sending.void | weightless
        return original(self, edge_index, size)

    MessagePassing._check_input = check_input
    _skip_in_heirs(MessagePassing)
    MessagePassing.__init_subclass__ = classmethod(_skip_in)


def _skip_in_heirs(layer: type[Any]) -> None:
    for heir in layer.__subclasses__():
        _skip_in(heir)
        _skip_in_heirs(heir)


def _skip_in(layer: type[Any]) -> None:
    """Let a layer that adds messages up by itself skip those that mean nothing, in whatever way it adds them up."""
    original = vars(layer).get("aggregate")
    if original is None:
        return

    @functools.wraps(original)
    def aggregate(self: MessagePassing, inputs: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        size, index = kwargs.get("dim_size"), kwargs.get("index")
        takes_groups = size is not None and index is not None and poptorch.isRunningOnIpu()
        void = taken_void(index) if takes_groups else None
        if void is None or size is None or index is None:
            return original(self, inputs, *args, **kwargs)
        kwargs |= {"dim_size": size + 1, "index": torch.where(void, size, index)}
        found = original(self, inputs, *args, **kwargs)
        return found.narrow(0 if found.shape[0] == size + 1 else self.node_dim, 0, size)

    layer.aggregate = aggregate


def taken_void(
    index: torch.Tensor | None, *, keep: bool = False, is_sum: bool = False,
) -> torch.Tensor | None:
    """Return which messages of the layer at work mean nothing, or None.

    Args:
        index: Where they go ``[E]``.
        keep: Whether the layer goes on sending; adding up is the last that it does.
        is_sum: Whether they are added up, to which those of a weight of zero add nothing.
    """
    void = _sending.void
    if void is None and not is_sum:
        void = _sending.weightless
    if index is None or void is None or void.shape != index.shape:
        return None
    if not keep:
        _sending.void = _sending.weightless = None
    return void
