"""Gradients that a forward takes of itself, and gradients of gradients through a compiled function."""

import copy
import weakref

import pytest
import torch
from torch import nn

import torchipu
from torchipu.backend import COUNTS
from torchipu.errors import CaptureError


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()


traced = pytest.mark.skipif(
    "trace_autograd_ops" not in torch._dynamo.config._config, reason="this release of torch breaks graphs there",
)


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


@traced
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


@traced
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


class Derivatives(Net):
    """A differential equation's network: its value, and its first and second derivatives by each coordinate."""

    def forward(self, x):
        x, y, t = (x[:, n : n + 1].detach().requires_grad_() for n in range(3))
        u = self.net(torch.cat([x, y, t], 1))
        ones = torch.ones_like(u)
        u_x, u_t = torch.autograd.grad(u, [x, t], ones, create_graph=True)
        return u, u_x, u_t, torch.autograd.grad(u_x, x, ones, create_graph=True)[0]


class Molecule(Net):
    """An energy, the forces, and the stress by a displacement that is zero."""

    def forward(self, x):
        x = x.clone().requires_grad_()
        strain = torch.zeros(3, 3, dtype=x.dtype).requires_grad_()
        at = x + x @ (strain + strain.mT)
        lengths = (at[:, None] - at).pow(2).sum(-1) + torch.eye(len(x), dtype=x.dtype)
        energy = self.net(at).sum() + lengths.rsqrt().sum()
        slope, stress = torch.autograd.grad(energy, [x, strain], create_graph=True)
        return {"energy": energy, "forces": -slope, "stress": stress}


class Spellings(Net):
    """Values to differentiate by, as `torch.autograd.Variable`, by an attribute and from a maker of tensors."""

    def forward(self, x):
        one = torch.autograd.Variable(x, requires_grad=True)
        other = x.detach()
        other.requires_grad = True
        third = torch.linspace(0, 1, 3, dtype=x.dtype, requires_grad=True)
        value = self.net(one * other + third)
        return value, *torch.autograd.grad(value.sum(), (one, other, third), create_graph=True)


class Within(Net):
    """A value in the middle, beside the way that gradients take around it."""

    def forward(self, x):
        hidden = self.net[0](x)
        leaf = hidden.detach().requires_grad_()
        out = self.net[2](leaf.tanh())
        return out, leaf.exp(), torch.autograd.grad(out.sum(), leaf, create_graph=True)[0] * hidden


class Descent(Net):
    """Steps along a gradient that has none itself."""

    def forward(self, x):
        for _ in range(2):
            x = x.detach().requires_grad_()
            x = x - 0.1 * torch.autograd.grad(self.net(x).sum(), x)[0]
        return self.net(x)


