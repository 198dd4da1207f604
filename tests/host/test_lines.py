"""Convolutions of one dimension are computed as those of images of one row: values, gradients, steps and graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import torchipu
from tests.host.planned import planned_kernels
from torchipu.host.emit.vectors import vector_lanes
from torchipu.host.lines import with_lines
from torchipu.host.planner import Planner
from torchipu.ir.graph import Graph, Op
from torchipu.ir.graph import Tensor as Value
from torchipu.ir.types import DType, Role

CHANNELS, LENGTH = 64, 801


class Net(nn.Module):
    """Convolutions of lines `[2, 48, 801]`, and something between them."""

    def __init__(self, between: Callable[[Net, Tensor], Tensor], channels: int = CHANNELS) -> None:
        super().__init__()
        self.first = nn.Conv1d(48, CHANNELS, 7, stride=2, padding=3)
        self.last = nn.Conv1d(channels, 80, 7, padding=4, dilation=2)
        self.norm, self.groups = nn.BatchNorm1d(CHANNELS), nn.GroupNorm(4, CHANNELS)
        self.deep = nn.Conv1d(CHANNELS, CHANNELS, 9, padding=4, groups=CHANNELS)
        self.grouped = nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1, groups=4)
        self.narrow = nn.Conv1d(CHANNELS, 2 * CHANNELS, 7, padding=3, groups=2 * CHANNELS // vector_lanes())
        self.up = nn.ConvTranspose1d(CHANNELS, CHANNELS, 4, 2, 1, output_padding=1)
        self.linear, self.scale = nn.Linear(CHANNELS, CHANNELS), nn.Parameter(torch.rand(CHANNELS, 1) + 0.5)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self, self.first(x)))


BETWEEN: dict[str, Callable[[Net, Tensor], Tensor]] = {
    "nothing": lambda net, x: x,
    "a normalisation and an activation": lambda net, x: F.relu(net.norm(x)),
    "a normalisation over groups": lambda net, x: F.silu(net.groups(x)),
    "a sum with what came before": lambda net, x: F.relu(net.deep(F.relu(x)) + x),
    "groups": lambda net, x: F.gelu(net.grouped(x)),
    "groups that fill half a vector": lambda net, x: F.relu(net.narrow(x)[:, ::2] + x),
    "a transposed convolution": lambda net, x: net.up(F.leaky_relu(x, 0.1)),
    "a pool": lambda net, x: F.max_pool1d(x, 3, 2),
    "an average": lambda net, x: F.avg_pool1d(x, 4),
    "zeros before lines": lambda net, x: F.pad(x, (5, 0)) * 2,
    "channels beside others": lambda net, x: torch.cat([x[:, :20], torch.tanh(x[:, 20:])], 1),
    "lines behind others": lambda net, x: torch.cat([x[..., 3:90], x[..., :7]], -1),
    "a factor of each channel": lambda net, x: x * net.scale,
    "a factor of each place": lambda net, x: x * torch.linspace(0, 1, x.shape[-1]),
    "gates": lambda net, x: x * torch.sigmoid(x.mean(-1, keepdim=True)),
    "tokens": lambda net, x: net.linear(x.transpose(1, 2)).transpose(1, 2),
    "tokens permuted": lambda net, x: F.gelu(net.linear(x.permute(0, 2, 1))).permute(0, 2, 1),
    "images of one row": lambda net, x: F.max_pool2d(x.unsqueeze(2), (1, 2)).squeeze(2),
    "images of more rows": lambda net, x: F.avg_pool2d(x[..., :390].reshape(2, CHANNELS, 10, 39), 2).flatten(2),
    "softmax along lines": lambda net, x: x.softmax(-1) * x,
}


def close(result: Tensor, exact: Tensor, eager: Tensor) -> None:
    """Assert that errors are about those of eager PyTorch in float32."""
    error, its = ((each.double() - exact).norm() for each in (result, eager))
    assert result.shape == exact.shape
    assert error <= 4 * its + 1e-6 * exact.norm()


def judged(net: nn.Module, x: Tensor, run: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """Compare a net's result, its input's gradient and those of its weights with eager PyTorch in float64."""
    found = []
    for dtype, which in ((torch.double, "eager"), (torch.float, "eager"), (torch.float, "ours")):
        own, given = copy.deepcopy(net).to(dtype), x.to(dtype, copy=True).requires_grad_()
        y = run(own, given) if which == "ours" else own(given)
        (y * torch.linspace(-1, 1, y.shape[-1], dtype=dtype)).square().sum().backward()
        grads = [parameter.grad for parameter in own.parameters() if parameter.grad is not None]
        found.append([y.detach(), given.grad, *grads])
    for exact, eager, result in zip(*found, strict=True):
        close(result, exact, eager)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels of all plans that are made."""
    torch._dynamo.reset()
    return planned_kernels(monkeypatch)


