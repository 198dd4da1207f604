"""Gradients that a forward takes of itself, and gradients of gradients through a compiled function."""

import copy

import pytest
import torch
from torch import nn

import torchipu
from torchipu.backend import COUNTS
from torchipu.errors import CaptureError


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))


class Critic(Net):
    """The penalty of WGAN-GP at points between two samples."""

    def forward(self, x):
        share = torch.linspace(0, 1, x.shape[0])[:, None].to(x.dtype)
        mixed = (share * x + (1 - share) * x.tanh()).requires_grad_(True)
        out = self.net(mixed)
        slope = torch.autograd.grad(out, mixed, torch.ones_like(out), create_graph=True, retain_graph=True)[0]
        return out.mean() + 10 * ((slope.norm(2, dim=1) - 1) ** 2).mean()


class Weights(Net):
    """A penalty on the gradients of the weights."""

    def forward(self, x):
        loss = self.net(x).pow(2).mean()
        return loss + sum(g.pow(2).sum() for g in torch.autograd.grad(loss, list(self.parameters()), create_graph=True))


class Curvature(Net):
    """A second derivative by the input, as in the loss of a differential equation."""

    def forward(self, x):
        x = x.detach().requires_grad_()
        value = self.net(x)
        first, = torch.autograd.grad(value.sum(), x, create_graph=True)
        second, = torch.autograd.grad(first.sum(), x, create_graph=True)
        return (second + first + value).pow(2).mean()


class Functional(Net):
    """A penalty by transforms of functions."""

    def forward(self, x):
        slopes = torch.func.vmap(torch.func.grad(lambda row: self.net(row).sum()))(x)
        return self.net(x).pow(2).mean() + slopes.pow(2).sum()


@pytest.mark.parametrize("model", [Critic, Weights, Curvature, Functional])
def test_a_step_trains_with_gradients_in_its_loss_as_eager_in_float64(model):
    torch.manual_seed(0)
    ours = model()
    judge = copy.deepcopy(ours).double()
    step = torchipu.TrainStep(ours, torch.optim.SGD(ours.parameters(), lr=0.01))
    optimiser = torch.optim.SGD(judge.parameters(), lr=0.01)
    for _ in range(4):
        x = torch.randn(4, 3)
        loss = step(x)
        optimiser.zero_grad()
        expected = judge(x.double())
        expected.backward()
        optimiser.step()
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=1e-4, atol=1e-5)
    for (name, mine), theirs in zip(ours.named_parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-4, atol=1e-5, msg=name)


class Hidden(Net):
    """A penalty on the slope by a value within."""

    def forward(self, x):
        hidden = self.net[0](x)
        out = self.net[2](hidden.tanh())
        slope, = torch.autograd.grad(out.sum(), hidden, create_graph=True)
        return out.pow(2).mean() + slope.pow(2).sum()


@pytest.mark.parametrize("model", [Weights, Hidden])
def test_a_compiled_function_with_gradients_in_its_loss_is_one_graph(model):
    torch.manual_seed(0)
    ours, x = model(), torch.randn(4, 3)
    torch.compile(ours, backend="ipu", fullgraph=True)(x).backward()
    judge = copy.deepcopy(ours).double()
    judge.zero_grad()
    judge(x.double()).backward()
    for mine, theirs in zip(ours.parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-5)


def test_a_result_whose_gradient_torch_would_drop_is_left_to_eager():
    def energy(x):
        x = x.detach().requires_grad_()
        value = x.pow(3).sum()
        return value, torch.autograd.grad(value, x, create_graph=True)[0]

    x = torch.randn(3)
    value, slope = torch.compile(energy, backend="ipu")(x)
    torch.testing.assert_close((value, slope), energy(x))
    assert value.requires_grad
    assert slope.requires_grad


class Forces(Net):
    """An energy, and what it pulls by."""

    def __init__(self, *, asks):
        super().__init__()
        self.asks = asks

    def forward(self, x):
        with torch.set_grad_enabled(self.asks):
            x = x.detach().requires_grad_()
            energy = self.net(x).sum()
            return energy.detach(), -torch.autograd.grad(energy, x)[0]


def test_inference_takes_gradients_where_forward_asks_for_them():
    model, x = Forces(asks=True), torch.randn(5, 3)
    energy, force = torchipu.InferenceStep(model)(x)
    expected = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close((energy.double(), force.double()), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(CaptureError, match=r"take those that forward computes of itself under torch\.enable_grad\(\)"):
        torchipu.InferenceStep(Forces(asks=False))(x)


def test_requires_grad_on_an_argument_is_refused_with_what_to_write():
    class Argument(Net):
        def forward(self, x):
            return torch.autograd.grad(self.net(x.requires_grad_()).sum(), x, create_graph=True)[0].pow(2).sum()

    model = Argument()
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(CaptureError, match=r"x = x\.detach\(\)\.requires_grad_\(\)"):
        step(torch.randn(4, 3))


def test_a_hessian_within_a_compiled_function():
    net, x = Net().net, torch.randn(3)

    def hessian(x):
        return torch.func.hessian(lambda at: net(at).sum())(x)

    before = COUNTS.programs
    found = torch.compile(hessian, backend="ipu", fullgraph=True)(x)
    assert COUNTS.programs == before + 1
    net.double()
    torch.testing.assert_close(found.double(), hessian(x.double()), rtol=1e-4, atol=1e-6)


def test_a_gradient_within_a_compiled_function_has_a_gradient():
    net, x = Net().net, torch.randn(3)
    judge = copy.deepcopy(net).double()

    def penalty(net, x):
        return torch.func.grad(lambda at: net(at).sum())(x).pow(2).sum()

    torch.compile(lambda x: penalty(net, x), backend="ipu", fullgraph=True)(x).backward()
    penalty(judge, x.double()).backward()
    for mine, theirs in zip(net.parameters(), judge.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-6)


def test_a_gradient_of_a_gradient_through_a_compiled_function_says_where_to_take_it():
    compiled, x = torch.compile(Net().net, backend="ipu"), torch.randn(4, 3, requires_grad=True)
    slope, = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
    with pytest.raises(CaptureError, match="a gradient of its gradient is asked for") as caught:
        slope.pow(2).sum().backward()
    assert "torch.func.grad" in caught.value.remedy
    assert "TrainStep" in caught.value.remedy


def test_first_gradients_are_those_of_eager_with_and_without_create_graph():
    net = Net().net
    compiled, x = torch.compile(net, backend="ipu"), torch.randn(4, 3, requires_grad=True)
    expected = torch.autograd.grad(net(x).sum(), x)[0]
    for create_graph in (False, True):
        slope, = torch.autograd.grad(compiled(x).sum(), x, create_graph=create_graph)
        torch.testing.assert_close(slope.detach(), expected)


def test_a_backward_runs_again_where_its_graph_is_retained():
    net = Net().net
    compiled, x = torch.compile(net, backend="ipu"), torch.randn(4, 3, requires_grad=True)
    loss = compiled(x).pow(2).sum()
    first, = torch.autograd.grad(loss, x, retain_graph=True)
    second, = torch.autograd.grad(loss, x)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, torch.autograd.grad(net(x).pow(2).sum(), x)[0])
