"""Which backend Dynamo traces for: ours, whatever wraps it, or another one."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_HOLDS_ANOTHER = ("_torchdynamo_orig_backend", "compiler_fn", "backend_compile_fn", "func", "__wrapped__", "__self__")
"""Attributes by which torch's wrappings of a backend, and those of `functools`, hold it."""
_ours: set[Callable[..., Any]] = set()


def enter(backend: Callable[..., Any]) -> None:
    """Note a backend as one of ours."""
    _ours.add(backend)


def options_of(backend: Any, depth: int = 8) -> Mapping[str, Any]:
    """Return what a wrapping of a backend passes it as options; none where no wrapping of torch's does.

    Args:
        backend: What Dynamo calls.
        depth: How many wrappings to look into.
    """
    for name in ("kwargs", "keywords"):
        passed = getattr(backend, name, None)
        if isinstance(passed, Mapping) and isinstance(passed.get("options"), Mapping):
            found: Mapping[str, Any] = passed["options"]
            return found
    if depth == 0 or backend is None:
        return {}
    within = (getattr(backend, name, None) for name in _HOLDS_ANOTHER[:-1])
    return next((found for held in within if held is not None and (found := options_of(held, depth - 1))), {})


def is_ours(backend: Any, depth: int = 8) -> bool:
    """Whether a backend is one of ours, a wrapping of it, or a function or object that names it."""
    if isinstance(backend, types.FunctionType) and backend in _ours:
        return True
    if depth == 0 or backend is None or isinstance(backend, (str, type, types.ModuleType)):
        return False
    return any(is_ours(held, depth - 1) for held in _held_by(backend) if callable(held))


def _held_by(backend: Any) -> Iterator[Any]:
    """Yield what a callable may hand its work to."""
    for name in _HOLDS_ANOTHER:
        yield getattr(backend, name, None)
    if not isinstance(backend, types.FunctionType):
        yield from vars(backend).values() if hasattr(backend, "__dict__") else ()
        return
    if backend.__module__.partition(".")[0] == "torch":
        return  # its globals are many, and none of them is ours
    for cell in backend.__closure__ or ():
        with contextlib.suppress(ValueError):  # nothing is there yet
            yield cell.cell_contents
    for name in backend.__code__.co_names:
        yield backend.__globals__.get(name)
