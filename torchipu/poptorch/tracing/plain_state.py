"""What a model keeps beside parameters and buffers, set back before each run of its forward.

Capturing runs forward several times, where PopTorch runs it once. A counter would count them all, and a list that
forward appends to would still hold the tensors of an earlier run. What one run has changed is told of: the program
begins each call with what there was before.
"""

from __future__ import annotations

import dis
import linecache
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.capture.reachable import MISSING, Kept, Reachable, names_in, refill
from torchipu.ir.types import Source
from torchipu.poptorch._logging import logger
from torchipu.poptorch.arguments import structure


class PlainState:
    """What a model keeps, as it was before forward first ran: attributes, globals that it names, lists in them.

    Args:
        model: Its modules.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        reachable = Reachable(model)
        self._functions = reachable.functions
        self._kept = Kept(reachable)
        self._told: set[str] = set()

    def restore(self) -> None:
        """Set everything back."""
        self._kept.restore()

    def warn_of_changes(self, value_of: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Warn, once for each, of what a run of forward has changed: the next call does not see it.

        Args:
            value_of: Returns the value of a tensor of the capture, if it is known.
        """
        for holder, before in self._kept.held:
            for name, now in holder.read().items():
                if not holder.is_private(name) and not _is_same(before.get(name, MISSING), now, value_of):
                    self._warn(holder.told(name), name)
        for held, name, content in self._kept.contents:
            if not _is_same_content(content, held, value_of):
                self._warn(f"{name}, a {type(held).__name__},", name.rpartition(".")[2])

    def _warn(self, what: str, name: str) -> None:
        if what in self._told:
            return
        self._told.add(what)
        line = _written_at(self._functions, name)
        logger.warning(
            "%s is changed when calling the forward method%s, but it is no buffer: it is a constant of the program, so "
            "that every call begins with the value that it had when the model was compiled. If it is to change from "
            'call to call, make it a buffer with self.register_buffer("%s", ...) and write into it, as by '
            "self.%s.copy_(...).", what, f" ({line})" if line else "", name, name,
        )

    def drop_traced(self, value_of: Callable[[torch.Tensor], torch.Tensor | None]) -> None:
        """Set back what holds tensors of the capture, which have no values; leave counters and the like.

        Args:
            value_of: Returns the value of a tensor of the capture, if it is known: that is left in its place.
        """
        for holder, before in self._kept.held:
            for name, value in holder.read().items():
                if not _is_traced(value):
                    continue
                known = value_of(value) if isinstance(value, torch.Tensor) else None
                if known is not None:
                    holder.put(name, known)
                elif name in before:
                    holder.put(name, before[name])
                else:
                    holder.drop(name)
        for held, _, content in self._kept.contents:
            if _is_traced(held):
                refill(held, content)


def _is_traced(value: Any) -> bool:
    if isinstance(value, deque):
        value = list(value)
    if not isinstance(value, (torch.Tensor, Mapping, list, tuple, set)):
        return False
    return any(isinstance(tensor, (FunctionalTensor, FakeTensor)) for tensor in structure.tensors_in(value))


def _is_same(before: Any, now: Any, value_of: Callable[[torch.Tensor], torch.Tensor | None]) -> bool:
    """Whether what is there now is what was there, or what every call would put there: a constant where nothing was."""
    if now is before:
        return True
    if isinstance(now, torch.Tensor):
        known = value_of(now)
        if known is None or isinstance(before, (FunctionalTensor, FakeTensor)):
            return False
        return not isinstance(before, torch.Tensor) or (
            before.shape == known.shape and before.dtype == known.dtype and torch.equal(before, known)
        )
    if _is_traced(now):
        return False
    if before is MISSING or before is None:
        return True
    try:
        return type(now) is type(before) and bool(now == before)
    except Exception:  # objects that cannot be compared
        return False


def _is_same_content(before: Any, now: Any, value_of: Callable[[torch.Tensor], torch.Tensor | None]) -> bool:
    if len(before) != len(now):
        return False
    if isinstance(now, set):
        return bool(before == now)
    keys: Iterator[Any] = iter(now) if isinstance(now, dict) else iter(range(len(now)))
    return all(
        _is_same(before.get(key, MISSING) if isinstance(before, dict) else before[key], now[key], value_of)
        for key in keys
    )


def _written_at(functions: Sequence[FunctionType], name: str) -> Source | None:
    """Return the line of forward, or of what it calls, that binds a name; else the first that mentions it."""
    mentioned: Source | None = None
    for function in _called(functions):
        line = function.__code__.co_firstlineno
        for instruction in dis.get_instructions(function):
            line = instruction.starts_line or line
            if instruction.argval != name:
                continue
            file = function.__code__.co_filename
            place = Source(file, line, linecache.getline(file, line).strip())
            if instruction.opname.startswith("STORE_"):
                return place
            mentioned = mentioned or place
    return mentioned


def _called(functions: Sequence[FunctionType]) -> list[FunctionType]:
    """Return what may run in forward, likeliest first: what it mentions, in the end what ``__init__`` mentions."""
    running = [one for one in functions if one.__name__ != "__init__"]
    forwards = _reached(running, [one for one in running if one.__name__ in ("forward", "<lambda>")])
    beginnings = _reached(functions, [one for one in functions if one.__name__ == "__init__"])
    others = [one for one in running if one not in forwards]
    return forwards + sorted(others, key=lambda one: one in beginnings)


def _reached(functions: Sequence[FunctionType], found: list[FunctionType]) -> list[FunctionType]:
    """Return functions with those whose names the code of one of them mentions."""
    for function in found:  # which grows meanwhile
        names = set(names_in(function.__code__))
        found += [one for one in functions if one.__name__ in names and one not in found]
    return found
