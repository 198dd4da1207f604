"""Which kernels the steps of a plan run, of programs that a test compiles."""

from __future__ import annotations

import pytest

from torchipu.host.planner import Planner


def planned_kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list to which the names of the kernels are added of every plan that is made from now on."""
    names: list[str] = []
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        found = collect(planner)
        names.extend(step.kernel.name for step in planner.steps if step.kernel is not None)
        return found

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    return names
