"""A few models under all conditions that one process can have, and whether a difference would be told."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.reliability import determinism
from tests.reliability.determinism import CONDITIONS, Condition, compare, digests

HERE = [name for name, condition in CONDITIONS.items() if not set(condition.environment) - {"PYTHONHASHSEED"}]


def test_two_models_of_each_kind_give_the_same_bytes_whatever_runs_them() -> None:
    found = {name: {kind: digests(kind, 2, CONDITIONS[name]) for kind in CONDITIONS[name].kinds} for name in HERE}
    comparisons, differ = compare(found)
    assert differ == []
    assert comparisons == 2 * (2 * (len(HERE) - 2) + 1)
    assert not any(" " in digest for digest in found["one thread"]["network"])


def test_chains_without_sums_give_the_same_bytes_on_any_number_of_threads() -> None:
    assert digests("pointwise", 6, Condition(3)) == digests("pointwise", 6, Condition())


def test_a_result_that_depends_on_threads_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def depending(seed: int, condition: Condition) -> list[torch.Tensor]:
        if seed == 1:
            raise ValueError("a refusal of this test")
        return [torch.tensor([0.0 if condition.threads == 3 else -0.0])]

    monkeypatch.setitem(determinism.KINDS, "network", depending)
    found = {name: {"network": digests("network", 2, CONDITIONS[name])} for name in HERE}
    _, differ = compare(found)
    assert len(differ) == 1
    assert differ[0].startswith("network 0 under 3 threads: ")
    assert found["one thread"]["network"][1] == "ValueError: a refusal of this test"


def test_every_condition_changes_something() -> None:
    plain = dataclasses.replace(Condition(), kinds=())
    assert [n for n, c in CONDITIONS.items() if dataclasses.replace(c, kinds=()) == plain] == ["one thread"]
