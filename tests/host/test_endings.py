"""What the host computes along with a convolution, its gradient or a normalisation: sums, ReLUs and their gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchipu
from torchipu.host.planner import Planner

CONV, GRADIENT, RELU, ADD, GATE = "convolution", "convolution_backward", "relu", "add", "threshold_backward"
NORM = "_native_batch_norm_legit_functional"


class Residual(nn.Module):
    """Two residual blocks, the second with a stride and a projection; returns the loss and the last image."""

    def __init__(self, channels: int, kernel: int, stride: int, groups: int = 1, dimensions: int = 2) -> None:
        super().__init__()
        pad = kernel // 2
        convolution, norm = (nn.Conv1d, nn.BatchNorm1d) if dimensions == 1 else (nn.Conv2d, nn.BatchNorm2d)
        self.stem = convolution(3, channels, 3)
        self.convs = nn.ModuleList(
            convolution(channels, channels, kernel, stride if index == 2 else 1, pad, bias=index == 3, groups=groups)
            for index in range(4)
        )
        self.norms = nn.ModuleList(norm(channels) for _ in range(5))
        self.project = convolution(channels, channels, 1, stride, bias=False, groups=groups)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.stem(x)
        y = F.relu(self.norms[0](self.convs[0](x)))
        x = F.relu(self.norms[1](self.convs[1](y)) + x)
        y = F.relu(self.norms[2](self.convs[2](x)))
        y = F.relu(self.norms[3](self.convs[3](y)) + self.norms[4](self.project(x)))
        return y.square().mean(), y


def step_of(model: nn.Module, threads: int = 2) -> torchipu.TrainStep:
    """A step whose update subtracts the gradient itself."""
    options = torchipu.Options(host_threads=threads, allow_out_of_memory=True)
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1.0), options)


def fused_kinds(step: torchipu.TrainStep) -> list[tuple[str, ...]]:
    """The ops that the plan joins, by short names: row-major, or in blocks of channels where that pays here."""
    plan = Planner(step.compiled.graph)
    joined = [*(ops for ops, _ in plan.fused.values()), *(run.ops for run in plan.layouts.runs.values())]
    return [tuple(op.target.split(".")[1] for op in ops) for ops in joined]


# images, channels, size, window, stride, groups
SHAPES = [
    (2, 32, 9, 3, 2, 1), (3, 33, 13, 3, 2, 1), (1, 40, 18, 1, 1, 1), (5, 64, 7, 3, 1, 1), (2, 32, 40, 1, 2, 1),
    (2, 12, 9, 3, 2, 12), (11, 5, 13, 5, 1, 5), (1, 8, 60, 7, 2, 8),
]


@pytest.mark.parametrize(("images", "channels", "size", "kernel", "stride", "groups"), SHAPES)
def test_gradients_of_residual_blocks_equal_float64(images, channels, size, kernel, stride, groups):
    torch.manual_seed(0)
    model = Residual(channels, kernel, stride, groups)
    reference = copy.deepcopy(model).double()
    x = torch.randn(images, 3, size, size)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    step = step_of(model)
    loss, image = step(x)
    kinds = fused_kinds(step)
    assert kinds.count((NORM, RELU)) == 2
    assert kinds.count((NORM, ADD, RELU)) == 2
    assert kinds.count((GRADIENT, GATE)) == 2
    assert kinds.count((GRADIENT, ADD, GATE)) == 1
    assert kinds.count((GRADIENT, ADD)) == 1, "the sum at the stem has no ReLU after it"
    expected_loss, expected = reference(x.double())
    expected_loss.backward()
    torch.testing.assert_close(image.double(), expected.detach(), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(loss.double(), expected_loss.detach(), rtol=1e-5, atol=0)
    for (name, new), judge in zip(model.named_parameters(), reference.parameters(), strict=True):
        assert judge.grad is not None
        size_of = float(judge.grad.abs().max()) + 1e-2
        atol = 3e-7 * float(before[name].abs().max()) + 5e-5 * size_of
        torch.testing.assert_close((before[name] - new.detach()).double(), judge.grad, rtol=1e-4, atol=atol, msg=name)
    for ours, judge in zip(model.buffers(), reference.buffers(), strict=True):
        torch.testing.assert_close(ours.double(), judge.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("images", "channels", "size", "kernel", "stride"), [
    (2, 32, 41, 3, 2), (3, 33, 50, 5, 1), (1, 32, 900, 1, 1),
])
def test_what_follows_convolutions_of_sequences_is_computed_with_them(images, channels, size, kernel, stride):
    torch.manual_seed(0)
    model, x = Residual(channels, kernel, stride, dimensions=1), torch.randn(images, 3, size)
    reference, before = copy.deepcopy(model).double(), [value.detach().clone() for value in model.parameters()]
    step = step_of(model)
    loss, sequence = step(x)
    kinds = fused_kinds(step)
    assert kinds.count((GRADIENT, GATE)) == 2
    assert kinds.count((GRADIENT, ADD, GATE)) == 1
    expected_loss, expected = reference(x.double())
    expected_loss.backward()
    torch.testing.assert_close(sequence.double(), expected.detach(), rtol=1e-4, atol=2e-5)
    torch.testing.assert_close(loss.double(), expected_loss.detach(), rtol=1e-5, atol=0)
    for old, new, judge in zip(before, model.parameters(), reference.parameters(), strict=True):
        atol = 3e-7 * float(old.abs().max()) + 5e-5 * (float(judge.grad.abs().max()) + 1e-2)
        torch.testing.assert_close((old - new.detach()).double(), judge.grad, rtol=1e-4, atol=atol)
    model.eval()
    step = torchipu.InferenceStep(model, torchipu.Options(allow_out_of_memory=True))
    for ours, judge in zip(step(x), copy.deepcopy(model).double()(x.double()), strict=True):
        torch.testing.assert_close(ours.double(), judge, rtol=1e-4, atol=2e-5)
    kinds = fused_kinds(step)
    no_training = "_native_batch_norm_legit_no_training"
    assert kinds.count((CONV, no_training, RELU)) == 2
    assert kinds.count((CONV, no_training, ADD, RELU)) == 2


@pytest.mark.parametrize("has_norms", [True, False])
def test_endings_of_inference_equal_float64(has_norms):
    torch.manual_seed(0)
    model = Residual(12, 5, 2, groups=12).eval()
    if not has_norms:
        model.norms = nn.ModuleList(nn.Identity() for _ in model.norms)
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.uniform_(norm.running_mean, -1, 1)
            nn.init.uniform_(norm.running_var, 0.5, 2)
            nn.init.uniform_(norm.weight, 0.5, 2)
    x = torch.randn(3, 3, 21, 18)
    expected = copy.deepcopy(model).double()(x.double())
    for frozen in (False, True):
        step = torchipu.InferenceStep(model, torchipu.Options(frozen_weights=frozen, allow_out_of_memory=True))
        for ours, judge in zip(step(x), expected, strict=True):
            torch.testing.assert_close(ours.double(), judge, rtol=1e-4, atol=2e-5)


@pytest.mark.usefixtures("captures_kept")
@pytest.mark.parametrize("groups", [1, 48])
def test_the_same_bits_for_any_number_of_threads(groups):
    x = torch.randn(6, 3, 20, 20)
    results = []
    for threads in (1, 2, 5):
        torch.manual_seed(0)
        model = Residual(48, 3, 2, groups)
        step_of(model, threads)(x)
        results.append([parameter.detach().clone() for parameter in model.parameters()])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("groups", [1, 32])
@pytest.mark.parametrize("special", [float("nan"), float("inf")])
def test_special_values_reach_what_they_reach_in_eager(special, groups):
    torch.manual_seed(0)
    model = Residual(32, 3, 2, groups)
    reference = copy.deepcopy(model)
    x = torch.randn(4, 3, 12, 12)
    x[1, 0, 5, 5] = special
    _, image = step_of(model)(x)
    loss, expected = reference(x)
    loss.backward()
    assert torch.equal(torch.isfinite(image), torch.isfinite(expected.detach()))
    for new, judge in zip(model.parameters(), reference.parameters(), strict=True):
        assert judge.grad is not None
        assert torch.equal(torch.isfinite(new.detach()), torch.isfinite(judge.detach() - judge.grad))


def test_a_normalisation_that_others_read_too_is_not_absorbed():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            y = self.norm(x)
            return F.relu(y).mean(), y

    x = torch.randn(2, 8, 5, 5)
    step = step_of(Twice())
    expected = F.batch_norm(x, None, None, training=True)
    _, y = step(x)
    assert not [kinds for kinds in fused_kinds(step) if kinds[0] == NORM]
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)