@pytest.mark.parametrize("name", BETWEEN)
def test_lines_are_images_between_convolutions(name: str, kernels: list[str]) -> None:
    torch.manual_seed(2)
    net, x = Net(BETWEEN[name]), torch.randn(2, 48, LENGTH)
    judged(net, x, lambda own, given: torch.compile(own, backend="ipu", options={"host_threads": 1})(given))
    assert "conv_blocked" in kernels


@pytest.mark.parametrize("name", BETWEEN)
def test_frozen_lines_are_images(name: str, kernels: list[str]) -> None:
    torch.manual_seed(3)
    net, x = Net(BETWEEN[name]).eval().requires_grad_(False), torch.randn(2, 48, LENGTH)
    step = torchipu.InferenceStep(net, torchipu.Options(frozen_weights=True, host_threads=2))
    close(step(x), copy.deepcopy(net).double()(x.double()), net(x))
    assert "conv_blocked" in kernels


def test_halves_of_lines_are_rounded_once_for_each_op() -> None:
    torch.manual_seed(4)
    net = Net(BETWEEN["a normalisation and an activation"]).half().eval().requires_grad_(False)
    x = torch.randn(2, 48, LENGTH).half()
    found = {
        mode: torchipu.InferenceStep(net, torchipu.Options(frozen_weights=True, seed=3, stochastic_rounding=mode))(x)
        for mode in (False, True)
    }
    exact = copy.deepcopy(net).double()(x.double())
    nearest = (found[False].double() - exact).norm()
    assert nearest <= 1.5 * (net(x).double() - exact).norm()
    assert 0 < (found[True].double() - exact).norm() <= 3 * nearest


@pytest.mark.parametrize("size", [1, 2, 223, 449, 1000])
def test_lines_of_any_length(size: int) -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Conv1d(16, 40, 3, padding=2), nn.ReLU(), nn.Conv1d(40, 24, 4, stride=3, padding=3))
    judged(net, torch.randn(3, 16, size), lambda own, given: torch.compile(own, backend="ipu")(given))


def test_lines_whose_length_changes() -> None:
    torch.manual_seed(6)
    net = nn.Sequential(nn.Conv1d(24, 64, 7, padding=3), nn.ReLU(), nn.Conv1d(64, 64, 7, padding=3))
    compiled = torch.compile(net, backend="ipu", dynamic=True)
    for size in (400, 401, 613, 90):
        x = torch.randn(2, 24, size)
        with torch.no_grad():
            close(compiled(x), copy.deepcopy(net).double()(x.double()), net(x))


