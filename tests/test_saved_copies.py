"""What a model copied before it went on is kept for the backward, whoever writes into the original meanwhile."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torchipu  # noqa: F401

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _scaled(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.clone() * weight


def _scaled_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x[1:3].clone() * weight


def _scaled_columns(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.t().contiguous() * weight


def _scaled_pieces(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    first, last = x.split([2, x.shape[0] - 2])
    return last.clone().sin() * weight + first.clone()[0] * weight


def _reads_then_writes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    total = x.t().reshape(-1) * weight
    x.add_(1)
    return total


def _writes(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x.mul_(weight)
    return x


def _writes_a_view(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    x.t().mul_(weight)
    return x


def _writes_a_part(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    part = x.narrow(0, 1, 2)
    part[:1].mul_(weight)
    return part


ORIGINALS = (_scaled, _scaled_rows, _scaled_columns, _scaled_pieces)
WRITERS = (_reads_then_writes, _writes, _writes_a_view, _writes_a_part)


def _gradient(function: Function, *, writes: bool, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return the result, the gradient of the weight and the input after a call, and a write into the input if asked."""
    torch.manual_seed(0)
    x, weight = torch.randn(5, 4).to(dtype), torch.tensor(1.5, dtype=dtype, requires_grad=True)
    result = function(x, weight)
    found = result.detach().clone()
    if writes:
        x.mul_(3)
    result.sum().backward()
    assert weight.grad is not None
    return [found, weight.grad, x.detach()]


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("function", ORIGINALS + WRITERS)
def test_a_copy_of_an_argument_stays(function: Function, is_dynamic: bool) -> None:
    """The caller writes into the argument before the backward, or the model does itself."""
    writes = function in ORIGINALS
    expected = _gradient(function, writes=writes, dtype=torch.float64)
    found = _gradient(torch.compile(function, backend="ipu", dynamic=is_dynamic), writes=writes)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("copied", [torch.clone, lambda y: y[1:3].clone(), lambda y: y.t().contiguous()])
def test_a_copy_of_a_result_stays(copied: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """The caller writes into a result, of which the backward needs a copy that the model made."""
    def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        more = x + 1
        return more, copied(more) * weight

    def gradient(call: Callable[..., tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype) -> torch.Tensor:
        x, weight = torch.arange(20.0, dtype=dtype).view(5, 4), torch.tensor(1.5, dtype=dtype, requires_grad=True)
        more, scaled = call(x, weight)
        more.zero_()
        scaled.sum().backward()
        assert weight.grad is not None
        return weight.grad.double()

    expected = gradient(function, torch.float64)
    assert expected != 0
    torch.testing.assert_close(gradient(torch.compile(function, backend="ipu"), torch.float32), expected)


def test_a_view_of_an_argument_is_not_copied() -> None:
    """What the model does not copy is noticed when it is written, as eager PyTorch notices it."""
    x, weight = torch.randn(5, 4), torch.tensor(1.5, requires_grad=True)
    result = torch.compile(lambda x, weight: x[1:3] * weight, backend="ipu")(x, weight)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
