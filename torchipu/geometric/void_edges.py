"""Edges that mean nothing: what torch_geometric takes out of a graph stays in it, as its size is fixed, and is skipped.

A layer's self-loops are removed before one is added to each node. The edges removed are marked here; when messages
along them are normalised or added up, they go to a group of their own behind the nodes, which is then cut off.
"""

from __future__ import annotations

import threading

import torch
from torch.utils.weak import WeakIdKeyDictionary
from torch_geometric.nn import MessagePassing

_VOID: WeakIdKeyDictionary = WeakIdKeyDictionary()
"""For the edges ``[2, E]`` of a graph with some that mean nothing: which do ``[E]``."""


class _Sending(threading.local):
    """Which messages of the layer that is at work in this thread mean nothing, until they are added up."""

    void: torch.Tensor | None = None


_sending = _Sending()


def mark_void(edge_index: torch.Tensor, void: torch.Tensor) -> None:
    """Mark edges that mean nothing.

    Args:
        edge_index: Edges ``[2, E]``.
        void: Which of them ``[E]``.
    """
    _VOID[edge_index] = void


def void_of(edge_index: torch.Tensor) -> torch.Tensor | None:
    """Return which of a graph's edges mean nothing ``[E]``, or None."""
    return _VOID.get(edge_index)


def watch_layers() -> None:
    """Let layers of message passing tell along which graph they send."""
    original = MessagePassing._check_input

    def check_input(self: MessagePassing, edge_index: object, size: object) -> object:
        _sending.void = void_of(edge_index) if isinstance(edge_index, torch.Tensor) else None
        return original(self, edge_index, size)

    MessagePassing._check_input = check_input


def taken_void(index: torch.Tensor | None, *, keep: bool = False) -> torch.Tensor | None:
    """Return which messages of the layer at work mean nothing, or None.

    Args:
        index: Where they go ``[E]``.
        keep: Whether the layer goes on sending; adding up is the last that it does.
    """
    void = _sending.void
    if index is None or void is None or void.shape != index.shape:
        return None
    if not keep:
        _sending.void = None
    return void
