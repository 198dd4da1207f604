"""Facts of the example that brings an operator along."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import custom_operator
from torchipu.poptorch.operators import custom_ops

FEW = ("--num-samples", "512", "--device-iterations", "4", "--epochs", "2", "--learning-rate", "0.02")


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    custom_ops._OPS.pop((custom_operator.DOMAIN, custom_operator.NAME, custom_operator.VERSION), None)


@pytest.mark.parametrize(
    "flags", [[], ["--on-host"], ["--gradient", "torch"]], ids=["device", "host", "torch's gradient"],
)
def test_operator_learns_and_computes_what_pytorch_does(flags: list[str]) -> None:
    result = custom_operator.run([*FEW, *flags])
    assert result.losses[-1] < 0.2 * result.losses[0]
    assert result.difference < 1e-5


def test_own_gradient_is_right() -> None:
    tables = torch.randn(4, 12, 3, dtype=torch.double, requires_grad=True)
    indices = torch.randint(12, (20, 4))
    (rows,) = custom_operator.gather([tables, indices], {"scale": 2.0})
    gradient = torch.randn_like(rows)
    (expected,) = torch.autograd.grad(rows, tables, gradient)
    given, none = custom_operator.gather_gradient([gradient], [tables, indices], [rows], {"scale": 2.0})
    torch.testing.assert_close(given, expected)
    assert none is None


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(SystemExit, match="one call takes 256 samples: raise --num-samples"):
        custom_operator.run(["--num-samples", "100"])
