"""What an estimate costs: captures and plans do not become more with layers, replicas or micro-batches."""

from __future__ import annotations

import pytest
import torch

import torchipu
from tests.estimation.small import Tower, tokens
from torchipu import Options
from torchipu.capture import aot
from torchipu.device import matmul_plan, multi_slice

PLANS = (matmul_plan._plan_of, multi_slice.plan_look, multi_slice.plan_update)
"""Functions that search for a plan; what is computed once is kept."""


@pytest.fixture
def work(monkeypatch):
    """Return what counts the captures and the searched plans of an estimate of a tower."""
    captured = []
    export = aot.export

    def counted(*args, **kwargs):
        found = export(*args, **kwargs)
        captured.append(1)
        return found

    monkeypatch.setattr(aot, "export", counted)

    def of(layers: int = 6, **options) -> tuple[int, int]:
        captured.clear()
        for plan in PLANS:
            plan.cache_clear()
        with torch.device("meta"):
            model = Tower(layers)
        torchipu.estimate(model, (tokens(), tokens()), Options(**{"target": "bow-pod64", **options}))
        return len(captured), sum(plan.cache_info().misses for plan in PLANS)

    return of


def test_layers_take_no_more_captures_or_plans(work):
    assert work(layers=6) == work(layers=24)


def test_replicas_and_micro_batches_take_no_more(work):
    least = work()
    assert least[0] == 1
    assert work(replicas=64, gradient_accumulation=1024) == work(replicas=2, gradient_accumulation=2)
    assert work(replicas=64) == least
