"""The steps of plans, and which kernels they run, of programs that a test compiles."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from torchipu.host.planner import Planner
from torchipu.host.steps import Step


def planned_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the names of the kernels are added of every plan that is made from now on."""
    names: list[str] = []
    _note(monkeypatch, lambda steps: names.extend(step.kernel.name for step in steps if step.kernel is not None))
    return names


def planned_steps(monkeypatch: pytest.MonkeyPatch) -> list[Step]:
    """Return a list to which the steps are added of every plan that is made from now on."""
    steps: list[Step] = []
    _note(monkeypatch, steps.extend)
    return steps


def _note(monkeypatch: pytest.MonkeyPatch, note: Callable[[list[Step]], None]) -> None:
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        found = collect(planner)
        note(planner.steps)
        return found

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
