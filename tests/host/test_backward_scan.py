"""Scans between two flips, which the host makes from the end without turning anything around, against eager."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import torchipu
from tests.ops.judge import check
from torchipu.host.planner import Planner

SCANS = {"cumsum": Tensor.cumsum, "cumprod": Tensor.cumprod, "logcumsumexp": Tensor.logcumsumexp}


class FromTheEnd(nn.Module):
    """A scan along a dimension from its end, with what one flips beside it."""

    def __init__(self, name: str, dim: int, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        super().__init__()
        self.name, self.dim, self.before, self.after = name, dim, before, after

    def forward(self, x: Tensor) -> Tensor:
        return SCANS[self.name](x.flip(*self.before), self.dim).flip(*self.after)


def fused(model: nn.Module, x: Tensor) -> list[list[str]]:
    """Return the ops that one kernel computes together."""
    step = torchipu.InferenceStep(model)
    step(x)
    return [[op.kind for op in ops] for ops, _ in Planner(step.compiled.graph).fused.values()]


# Rows in eights and a rest, of one element and many; columns in blocks of 64 and a rest.
@pytest.mark.parametrize(("shape", "dim"), [
    ((17, 1), 1), ((11, 300), 1), ((8, 33), -1), ((3, 29, 130), 1), ((40, 5), 0), ((70,), 0), ((2, 3, 9), 2),
])
@pytest.mark.parametrize("name", SCANS)
def test_values_and_gradients_equal_float64(name: str, shape: tuple[int, ...], dim: int) -> None:
    torch.manual_seed(0)
    x = (torch.randn(shape) * (0.1 if name == "cumprod" else 1) + (name == "cumprod")).requires_grad_()
    check(FromTheEnd(name, dim, (dim,), (dim,)).forward, x, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_the_bits_are_those_of_a_scan_of_the_turned_values(name: str, dtype: torch.dtype) -> None:
    x = (torch.randn(13, 50) * 3).to(dtype)
    together = torchipu.InferenceStep(FromTheEnd(name, 1, (1,), (1,)))(x)
    turned = torchipu.InferenceStep(FromTheEnd(name, 1, (0, 1), (0, 1)))(x)
    assert torch.equal(together, turned)


@pytest.mark.parametrize("name", SCANS)
def test_a_scan_between_flips_of_its_dimension_takes_both(name: str) -> None:
    assert fused(FromTheEnd(name, -1, (1,), (-1,)), torch.randn(4, 6)) == [["flip", name, "flip"]]


@pytest.mark.parametrize(("before", "after"), [((0,), (0,)), ((1,), (0,)), ((0, 1), (1,)), ((1,), (0, 1))])
def test_flips_of_other_dimensions_stay(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    model, x = FromTheEnd("cumsum", 1, before, after), torch.randn(4, 6)
    assert fused(model, x) == []
    torch.testing.assert_close(torchipu.InferenceStep(model)(x), model(x))


def test_halves_round_where_they_lie() -> None:
    assert fused(FromTheEnd("cumsum", 1, (1,), (1,)), torch.randn(4, 6).half()) == []
