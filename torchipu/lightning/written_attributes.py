"""Attributes that a step writes while it is captured: lists it appends to, values it keeps; found by comparing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchipu.lightning.expressions import Surroundings, evaluated

Path = tuple[Any, ...]
"""Name of a module, then an attribute of it, then keys into containers."""
DEPTH = 3
_OF_TORCH = frozenset({
    "training", "_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_current_fx_name", "log", "forward",
    "_non_persistent_buffers_set", "_is_full_backward_hook", "_param_requires_grad_state",
})


@dataclass(frozen=True, slots=True)
class Appended:
    """Items behind the end of a list."""

    path: Path
    items: Any

    def held(self, hold: Callable[[Any], Any]) -> Appended:
        """Return it with outputs in the places of tensors."""
        return replace(self, items=hold(self.items))

    def do(self, module: Any, at: Surroundings) -> None:
        """Append what a micro-batch has."""
        _resolved(module, self.path).extend(evaluated(self.items, at))


@dataclass(frozen=True, slots=True)
class Assigned:
    """Another value of an attribute, or of an item of a dict or list.

    Attributes:
        path: Its place.
        value: What is there now.
        is_state: Whether both that and what was there are tensors: the next micro-batch may read the last one's.
    """

    path: Path
    value: Any
    is_state: bool = False

    def held(self, hold: Callable[[Any], Any]) -> Assigned:
        """Return it with outputs in the places of tensors."""
        return replace(self, value=hold(self.value))

    def do(self, module: Any, at: Surroundings) -> None:
        """Assign what a micro-batch has."""
        *before, last = self.path
        value = evaluated(self.value, at)
        if len(before) == 1:
            setattr(module.get_submodule(before[0]), last, value)
        else:
            _resolved(module, tuple(before))[last] = value


def _resolved(module: Any, path: Path) -> Any:
    found = getattr(module.get_submodule(path[0]), path[1])
    for key in path[2:]:
        found = found[key]
    return found


class Containers:
    """What the attributes of a module and its parts hold before a step.

    Args:
        module: The Lightning module; metrics in it are left out.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.before: list[tuple[Path, Any, Any]] = []
        for name, member in _members(module):
            attributes = {key: value for key, value in member.__dict__.items() if key not in _OF_TORCH}
            self.before.append(((name,), member, attributes))
            for key, value in attributes.items():
                self._note((name, key), value, DEPTH)

    def _note(self, path: Path, value: Any, depth: int) -> None:
        if isinstance(value, list):
            self.before.append((path, value, list(value)))
            inner: Any = enumerate(value)
        elif isinstance(value, dict):
            self.before.append((path, value, dict(value)))
            inner = value.items()
        else:
            return
        if depth:
            for key, item in list(inner):
                self._note((*path, key), item, depth - 1)

    def undo(self) -> list[Appended | Assigned]:
        """Put everything back as it was; return what had been written."""
        written: list[Appended | Assigned] = []
        for path, container, before in self.before:
            if isinstance(container, list):
                written += _of_list(path, container, before)
            elif isinstance(container, dict):
                written += _of_mapping(path, container, before)
            else:
                now = {key: value for key, value in container.__dict__.items() if key not in _OF_TORCH}
                written += _of_mapping(path, now, before)
        for _, container, before in self.before:
            if isinstance(container, list):
                container[:] = before
            elif isinstance(container, dict):
                container.clear()
                container.update(before)
            else:
                held = container.__dict__
                for key in [key for key in held if key not in before and key not in _OF_TORCH]:
                    del held[key]
                held.update(before)
        return written


def _members(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    try:
        from torchmetrics import Metric, MetricCollection

        metrics: tuple[type, ...] = (Metric, MetricCollection)
    except ImportError:
        metrics = ()
    for name, member in module.named_modules():
        if not isinstance(member, metrics):
            yield name, member


def _of_list(path: Path, now: list[Any], before: list[Any]) -> list[Appended | Assigned]:
    if len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return []
    if len(now) > len(before) and all(a is b for a, b in zip(now, before, strict=False)):
        return [Appended(path, list(now[len(before):]))]
    return [Assigned(path, list(now))] if len(path) == 2 else []


def _of_mapping(path: Path, now: dict[Any, Any], before: dict[Any, Any]) -> list[Appended | Assigned]:
    return [
        Assigned(
            (*path, key), list(value) if isinstance(value, list) else value,
            isinstance(value, torch.Tensor) and isinstance(before.get(key), torch.Tensor),
        ) for key, value in now.items() if key not in before or before[key] is not value
    ]
