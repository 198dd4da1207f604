"""Random ops that are taken apart at capture draw what eager draws, whatever the element type."""

from __future__ import annotations

import pytest
import torch

from torchipu.backend import ipu_backend

NUM = 40_000


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [
    torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
], ids=str)
@pytest.mark.parametrize("p", [0.3, 0.9])
def test_a_geometric_draw_counts_trials_in_every_type(p: float, dtype: torch.dtype) -> None:
    drawn = torch.compile(lambda x: x.geometric_(p), backend=ipu_backend, fullgraph=True)(torch.zeros(NUM, dtype=dtype))
    assert drawn.dtype == dtype
    assert drawn.min() == 1
    for trials in (1, 2, 3):
        expected = p * (1 - p) ** (trials - 1)
        deviation = (expected * (1 - expected) / NUM) ** 0.5
        assert (drawn == trials).double().mean().item() == pytest.approx(expected, abs=5 * deviation)


@pytest.mark.parametrize("p", [0.0, 1.0, 1.5])
def test_a_geometric_draw_refuses_a_chance_of_nothing_or_certainty(p: float) -> None:
    with pytest.raises(Exception, match=r"geometric_ expects p to be in \(0, 1\)"):
        torch.zeros(3).geometric_(p)
    with pytest.raises(Exception, match=r"geometric_ expects p to be in \(0, 1\)"):
        torch.compile(lambda x: x.geometric_(p), backend=ipu_backend, fullgraph=True)(torch.zeros(3))