def test_training_updates_weights_of_lines(kernels: list[str]) -> None:
    torch.manual_seed(7)
    x = torch.randn(8, 48, LENGTH)
    nets = [Net(BETWEEN["a sum with what came before"]) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    exact = nets[0].double()
    optimiser = torch.optim.SGD(exact.parameters(), lr=0.05)
    for batch in x.chunk(4):
        optimiser.zero_grad()
        exact(batch.double()).square().mean().backward()
        optimiser.step()

    class Trained(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nets[1]

        def forward(self, given: Tensor) -> Tensor:
            return self.net(given).square().mean()

    step = torchipu.TrainStep(
        Trained(), torch.optim.SGD(nets[1].parameters(), lr=0.05), torchipu.Options(device_iterations=4),
    )
    step(x)
    for name, weight in nets[1].state_dict().items():
        torch.testing.assert_close(weight.double(), exact.state_dict()[name].double(), rtol=1e-4, atol=1e-6)
    assert "conv_weight_blocked" in kernels


# --------------------------------------------------------------------------- graphs
def value(name: str, *shape: int, role: Role = Role.ACTIVATION) -> Value:
    """Return a float value."""
    return Value(name, shape, DType.FLOAT, role)


def convolution(x: Value, weight: Value, result: Value) -> Op:
    """Return a convolution that keeps the length of lines."""
    attrs = {
        "stride": [1], "padding": [weight.shape[2] // 2], "dilation": [1], "transposed": False, "output_padding": [0],
        "groups": 1,
    }
    return Op("convolution", (x, weight), (result,), attrs, "aten.convolution.default", ("input", "weight"))


def relu(x: Value, result: Value) -> Op:
    return Op("relu", (x,), (result,), {}, "aten.relu.default", ("self",))


def small_graph() -> Graph:
    """Return a convolution and an activation, and an activation of lines that have nothing to do with them."""
    x, other, weight = value("x", 2, 16, 9), value("o", 2, 5, 9), value("w", 16, 16, 3, role=Role.WEIGHT)
    y, z, far = value("y", 2, 16, 9), value("z", 2, 16, 9), value("far", 2, 5, 9)
    return Graph("g", (x, other, weight), (z, far), (convolution(x, weight, y), relu(y, z), relu(other, far)))


def test_ops_that_hand_lines_to_a_convolution_alone_are_on_images() -> None:
    graph = small_graph()
    made = with_lines(graph, lambda trial: trial.ops)
    shapes = [(op.kind, op.outputs[0].shape) for op in made.ops]
    assert shapes == [
        ("unsqueeze", (2, 16, 1, 9)), ("unsqueeze", (16, 16, 1, 3)), ("convolution", (2, 16, 1, 9)),
        ("relu", (2, 16, 1, 9)), ("squeeze", (2, 16, 9)), ("relu", (2, 5, 9)),
    ]
    assert made.outputs == graph.outputs
    assert made.ops[2].integers("padding") == (0, 1)


def test_a_graph_whose_convolutions_are_not_in_blocks_stays_the_same_object() -> None:
    graph = small_graph()
    assert with_lines(graph, lambda trial: ()) is graph


def test_a_graph_without_convolutions_of_lines_is_not_tried() -> None:
    x, y = value("x", 2, 16, 9), value("y", 2, 16, 9)
    graph = Graph("g", (x,), (y,), (relu(x, y),))
    assert with_lines(graph, lambda trial: pytest.fail("tried")) is graph


def test_only_convolutions_that_pay_are_on_images(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[Graph] = []
    plan = Planner.plan

    def planned(planner: Planner) -> object:
        graphs.append(planner.graph)
        return plan(planner)

    monkeypatch.setattr(Planner, "plan", planned)
    torch.manual_seed(8)
    large = nn.Sequential(nn.Conv1d(64, 64, 7, padding=3), nn.Conv1d(64, 64, 7, padding=3))
    small = nn.Conv1d(3, 2, 3)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.large, self.small = large, small

        def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            return self.large(x), self.small(y)

    x, y = torch.randn(4, 64, 500), torch.randn(1, 3, 9)
    with torch.no_grad():
        torch.compile(Both().eval(), backend="ipu", options={"frozen_weights": True})(x, y)
    ranks = sorted(len(op.outputs[0].shape) for op in graphs[-1].ops if op.kind == "convolution")
    assert ranks == [3, 4, 4]
