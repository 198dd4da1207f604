"""Elementwise ops that are taken apart at capture: their parts have records and give eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

from torchipu.backend import ipu_backend
from torchipu.capture.maps import list_ops

OPTIONS = {"host_threads": 1, "strict_ops": True}


class Calls(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        results = self.function(*tensors)
        return list(results) if isinstance(results, (list, tuple)) else [results]


def compiled(function: Callable[..., Any], *tensors: torch.Tensor) -> list[torch.Tensor]:
    run = ipu_backend(Calls(function), list(tensors), options=OPTIONS)
    results: list[torch.Tensor] = run(*tensors)
    return results


def members(count: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.rand(4 + n, 5) + 0.5 for n in range(count)]


@pytest.mark.whole
@pytest.mark.parametrize("overload", sorted(list_ops(), key=str), ids=str)
def test_list_op_gives_eager_s_members(overload: torch._ops.OpOverload) -> None:
    args: list[Any] = []
    for argument in overload._schema.arguments:
        kind = str(argument.type)
        if argument.kwarg_only or argument.name in ("dtype", "non_blocking"):
            continue
        if kind == "List[Tensor]":
            args.append([member + len(args) for member in members()])
        elif kind in ("List[number]", "List[float]"):
            args.append([0.25, 0.5, 2.0])
        elif kind == "Tensor":
            args.append(torch.tensor([0.25, 0.5, 2.0]) if argument.name == "scalars" else torch.tensor(0.75))
        else:
            args.append(2.0)
    if "_foreach_mm." in str(overload):
        args = [[torch.rand(4, 3) for _ in range(3)], [torch.rand(3, 2 + n) for n in range(3)]]
    if "acos" in str(overload) or "asin" in str(overload):
        args = [[member / 4 for member in args[0]]]
    flat = [value for given in args for value in (given if isinstance(given, list) else [given])]
    tensors = [value for value in flat if isinstance(value, torch.Tensor)]

    def call(*values: torch.Tensor) -> Any:
        rest = iter(values)

        def fill(given: Any) -> Any:
            return next(rest) if isinstance(given, torch.Tensor) else given

        return overload(*[[fill(v) for v in given] if isinstance(given, list) else fill(given) for given in args])

    for ours, exact in zip(compiled(call, *tensors), call(*(t.double() for t in tensors)), strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)


def test_rrelu_outside_training_takes_the_mean_slope() -> None:
    x = torch.randn(7, 9)
    (ours,) = compiled(lambda x: functional.rrelu(x, 0.1, 0.5, training=False), x)
    torch.testing.assert_close(ours, functional.leaky_relu(x, 0.3))


def test_rrelu_draws_slopes_within_its_bounds_and_its_gradient_is_the_slope() -> None:
    x = torch.randn(60, 50, requires_grad=True)
    (ours,) = compiled(lambda x: functional.rrelu(x, 0.1, 0.5, training=True), x)
    (gradient,) = torch.autograd.grad(ours.sum(), x)
    negative = x.detach() <= 0
    torch.testing.assert_close(ours.detach()[~negative], x.detach()[~negative])
    slopes = gradient[negative]
    torch.testing.assert_close(ours.detach()[negative], (x.detach() * gradient)[negative])
    assert 0.1 <= slopes.min() < 0.11
    assert 0.49 < slopes.max() <= 0.5
    assert abs(slopes.mean() - 0.3) < 0.02
    assert bool((gradient[~negative] == 1).all())


def test_fake_quantisation_rounds_clips_and_passes_gradients_inside_its_range() -> None:
    x = torch.linspace(-3, 3, 60).reshape(6, 10).requires_grad_()
    scale, zero = torch.tensor([0.01, 0.02, 0.05, 0.1, 0.2, 0.3]), torch.tensor([0, 3, -2, 0, 1, 5], dtype=torch.int32)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -20, 20)

    def rows(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -20, 20)

    for function, rest in ((whole, ()), (rows, (scale, zero))):
        ours, eager = compiled(function, x, *rest)[0], function(x, *rest)
        torch.testing.assert_close(ours, eager)
        mine, theirs = (torch.autograd.grad(result.sum(), x)[0] for result in (ours, eager))
        assert torch.equal(mine, theirs)


SCALES, ZEROS = torch.linspace(0.02, 0.3, 10), torch.arange(10, dtype=torch.int32) - 4


@pytest.mark.parametrize(("quantise", "more"), [
    (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 2, -20, 20), ()),
    (lambda x: torch.fake_quantize_per_tensor_affine(x, SCALES[3], ZEROS[7], -20, 20), ()),
    (lambda x: torch.fake_quantize_per_channel_affine(x, SCALES, ZEROS, 1, -20, 20), ()),
    (lambda x, *learnt: torch._fake_quantize_learnable_per_tensor_affine(x, *learnt, -20, 20, 0.3), (1,)),
    (lambda x, *learnt: torch._fake_quantize_learnable_per_channel_affine(x, *learnt, 1, -20, 20, 0.3), (10,)),
])
def test_fake_quantisation_breaks_no_graph_of_any_size(quantise: Any, more: tuple[int, ...]) -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda *values: quantise(*values).square(), backend="ipu", fullgraph=True)
    for rows in (4, 6, 9):
        values = [torch.randn(rows, 10), *(value for size in more for value in (SCALES[:size], torch.ones(size)))]
        ours, theirs = ([value.clone().requires_grad_() for value in values] for _ in range(2))
        found, expected = run(*ours), quantise(*theirs).square()
        torch.testing.assert_close(found, expected)
        for one, other in zip(
            torch.autograd.grad(found.sum(), ours), torch.autograd.grad(expected.sum(), theirs), strict=True,
        ):
            torch.testing.assert_close(one, other)
