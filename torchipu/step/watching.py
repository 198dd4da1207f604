"""Who looks on while steps are called: ``torchipu check`` runs the same call on the machine.

Who stands in for them: ``torchipu estimate`` compiles what they would run, and runs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

End = Callable[[Any], None]
"""Is given what a call returns."""
Watcher = Callable[[Any, Sequence[torch.Tensor]], End | None]
"""Is given a step and the tensors of a call before it runs; returns what to do when it has ended well, if anything."""

StandIn = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""Is given a step and the arguments of its call; returns what the call does."""

_WATCHERS: list[Watcher] = []
_STAND_INS: list[StandIn] = []


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


@contextmanager
def standing_in_for_steps(stand_in: StandIn) -> Iterator[None]:
    """Let a function take the calls of all steps meanwhile, and what asks them to compile, in any thread."""
    _STAND_INS.append(stand_in)
    try:
        yield
    finally:
        _STAND_INS.remove(stand_in)


def stand_in_for_steps() -> StandIn | None:
    """Return what takes the calls of steps, if anything does."""
    return _STAND_INS[-1] if _STAND_INS else None
