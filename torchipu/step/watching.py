"""Who looks on while steps are called: ``torchipu check`` runs the same call on the machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

End = Callable[[Any], None]
"""Is given what a call returns."""
Watcher = Callable[[Any, Sequence[torch.Tensor]], End | None]
"""Is given a step and the tensors of a call before it runs; returns what to do when it has ended well, if anything."""

_WATCHERS: list[Watcher] = []


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Let a function look at all calls of steps meanwhile, in any thread."""
    _WATCHERS.append(watcher)
    try:
        yield
    finally:
        _WATCHERS.remove(watcher)


def begun(step: Any, tensors: Sequence[torch.Tensor]) -> list[End]:
    """Tell the watchers that a call begins; return what to do when it has ended."""
    return [end for watcher in _WATCHERS if (end := watcher(step, tensors)) is not None]
