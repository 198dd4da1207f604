"""Which programs of this process count the magnitudes of their results, whatever door compiled them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from torchipu.host.statistics import TensorStatistics


class Counting(Protocol):
    """A program that counts magnitudes."""

    @property
    def has_run(self) -> bool:
        """Whether it has counted anything yet."""
        ...

    def statistics(self) -> tuple[TensorStatistics, ...]:
        """Return the magnitudes in its last run."""
        ...


_PROGRAMS: list[weakref.ref[Counting]] = []
_HELD: list[list[Counting]] = []


def note(program: Counting) -> None:
    """Remember a program for as long as somebody else holds it."""
    _PROGRAMS[:] = [known for known in _PROGRAMS if known() is not None]
    _PROGRAMS.append(weakref.ref(program))
    for held in _HELD:
        held.append(program)


@contextmanager
def holding() -> Iterator[list[Counting]]:
    """Return the list in which every program made meanwhile is held, though its owner should be gone."""
    held: list[Counting] = []
    _HELD.append(held)
    try:
        yield held
    finally:
        _HELD[:] = [other for other in _HELD if other is not held]


def magnitudes_of(programs: Iterable[Counting]) -> tuple[TensorStatistics, ...]:
    """Return the magnitudes in the last run of each program that has run."""
    return tuple(one for program in programs if program.has_run for one in program.statistics())


def statistics() -> tuple[TensorStatistics, ...]:
    """Return the magnitudes in the last run of every program that counts them, in the order of compilation.

    Programs count with ``torchipu.Options(statistics=True)``, ``torch.compile(..., options={"statistics": True})`` and,
    of PopTorch, ``options._Popart.set("torchipu.statistics", True)``. A program that nobody holds any longer is left
    out, and so is one that has not run.
    """
    return magnitudes_of(program for known in _PROGRAMS if (program := known()) is not None)
