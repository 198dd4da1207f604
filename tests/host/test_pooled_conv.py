"""A convolution and the max-pool behind it, which the host computes in one go, against eager in float64."""

import copy

import pytest
import torch
from torch import nn

import torchipu
from torchipu.host.planner import Planner

SHAPES = [
    # images, channels, size, kernel, stride, padding, pool
    ((5, 1, 28), (5, 1, 0), (2, 2)),
    ((9, 10, 13), (3, 1, 1), (2, 2)),
    ((3, 3, 17), (3, 2, 1), (3, 3)),
    ((2, 17, 9), (2, 1, 0), (2, 3)),
    ((8, 16, 12), (1, 1, 0), (2, 2)),
    ((3, 20, 18), (3, 1, 0), (2, 2)),
    ((3, 20, 18), (3, 1, 1), (2, 2)),
    ((2, 40, 11), (5, 1, 2), (2, 2)),  # rows of more vectors than are summed at a time
    ((2, 7, 16), (7, 1, 3), (2, 2)),
    ((2, 2, 15), (7, 1, 0), (2, 2)),
]


class TwoConvs(nn.Module):
    """Two convolutions with max-pools; returns the loss and the pooled image."""

    def __init__(self, channels: int, conv: tuple[int, int, int], pool: tuple[int, int]) -> None:
        super().__init__()
        kernel, stride, padding = conv
        self.first = nn.Conv2d(channels, 6, kernel, stride, padding)
        self.second = nn.Conv2d(6, 7, 2, 1, 1)
        self.pool = nn.MaxPool2d(pool[0], pool[1])

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        pooled = self.pool(self.second(torch.relu(self.pool(self.first(x)))))
        return pooled.square().mean(), pooled


def step_of(model: nn.Module, threads: int = 2) -> torchipu.TrainStep:
    """A step whose update subtracts the gradient itself."""
    options = torchipu.Options(host_threads=threads)
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1.0), options)


@pytest.mark.parametrize(("image", "conv", "pool"), SHAPES)
def test_gradients_equal_float64(image, conv, pool):
    n, channels, size = image
    model = TwoConvs(channels, conv, pool)
    reference = copy.deepcopy(model).double()
    x = torch.randn(n, channels, size, size)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    step = step_of(model)
    loss, pooled = step(x)
    fused = sorted(len(ops) for ops, _ in Planner(step.compiled.graph).fused.values())
    assert fused == [2, 2, 3, 3], "forward and backward, once with the ReLU and once without"
    expected_loss, expected = reference(x.double())
    expected_loss.backward()
    torch.testing.assert_close(pooled.double(), expected.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(loss.double(), expected_loss.detach(), rtol=1e-5, atol=0)
    for old, new, judge in zip(before, model.parameters(), reference.parameters(), strict=True):
        assert judge.grad is not None
        atol = 2e-7 * float(old.abs().max()) + 1e-7  # of the subtraction
        torch.testing.assert_close((old - new.detach()).double(), judge.grad, rtol=1e-4, atol=atol)


def test_the_same_bits_for_any_number_of_threads():
    x = torch.randn(40, 1, 28, 28)
    results = []
    for threads in (1, 2, 4):
        torch.manual_seed(0)
        model = TwoConvs(1, (5, 1, 0), (2, 2))
        step_of(model, threads)(x)
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("special", [float("nan"), float("inf")])
def test_special_values_reach_the_gradients_that_they_reach_in_eager(special):
    model = TwoConvs(2, (3, 1, 1), (2, 2))
    reference = copy.deepcopy(model)
    x = torch.randn(4, 2, 12, 12)
    x[1, 0, 5, 5] = special
    step_of(model)(x)
    reference(x)[0].backward()
    for new, judge in zip(model.parameters(), reference.parameters(), strict=True):
        assert judge.grad is not None
        assert torch.equal(torch.isfinite(new.detach()), torch.isfinite(judge.detach() - judge.grad))


def test_a_convolution_that_others_read_too_is_not_absorbed():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 3, 3)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.conv(x)
            return torch.max_pool2d(y, 2), y.mean()

    model = Shared()
    x = torch.randn(2, 2, 10, 10)
    step = torchipu.InferenceStep(model)
    pooled, mean = step(x)
    assert not Planner(step.compiled.graph).fused
    with torch.no_grad():
        expected, expected_mean = model(x)
    torch.testing.assert_close(pooled, expected)
    torch.testing.assert_close(mean, expected_mean)


@pytest.mark.parametrize(("scale", "options"), [
    (1.0, {}), (1.0, {"stochastic_rounding": True, "seed": 3}), (1e4, {"half_overflow": "nan"}),
    (1e4, {"half_overflow": "saturate"}), (1e4, {}),
])
def test_halves_have_the_bits_of_one_op_after_another(scale, options):
    torch.manual_seed(5)
    model = TwoConvs(3, (3, 1, 1), (2, 2)).half().eval()
    x = torch.randn(4, 3, 16, 16).half()
    with torch.no_grad():
        model.first.weight *= scale  # some results are too large for a half
    joined = torchipu.InferenceStep(model, torchipu.Options(**options))(x)[1]
    apart = torchipu.InferenceStep(model, torchipu.Options(statistics=True, **options))(x)[1]
    torch.testing.assert_close(joined, apart, rtol=0, atol=0, equal_nan=True)
