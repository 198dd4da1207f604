"""Which programs were compiled while somebody wanted to know: the doors tell, ``torchipu explain`` listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from torchipu.ir.graph import Graph
from torchipu.options import Options
from torchipu.report.profile import Profile


class HasGraph(Protocol):
    """What the result of a compilation offers here."""

    @property
    def graph(self) -> Graph:
        """The graph after all passes."""
        ...

    @property
    def options(self) -> Options:
        """What it was compiled for."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program that was compiled.

    Attributes:
        profile: Its modelled cycles and memory.
        graph: What it computes, placed.
        options: What for.
        is_step: Whether it is a whole step, with its replicas, micro-batches and update, such as those of Lightning.
    """

    profile: Profile
    graph: Graph
    options: Options
    is_step: bool = False


_LISTENERS: list[list[Recorded]] = []


def record(profile: Profile, compiled: HasGraph, *, is_step: bool = False) -> None:
    """Note that a program was compiled; without a listener nothing is kept."""
    for heard in _LISTENERS:
        heard.append(Recorded(profile, compiled.graph, compiled.options, is_step))


@contextmanager
def recording() -> Iterator[list[Recorded]]:
    """Return the list to which every program compiled meanwhile is added, in any thread."""
    heard: list[Recorded] = []
    _LISTENERS.append(heard)
    try:
        yield heard
    finally:
        # By identity: two empty lists are equal.
        _LISTENERS[:] = [listener for listener in _LISTENERS if listener is not heard]
