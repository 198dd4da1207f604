"""What becomes of results beyond 65504 in every family of ops: exact values by eager float64, the rule by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import torchipu
from torchipu.optim import LAMB, LARS

LARGEST = 65504.0
TREATMENTS = ("infinity", "nan", "saturate")


def halves(*shape: int, scale: float = 1.0, seed: int = 0) -> Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale
    return values.clamp(-6e4, 6e4).half()


def treated(exact: Tensor, treatment: str) -> Tensor:
    """Return exact values as halves, those beyond the range as the machine has them."""
    found = exact.half()  # float64 to half: to nearest, infinity from 65520 on
    if treatment == "nan":
        return found.masked_fill(found.isinf(), torch.nan)
    return found.clamp(-LARGEST, LARGEST) if treatment == "saturate" else found


def to_half(x: Tensor) -> Tensor:
    """Cast what is not judged."""
    return x if x.dtype is torch.double else x.half()


@torch.library.custom_op("overflowing::square", mutates_args=())
def square_of_the_user(x: Tensor) -> Tensor:
    """Square by an operator without a record."""
    return x * x


@square_of_the_user.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


X, Y = halves(6, 40, scale=200), halves(40, 9, scale=200, seed=1)
IMAGE, KERNEL = halves(2, 4, 8, 8, scale=150), halves(6, 4, 3, 3, scale=100, seed=1)
WIDE = halves(4, 300, scale=3e4)
MIXED = torch.cat([WIDE[:2], WIDE[2:] / 500])
LABELS = torch.tensor([0, 2, 1, 3])

CALLS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "mul": (lambda x, y: x * y, (X, X)),
    "exp": (torch.exp, (halves(500, scale=8),)),
    "pow": (lambda x: x**3, (X,)),
    "division": (lambda x, y: x / y, (X, halves(6, 40).sign() * 2.0**-8 * (1 + halves(6, 40, seed=4).abs()))),
    "logarithm of zero": (torch.log, (torch.tensor([0.0, 1.0, 2.0]).half(),)),
    "chain": (lambda x, y: (x * 2).relu() * y.abs() + 1, (X, X)),
    "mm": (torch.mm, (X, Y)),
    "bmm": (torch.bmm, (X.expand(3, 6, 40), Y.expand(3, 40, 9))),
    "addmm": (lambda x, y, z: torch.addmm(z, x, y), (X, Y, halves(9, scale=3e4))),
    "linear": (lambda x, y, z: F.linear(x, y.t(), z), (X, Y, halves(9, scale=3e4))),
    "mv": (lambda x, y: torch.mv(x, y[:, 0]), (X, Y)),
    "conv1d": (lambda x, w: F.conv1d(x[..., 0], w[..., 0]), (IMAGE, KERNEL * 2)),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (IMAGE, KERNEL)),
    "depthwise conv2d": (lambda x, w: F.conv2d(x, w, groups=4), (IMAGE, halves(4, 1, 3, 3, scale=300))),
    "conv3d": (lambda x, w: F.conv3d(x.unsqueeze(2), w.unsqueeze(2)), (IMAGE, KERNEL)),
    "transposed conv2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2), (IMAGE, halves(4, 5, 3, 3, scale=200)),
    ),
    "layer norm": (lambda x, w: F.layer_norm(x, (40,), w), (X, halves(40, scale=4e4))),
    "group norm": (lambda x, w: F.group_norm(x, 2, w), (IMAGE, halves(4, scale=4e4))),
    "batch norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), (IMAGE, halves(4, scale=4e4))),
    "batch norm in inference": (
        lambda x, w: F.batch_norm(x, w * 0, w * 0 + 1, w), (IMAGE, halves(4, scale=400)),
    ),
    "instance norm": (lambda x, w: F.instance_norm(x, weight=w), (IMAGE, halves(4, scale=4e4))),
    "rms norm": (lambda x, w: F.rms_norm(x, (40,), w), (X, halves(40, scale=4e4))),
    "sum": (lambda x: x.sum(1), (MIXED,)),
    "sum of all": (torch.sum, (WIDE.abs(),)),
    "var": (lambda x: x.var(1), (MIXED,)),
    "norm": (lambda x: torch.linalg.vector_norm(x, dim=1), (MIXED,)),
    "prod": (lambda x: x.prod(1), (halves(9, 5, scale=20),)),
    "cumsum": (lambda x: x.cumsum(1), (WIDE.abs(),)),
    "cumprod": (lambda x: x.cumprod(1), (halves(9, 7, scale=20),)),
    "pool": (lambda x: F.avg_pool2d(x, 2, divisor_override=1), (halves(2, 3, 8, 8, scale=3e4),)),
    "upsampling": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (halves(1, 2, 6, 6).sign() * 6.5e4,),
    ),
    "mse loss": (lambda x, y: F.mse_loss(x, y), (X, X * 3)),
    "l1 loss": (lambda x, y: F.l1_loss(x, y, reduction="sum"), (WIDE, -WIDE)),
    "smooth l1 loss": (lambda x, y: F.smooth_l1_loss(x, y, reduction="sum"), (WIDE, -WIDE)),
    "cross entropy": (lambda x: F.cross_entropy(x, LABELS, reduction="sum"), (halves(4, 5, scale=3e4),)),
    "bce with logits": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, reduction="sum"), (WIDE, WIDE.abs().clamp(0, 1)),
    ),
    "cast": (to_half, (torch.randn(300, generator=torch.Generator().manual_seed(3)) * 6e4,)),
    "embedding bag": (
        lambda w: F.embedding_bag(torch.arange(40).view(4, 10) % 7, w, mode="sum"), (halves(7, 5, scale=3e4),),
    ),
    "index add": (
        lambda x, y: x.index_add(0, torch.tensor([0, 2, 0, 1, 1, 2]), y), (halves(3, 40, scale=3e4), X * 200),
    ),
    "scatter add": (
        lambda x, y: x.scatter_add(1, torch.zeros(6, 40, dtype=torch.long), y), (X, X.abs() * 100),
    ),
    "no record of its own": (square_of_the_user, (X,)),
}


def compiled(function: Callable[..., Any], *inputs: Tensor, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", dynamic=False, options=options)(*inputs)


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("name", CALLS)
def test_every_family_treats_results_beyond_the_range_alike(name: str, treatment: str) -> None:
    function, inputs = CALLS[name]
    exact = function(*(x.double() for x in inputs))
    wanted = treated(exact, treatment)
    is_beyond = exact.abs() > LARGEST * 1.01
    assert bool(is_beyond.any()), "the case shows nothing"
    assert bool((exact.abs() < LARGEST).any()) or exact.dim() == 0
    found = compiled(function, *inputs, half_overflow=treatment)
    assert found.dtype is torch.half
    near = (exact.abs() - LARGEST).abs() <= LARGEST * 0.01  # whether these overflow is up to the last bit
    torch.testing.assert_close(
        found.masked_fill(near, 0.0), wanted.masked_fill(near, 0.0), rtol=4e-3, atol=2e-2, equal_nan=True,
    )


# --------------------------------------------------------------------------- gradients
GRADIENTS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "mm": (torch.mm, (halves(6, 40, scale=30), halves(40, 9, scale=30, seed=1))),
    "linear": (F.linear, (halves(2, 3, 40, scale=30), halves(9, 40, scale=30), halves(9))),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), (halves(2, 4, 8, 8, scale=20), halves(6, 4, 3, 3, scale=60))),
    "transposed conv2d": (
        lambda x, w: F.conv_transpose2d(x, w), (halves(2, 4, 8, 8, scale=20), halves(4, 6, 3, 3, scale=60)),
    ),
    "layer norm": (lambda x, w: F.layer_norm(x, (40,), w), (halves(200, 40), halves(40))),
    "batch norm": (
        lambda x, w: F.batch_norm(x, None, None, w, training=True), (halves(9, 4, 8, 8), halves(4, scale=5)),
    ),
    "elementwise": (lambda x, y: x * x * y, (halves(50, scale=20), halves(50, scale=20))),
    "broadcast": (lambda x, b: x * 20 + b * 9, (halves(50, 7), halves(7))),
    "embedding": (lambda w: F.embedding(torch.arange(600) % 7, w), (halves(7, 5),)),
    "pool": (lambda x: F.avg_pool2d(x, 3, 1, divisor_override=1), (halves(2, 3, 8, 8),)),
    "upsampling": (lambda x: F.interpolate(x, scale_factor=9, mode="nearest"), (halves(1, 2, 6, 6),)),
}
COTANGENTS = dict.fromkeys(["layer norm", "batch norm", "embedding", "pool", "upsampling"], 2e4)
"""Sizes of the gradients of results, where the usual one makes no gradient overflow."""


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_beyond_the_range_are_treated_alike(name: str, treatment: str) -> None:
    function, inputs = GRADIENTS[name]
    exact = [x.double().requires_grad_() for x in inputs]
    out = function(*exact)
    cotangent = halves(*out.shape, scale=COTANGENTS.get(name, 900.0), seed=7)
    out.backward(cotangent.double())
    given = [x.clone().requires_grad_() for x in inputs]
    compiled(function, *given, half_overflow=treatment).backward(cotangent)
    assert any(bool((x.grad.abs() > LARGEST * 1.01).any()) for x in exact if x.grad is not None)
    for mine, theirs in zip(given, exact, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        near = (theirs.grad.abs() - LARGEST).abs() <= LARGEST * 0.01
        wanted = treated(theirs.grad, treatment)
        scale = max(1.0, theirs.grad.abs().clamp(max=LARGEST).median().item())
        torch.testing.assert_close(
            mine.grad.masked_fill(near, 0.0), wanted.masked_fill(near, 0.0), rtol=4e-3, atol=4e-3 * scale,
            equal_nan=True,
        )


# --------------------------------------------------------------------------- updates
class Slope(torch.nn.Module):
    """Weights whose gradients are the input."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(size, dtype=torch.half))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).float().sum()


OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=500.0),
    "momentum": lambda p: torch.optim.SGD(p, lr=500.0, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=1e5),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e5),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e5),
    "lamb": lambda p: LAMB(p, lr=1e6),
    "lars": lambda p: LARS(p, lr=1e9),
}


@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("name", OPTIMISERS)
def test_weights_that_an_update_takes_beyond_the_range_are_treated_alike(name: str, treatment: str) -> None:
    gradient = torch.tensor([1.0, -2.0, 200.0, -200.0, 0.0, 0.5, 30.0, 131.0]).half()
    model, exact = Slope(8), Slope(8).double()
    step = torchipu.TrainStep(
        model, OPTIMISERS[name](model.parameters()),
        torchipu.Options(half_overflow=treatment, second_moment_type="float"),
    )
    step(gradient)
    reference = OPTIMISERS[name](exact.parameters())
    exact(gradient.double()).backward()
    reference.step()
    beyond = exact.weight.abs() > LARGEST
    assert bool(beyond.any())
    assert not bool(beyond.all())
    torch.testing.assert_close(
        model.weight.detach(), treated(exact.weight.detach(), treatment), rtol=4e-3, atol=2e-2, equal_nan=True,
    )


@pytest.mark.parametrize("treatment", TREATMENTS)
def test_half_accumulators_and_moments_beyond_the_range_are_treated_alike(treatment: str) -> None:
    model = Slope(4)
    optimiser = torch.optim.SGD(model.parameters(), lr=2.0**-16, momentum=0.9)
    step = torchipu.TrainStep(
        model, optimiser, torchipu.Options(
            half_overflow=treatment, gradient_accumulation=4, accumulation_reduction="sum", accumulator_type="half",
            first_moment_type="half",
        ),
    )
    gradient = torch.tensor([1.0, 2e4, -2e4, 1e4])
    step(gradient.half().repeat(4))
    total = treated(4 * gradient.double(), treatment)
    found = optimiser.state[model.weight]["momentum_buffer"]
    torch.testing.assert_close(found, total, equal_nan=True, rtol=0, atol=0)
    wanted = treated(1 - total.double() * 2.0**-16, treatment)
    torch.testing.assert_close(model.weight.detach(), wanted, equal_nan=True, rtol=1e-3, atol=0)
