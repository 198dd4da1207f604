"""Bodies of torch.cond and while_loop that write into buffers: kept as in eager code, or refused, never lost."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed, UncapturedHigherOrderOpError
from torch._higher_order_ops import scan, while_loop

import torchipu
from tests.releases import WRITES_BY_DATA, WRITES_IN_BRANCHES, WRITES_WITHIN_LOOPS
from torchipu.errors import CaptureError, UnsupportedOpError


class Stateful(nn.Module):
    """Holds a layer with running statistics and two counters.

    Args:
        forward: What is called with the module and its input.
    """

    def __init__(self, forward: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.seen: torch.Tensor
        self.count: torch.Tensor
        self.register_buffer("seen", torch.zeros(4))
        self.register_buffer("count", torch.zeros(2))
        self.body = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self, x)


def branches(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Write into one buffer in one branch, and into it and another one in the other."""
    def then(a: torch.Tensor) -> torch.Tensor:
        m.seen.add_(a.mean(0))
        return m.linear(a) + m.seen

    def otherwise(a: torch.Tensor) -> torch.Tensor:
        m.count[1] += 3
        m.seen.sub_(1)
        return a * 2 + m.count[1]

    return torch.cond(x.sum() > 0, then, otherwise, (x,)) + m.seen


def trips(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Write into two buffers in every trip, and read what the trip before has written."""
    def body(i: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        m.seen.mul_(0.5).add_(a.mean(0))
        m.count[0] += 1
        return i + 1, m.linear(a) + m.seen * m.count[0]

    first = torch.zeros((), dtype=torch.int32)
    return while_loop(lambda i, a: i < 3, body, (first, x))[1] + m.seen


def normalised(m: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Keep running statistics in a branch, and by another road in a loop."""
    def body(i: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = F.batch_norm(a, m.seen, m.norm.running_var, training=True)
        return i + 1, m.linear(a)

    y = torch.cond(x.sum() > 0, m.norm, lambda a: a * 2, (x,))
    return while_loop(lambda i, a: i < 2, body, (torch.zeros((), dtype=torch.int32), y))[1]


def plain(monkeypatch: pytest.MonkeyPatch, model: Stateful, x: torch.Tensor) -> torch.Tensor:
    """Run a model in float64 with control flow of Python."""
    def loop(test: Any, body: Any, carried: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        while bool(test(*carried)):
            carried = body(*carried)
        return carried

    with monkeypatch.context() as patched, torch.no_grad():
        patched.setattr(torch, "cond", lambda test, then, other, given: (then if bool(test) else other)(*given))
        patched.setitem(globals(), "while_loop", loop)
        return model(x.double())


@pytest.mark.parametrize("door", ["compile", "step"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("forward", [pytest.param(branches, marks=WRITES_IN_BRANCHES), trips, normalised])
def test_buffers_written_in_bodies_are_those_of_eager_code(
    forward: Any, sign: int, door: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch._dynamo.reset()
    model, x = Stateful(forward), sign * (torch.rand(6, 4, generator=torch.Generator().manual_seed(1)) + 0.1)
    twin = copy.deepcopy(model).double()
    step = torch.compile(model, backend="ipu", fullgraph=True) if door == "compile" else torchipu.InferenceStep(model)
    for _ in range(2):
        with torch.no_grad():
            result = step(x)
        torch.testing.assert_close(result.double(), plain(monkeypatch, twin, x), rtol=1e-5, atol=1e-5)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name].double(), value.double(), rtol=1e-5, atol=1e-5, msg=name)


@WRITES_WITHIN_LOOPS
def test_writes_that_torch_does_not_give_back_are_refused() -> None:
    def rows(m: Stateful, x: torch.Tensor) -> torch.Tensor:
        def body(carried: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return F.batch_norm(carried + row, m.norm.running_mean, m.norm.running_var, training=True), row * 2

        return scan(body, x, torch.stack([x, x]))[0]

    def view(m: Stateful, x: torch.Tensor) -> torch.Tensor:
        tail = m.seen[1:]

        def then(a: torch.Tensor) -> torch.Tensor:
            tail.add_(1)
            return a + m.seen

        return torch.cond(x.sum() > 0, then, lambda a: a * 2, (x,))

    def nested(m: Stateful, x: torch.Tensor) -> torch.Tensor:
        def body(i: torch.Tensor, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return i + 1, torch.cond(a.sum() > 0, m.norm, lambda a: a + 2, (a,))

        return while_loop(lambda i, a: i < 4, body, (torch.zeros((), dtype=torch.int32), x))[1]

    for forward, words in (
        (nested, "cond_true might be modifying the input"),
        (rows, "scan: its body normalises a batch and writes running statistics"),
        (view, "a view of it that was taken outside goes in too"),
    ):
        torch._dynamo.reset()
        model = Stateful(forward)
        before = copy.deepcopy(model.state_dict())
        with torch.no_grad(), pytest.raises((BackendCompilerFailed, UnsupportedOpError), match=words) as caught:
            torch.compile(model, backend="ipu")(torch.ones(6, 4))
        assert forward is nested or "test_written_state.py:" in str(caught.value)
        torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


@pytest.mark.parametrize("door", ["compile", "step"])
def test_statistics_written_in_a_branch_that_is_differentiated_are_refused(door: str) -> None:
    """Torch differentiates no body that writes, and says so."""
    def branch(m: Stateful, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, m.norm, lambda a: a * 2, (x,)).square().sum()

    def train(model: nn.Module) -> None:
        if door == "compile":
            torch.compile(model, backend="ipu")(torch.ones(6, 4)).backward()
        else:
            torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))(torch.ones(6, 4))

    torch._dynamo.reset()
    model = Stateful(branch)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises((UncapturedHigherOrderOpError, CaptureError), match="mutation"):
        train(model)
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)


class Masked(torch.nn.Linear):
    """Sets weights to zero by their data, as masked convolutions and pruned layers do."""

    def forward(self, x):
        self.weight.data *= torch.ones_like(self.weight).tril()
        return super().forward(x).square().sum()


@WRITES_BY_DATA
def test_weights_are_written_by_their_data():
    torch.manual_seed(0)
    ours, judge = Masked(4, 4), Masked(4, 4).double()
    ours.load_state_dict(judge.state_dict())
    inferred = copy.deepcopy(ours)
    run = torch.compile(ours, backend="ipu", fullgraph=True)
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (ours, judge)]
    for _ in range(2):
        x = torch.randn(3, 4)
        for optimiser, loss in zip(optimisers, (run(x), judge(x.double())), strict=True):
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    torch.testing.assert_close(ours.weight.detach().double(), judge.weight.detach(), rtol=1e-4, atol=1e-5)
    torchipu.InferenceStep(inferred)(x)
    assert torch.equal(inferred.weight, inferred.weight.tril())


class Decaying(torch.nn.Linear):
    """Shrinks its own weight, which the optimiser then trains, with each micro-batch."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.9)
        return super().forward(x).square().mean()


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_step_trains_a_weight_that_its_forward_writes(micro_batches):
    torch.manual_seed(0)
    ours, judge = Decaying(4, 4), Decaying(4, 4).double()
    ours.load_state_dict(judge.state_dict())
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9) for model in (ours, judge)]
    step = torchipu.TrainStep(ours, optimisers[0], torchipu.Options(gradient_accumulation=micro_batches))
    for _ in range(3):
        x = torch.randn(3 * micro_batches, 4)
        step(x)
        optimisers[1].zero_grad()
        for part in x.double().chunk(micro_batches):
            (judge(part) / micro_batches).backward()
        optimisers[1].step()
    torch.testing.assert_close(ours.weight.detach().double(), judge.weight.detach(), rtol=1e-4, atol=1e-5)