class Functionals(nn.Module):
    """`torch.autograd.functional`."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3))

    def forward(self, x):
        functional = torch.autograd.functional
        x = x[0]

        def wave(x):
            return (self.weight * x).sin()

        def energy(x, y):
            return wave(x * y).sum().reshape(1)

        return (
            functional.jacobian(lambda x: (wave(x), x.exp().sum()), x, create_graph=True),
            functional.hessian(energy, (x, x.exp()), create_graph=True),
            functional.vjp(wave, x, x.cos(), create_graph=True),
            functional.jvp(wave, x, x.cos(), create_graph=True),
            functional.hvp(energy, (x, x.cos()), (x.sin(), x), create_graph=True),
            functional.vhp(lambda x: energy(x, x), x, x.exp()),
        )


def tensors(results):
    return [leaf for leaf in torch.utils._pytree.tree_leaves(results) if isinstance(leaf, torch.Tensor)]


@traced
@pytest.mark.parametrize("model", [Derivatives, Molecule, Spellings, Within, Descent, Functionals])
def test_gradients_that_a_compiled_function_returns_have_those_of_eager_in_float64(model):
    torch.manual_seed(0)
    ours, x = model(), torch.randn(4, 3)
    judge = copy.deepcopy(ours).double()
    before = COUNTS.programs
    found, expected = torch.compile(ours, backend="ipu", fullgraph=True)(x), judge(x.double())
    for results in (found, expected):
        sum(tensor.pow(2).sum() * n for n, tensor in enumerate(tensors(results), 1) if tensor.requires_grad).backward()
    assert COUNTS.programs == before + 2
    for one, other in zip(tensors(found), tensors(expected), strict=True):
        assert one.requires_grad == other.requires_grad
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(ours.parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-4, atol=1e-4)


@traced
def test_forces_without_a_graph_leave_the_energy_its_gradient():
    """Eager has freed what it would need, and raises."""
    net, x = Net().net, torch.randn(4, 3)

    def energy(x, **kept):
        x = x.detach().requires_grad_()
        value = net(x).sum()
        return value, torch.autograd.grad(value, x, **kept)[0]

    found = torch.compile(energy, backend="ipu", fullgraph=True)(x)
    torch.testing.assert_close(found, energy(x))
    assert not found[1].requires_grad
    found[0].backward()
    slopes = [weight.grad.clone() for weight in net.parameters()]
    net.zero_grad()
    energy(x, retain_graph=True)[0].backward()
    torch.testing.assert_close(slopes, [weight.grad for weight in net.parameters()])


@traced
@pytest.mark.parametrize("returned", [lambda x: x, lambda x: x.view(-1)])
def test_a_value_to_differentiate_by_that_is_returned_is_made_by_eager(returned):
    net, x = Net().net, torch.randn(4, 3)

    def energy(x):
        x = x.detach().requires_grad_()
        return net(x).sum(), returned(x)

    found = torch.compile(energy, backend="ipu")(x)
    expected = energy(x)
    torch.testing.assert_close(found, expected)
    assert [value.is_leaf for value in found] == [value.is_leaf for value in expected]
    if found[1].is_leaf:
        by = [torch.autograd.grad(*results)[0] for results in (found, expected)]
        torch.testing.assert_close(*by)
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="returning intermediate with requires_grad_"):
        torch.compile(energy, backend="ipu", fullgraph=True)(x)


def test_where_nothing_given_needs_a_gradient_results_have_theirs_from_eager():
    def energy(x):
        x = x.detach().requires_grad_()
        value = x.pow(3).sum()
        return value, torch.autograd.grad(value, x, create_graph=True)[0]

    x = torch.randn(3)
    value, slope = torch.compile(energy, backend="ipu")(x)
    torch.testing.assert_close((value, slope), energy(x))
    assert value.requires_grad
    assert slope.requires_grad


def test_a_backward_with_a_graph_is_no_part_of_one():
    net, x = Net().net, torch.randn(4, 3)

    def slope(x):
        x = x.detach().requires_grad_()
        net(x).sum().backward(inputs=[x], create_graph=True)
        return x.grad

    found = torch.compile(slope, backend="ipu")(x)
    torch.testing.assert_close(found, slope(x))
    assert found.requires_grad
    with pytest.raises(CaptureError, match="a gradient of its gradient is asked for"):
        found.pow(2).sum().backward()


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


@traced
def test_inference_takes_gradients_where_forward_asks_for_them():
    model, x = Forces(asks=True), torch.randn(5, 3)
    energy, force = torchipu.InferenceStep(model)(x)
    expected = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close((energy.double(), force.double()), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(CaptureError, match=r"take those that forward computes of itself under torch\.enable_grad\(\)"):
        torchipu.InferenceStep(Forces(asks=False))(x)


class Argument(Net):
    """A derivative by an argument, after a view of it that has none."""

    def forward(self, x):
        before = x.view(-1)
        x.requires_grad_()
        slope, = torch.autograd.grad(self.net(x).sum(), x, create_graph=True)
        return x, slope, slope.pow(2).sum() + before.sum()


@traced
def test_a_step_differentiates_by_an_argument_and_leaves_it_as_it_is():
    torch.manual_seed(0)
    ours = Argument()
    judge = copy.deepcopy(ours).double()
    step = torchipu.TrainStep(ours, torch.optim.SGD(ours.parameters(), lr=0.1))
    optimiser = torch.optim.SGD(judge.parameters(), lr=0.1)
    for _ in range(3):
        x = torch.randn(4, 3)
        found = step(x)
        assert not x.requires_grad
        optimiser.zero_grad()
        expected = judge(x.double())
        expected[-1].backward()
        optimiser.step()
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one.double(), other.detach(), rtol=1e-4, atol=1e-5)


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


def test_a_gradient_of_a_gradient_by_an_input_alone_is_refused_too():
    """Torch asks only for what lies on the way to the input: what is not connected with it is None, or zero."""
    net, x = Net().net, torch.randn(4, 3)
    compiled, y = torch.compile(net, backend="ipu"), x.clone().requires_grad_().view_as(x)
    for _ in range(2):  # the second time without AOT autograd
        slope, = torch.autograd.grad(compiled(y).sum(), y, create_graph=True)
        with pytest.raises(CaptureError, match="a gradient of its gradient is asked for"):
            torch.autograd.grad(slope.pow(2).sum(), y, allow_unused=True)


def test_what_a_compiled_function_writes_into_is_not_kept_alive():
    @torch.compile(backend="ipu")
    def written(x):
        return x.mul_(2).sin()

    for _ in range(3):
        x = torch.randn(3, requires_grad=True) * 2
        written(x).sum().backward()
    gone = weakref.ref(x)
    del x
    assert gone() is None


def test_a_frozen_weight_cannot_be_thawed_in_forward():
    class Thawing(Net):
        def forward(self, x):
            self.net[0].weight.requires_grad_()
            return self.net(x).sum()

    model = Thawing()
    model.net[0].weight.requires_grad_(False)
    with pytest.raises(CaptureError, match="requires_grad_"):
        torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))(torch.randn(4, 3))


def test_a_second_gradient_that_eager_takes_within_a_compiled_function_is_refused_too():
    net, x = Net().net, torch.randn(4, 3)

    def hessian(x):
        return torch.autograd.functional.hessian(lambda x: net(x).pow(2).sum(), x, strict=True)

    with pytest.raises(CaptureError, match="a gradient of its gradient is asked for"):
        torch.compile(hessian, backend="ipu")(x)


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
