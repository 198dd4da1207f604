"""Stages of compilations that differ little: one runs again only where something that it reads has changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from torchipu.options import Options
from torchipu.target import Target

_NAMES = frozenset(field.name for field in fields(Options))


class _Watched:
    """A compilation that notes what is read of it.

    Args:
        held: The compilation.
        options: Given in the place of its own.
    """

    def __init__(self, held: Any, options: Options) -> None:
        self._held, self.options = held, options
        self.read: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        value = self.read[name] = getattr(self._held, name)
        return value


class _WatchedOptions(Options):
    """Options that note which of them are read, by whatever method or function."""

    def __getattribute__(self, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if name in _NAMES and (read := object.__getattribute__(self, "__dict__").get("read")) is not None:
            read[name] = value
        return value


def _watched(options: Options) -> tuple[Options, dict[str, Any]]:
    """Return options that are equal, and what is read of them, which fills up.

    Options that a stage makes of them are not watched, but to make them all of these are read.
    """
    made, read = object.__new__(_WatchedOptions), dict[str, Any]()
    for name in _NAMES:
        object.__setattr__(made, name, getattr(options, name))
    made.__dict__["read"] = read
    return made, read


@dataclass(frozen=True, slots=True)
class _Run:
    """A stage that has run: what it read of the compilation and of its options, and what it made."""

    read: Mapping[str, Any]
    options: Mapping[str, Any]
    made: object

    def holds(self, compilation: Any) -> bool:
        """Whether the stage would read the same of another compilation, and so make the same."""
        return all(_is_same(getattr(compilation, name), value) for name, value in self.read.items()) and all(
            getattr(compilation.options, name) == value for name, value in self.options.items()
        )


class Remembered:
    """Runs of stages.

    A stage is a function of what it reads: as long as that is as before, so is what it makes.
    """

    def __init__(self) -> None:
        self._runs: dict[str, list[_Run]] = {}

    def of(self, name: str, run: Callable[[Any], object], compilation: Any) -> object:
        """Return what a stage makes of a compilation.

        Args:
            name: Of the stage.
            run: The stage.
            compilation: What it is given.
        """
        known = self._runs.setdefault(name, [])
        found = next((one for one in known if one.holds(compilation)), None)
        if found is None:
            options, options_read = _watched(compilation.options)
            watched = _Watched(compilation, options)
            found = _Run(watched.read, options_read, run(watched))
            known.append(found)
        return found.made


def _is_same(one: object, other: object) -> bool:
    """Whether two values are the same object, or small ones that are equal; graphs and programs are not compared."""
    return one is other or (isinstance(one, (int, str, Target)) and one == other)
