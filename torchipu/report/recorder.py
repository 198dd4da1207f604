"""Which programs were compiled while somebody wanted to know: the doors tell, ``torchipu explain`` listens."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol

from torchipu.device.cost import Cost
from torchipu.ir.graph import Graph
from torchipu.ir.program import Executable
from torchipu.options import Options
from torchipu.report.facts.gather import Facts, facts_of
from torchipu.report.facts.observed import Event, Observed
from torchipu.report.garbage import collected_seldom
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

    @property
    def seconds_by_stage(self) -> Mapping[str, float]:
        """That each stage of the compiler took."""
        ...


class Owner(Protocol):
    """What has the program, and can tell more of it."""

    @property
    def capture_seconds(self) -> float:
        """That the capture of the model took."""
        ...

    def observed(self) -> Observed:
        """Return what was seen so far."""
        ...

    def graph_again(self, options: Options, samples: int | None) -> Graph:
        """Return the graph of the model under other options, or for micro-batches of another size."""
        ...


@dataclass(frozen=True, slots=True)
class Recorded:
    """A program that was compiled.

    Attributes:
        profile: Its modelled cycles and memory.
        program: What was compiled.
        is_step: Whether it is a whole step, with its replicas, micro-batches and update, such as those of Lightning.
        owner: What can tell more of it; None where nothing can.
        events: What others have seen of its making, such as graph breaks.
    """

    profile: Profile
    program: HasProgram
    is_step: bool = False
    owner: Owner | None = None
    events: tuple[Event, ...] = ()

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
        seen = Observed() if self.owner is None else self.owner.observed()
        passes = tuple(Event(name, "pass", seconds) for name, seconds in made.seconds_by_stage.items())
        seen = replace(seen, events=(*passes, *seen.events, *self.events))
        with collected_seldom():
            return facts_of(made.graph.name, made.executable, made.cost, made.target, made.options, self.profile, seen)


_LISTENERS: list[list[Recorded]] = []


def record(
    profile: Profile, compiled: HasProgram, *, is_step: bool = False, owner: Owner | None = None,
) -> None:
    """Note that a program was compiled; without a listener nothing is kept."""
    for heard in _LISTENERS:
        heard.append(Recorded(profile, compiled, is_step, owner))


def is_heard() -> bool:
    """Whether somebody wants to know which programs are compiled."""
    return bool(_LISTENERS)


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
