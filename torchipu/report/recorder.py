"""Which programs were compiled while somebody wanted to know: the doors tell, ``torchipu explain`` listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from torchipu.device.cost import Cost
from torchipu.ir.graph import Graph
from torchipu.ir.program import Executable
from torchipu.options import Options
from torchipu.report.facts.gather import Facts, facts_of
from torchipu.report.profile import Profile
from torchipu.target import Target


class HasProgram(Protocol):
    """What the result of a compilation offers here."""

    @property
    def graph(self) -> Graph:
        """The graph after all passes."""
        ...

    @property
    def executable(self) -> Executable:
        """The device program with addresses."""
        ...

    @property
    def cost(self) -> Cost:
        """Its cycles."""
        ...

    @property
    def target(self) -> Target:
        """The machine, less the tiles that are set apart for transfers."""
        ...

    @property
    def options(self) -> Options:
        """As given."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program that was compiled.

    Attributes:
        profile: Its modelled cycles and memory.
        program: What was compiled.
        is_step: Whether it is a whole step, with its replicas, micro-batches and update, such as those of Lightning.
    """

    profile: Profile
    program: HasProgram
    is_step: bool = False

    @property
    def graph(self) -> Graph:
        """What it computes, placed."""
        return self.program.graph

    @property
    def options(self) -> Options:
        """What for."""
        return self.program.options

    def facts(self) -> Facts:
        """Return what a report tells of it."""
        made = self.program
        return facts_of(made.graph.name, made.executable, made.cost, made.target, made.options, self.profile)


_LISTENERS: list[list[Recorded]] = []


def record(profile: Profile, compiled: HasProgram, *, is_step: bool = False) -> None:
    """Note that a program was compiled; without a listener nothing is kept."""
    for heard in _LISTENERS:
        heard.append(Recorded(profile, compiled, is_step))


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
