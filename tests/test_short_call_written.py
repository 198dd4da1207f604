"""Training graphs that write buffers, called without AOT autograd: buffers, gradients and versions are eager's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from tests.test_short_call import is_short, needs_names, trained
from torchipu.backend import short_call
from torchipu.errors import CaptureError

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)


class Normed(nn.Module):
    """Batch normalisation between products."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(x)))


class Shared(Normed):
    """One normalisation, in two places."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.norm(self.first(x))))


class Tied(Normed):
    """One buffer, in two modules that write it."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.BatchNorm1d(5)
        self.other.running_mean = self.norm.running_mean
        self.other.num_batches_tracked = self.norm.num_batches_tracked

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.other(self.norm(self.first(x))))


class OfOneMemory(Normed):
    """Buffers that lie in one memory beside each other, as those of a flattened state do."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.cat([torch.zeros(7), torch.ones(5)])
        self.norm.running_mean, self.norm.running_var = memory[1:6], memory[7:]


class Overlapping(nn.Module):
    """A buffer that is part of another one: one argument of AOT autograd's graph."""

    whole: torch.Tensor
    part: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.register_buffer("whole", torch.zeros(6))
        self.register_buffer("part", self.whole[2:4])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.weight
        self.whole.add_(scaled.detach().sum(0))
        self.part.mul_(2)
        return scaled


class Strided(Normed):
    """A buffer that is every second element, and one that is a column, of memory that nothing else shows."""

    def __init__(self) -> None:
        super().__init__()
        self.norm.running_mean, self.norm.running_var = torch.zeros(10)[::2], torch.ones(5, 2)[:, 1]


class Ring(nn.Module):
    """A buffer of whole numbers of which a part is written, and one of floats that moves towards what is seen."""

    seen: torch.Tensor
    average: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6))
        self.register_buffer("seen", torch.zeros(4, 2, dtype=torch.int64))
        self.register_buffer("average", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scaled = x * self.weight
        self.seen[1:3, 0] += (x > 0).sum()
        with torch.no_grad():
            self.average.lerp_(scaled.mean(0), 0.25)
        return scaled


def steps(model: nn.Module, call: Call, x: torch.Tensor) -> None:
    for part in (x, x + 1):
        call(part).square().sum().backward()


def evaluated_between(model: nn.Module, call: Call, x: torch.Tensor) -> None:
    call(x).sum().backward()
    model.eval()
    call(x + 1).square().sum().backward()
    model.train()
    call(x + 2).square().sum().backward()


def without_gradients_between(model: nn.Module, call: Call, x: torch.Tensor) -> None:
    call(x).sum().backward()
    with torch.no_grad():
        call(x + 1)
    call(x + 2).square().sum().backward()


def forwards_before_backwards(model: nn.Module, call: Call, x: torch.Tensor) -> None:
    first, second = call(x).square().sum(), call(x + 1).cos().sum()
    first.backward()
    second.backward()


def checkpointed(model: nn.Module, call: Call, x: torch.Tensor) -> None:
    with set_checkpoint_early_stop(False):  # eager's stops somewhere else
        checkpoint(call, x, use_reentrant=False).square().sum().backward()


def buffers_replaced(model: nn.Module, call: Call, x: torch.Tensor) -> None:
    call(x).sum().backward()
    state = {name: value.clone() + 1 for name, value in model.state_dict().items()}
    model.load_state_dict(state, assign=True)
    call(x).square().sum().backward()
    for name, value in model.named_buffers():
        assert value.data_ptr() == state[name].data_ptr()


def in_double(make: Callable[[], nn.Module]) -> nn.Module:
    """Return a model in double precision whose buffers share what they share in float."""
    torch.set_default_dtype(torch.float64)
    try:
        return make()
    finally:
        torch.set_default_dtype(torch.float32)


def outcome(model: nn.Module, call: Call, use: Call) -> list[torch.Tensor]:
    """Return all that a use leaves behind: gradients, buffers, and their versions."""
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(1)).to(next(model.parameters()).dtype)
    trained(call, x)
    trained(call, x)
    use(model, call, x)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    versions = torch.tensor([buffer._version for buffer in model.buffers()])
    return [*gradients, *copy.deepcopy(list(model.state_dict().values())), versions]


@needs_names
@pytest.mark.parametrize(("make", "use"), [
    (Normed, steps), (Normed, evaluated_between), (Shared, without_gradients_between),
    (Shared, forwards_before_backwards), (Tied, steps), (Tied, buffers_replaced), (OfOneMemory, steps),
    (Overlapping, steps), (Strided, steps), (Strided, checkpointed), (Ring, forwards_before_backwards),
    (Ring, buffers_replaced),
])
def test_what_a_graph_writes_is_what_aot_autograd_writes(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[], nn.Module], use: Call,
) -> None:
    model, exact = make(), in_double(make)
    exact.load_state_dict(model.state_dict())
    torch.manual_seed(0)
    long = make()
    compiled = torch.compile(model, backend="ipu")
    found = outcome(model, compiled, use)
    model.train()
    assert is_short(compiled(torch.ones(4, 6))) == (make is not Overlapping)
    torch._dynamo.reset()
    with monkeypatch.context() as patched:
        patched.setattr(short_call, "_is_plainly_written", lambda info: False)
        expected = outcome(long, torch.compile(long, backend="ipu"), use)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
    for one, other in zip(found[:-1], outcome(exact, exact, use), strict=False):
        torch.testing.assert_close(one, other, check_dtype=False, rtol=1e-4, atol=2e-4)  # gradients that cancel


@needs_names
def test_a_buffer_that_is_saved_and_written_since_is_not_used() -> None:
    class Saved(nn.Module):
        scale: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("scale", torch.ones(6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scaled = x * self.scale
            self.scale.add_(1)
            return scaled

    model, x = Saved(), torch.randn(4, 6, requires_grad=True)
    compiled = torch.compile(model, backend="ipu")
    for _ in range(3):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            trained(compiled, x)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        trained(model, x)


@needs_names
def test_an_input_is_written_as_a_buffer_is_and_a_weight_by_aot_autograd() -> None:
    def counted(x: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            seen.add_(x)
        return x.sin()

    for wants_gradient in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(counted, backend="ipu")
        x = torch.randn(3, 4, requires_grad=True)
        seen = torch.zeros(4, 3).t().requires_grad_(wants_gradient)
        for _ in range(2):
            trained(compiled, x, seen)
        result = compiled(x, seen)
        assert is_short(result) != wants_gradient
        torch.testing.assert_close(seen.detach(), (x + x + x).detach())
        found, = torch.autograd.grad(result.sum(), x)
        torch.testing.assert_close(found, x.cos())


@needs_names
def test_gradients_of_gradients_of_a_graph_that_writes_are_refused_and_others_come_in_any_layout() -> None:
    model, x = Normed(), torch.randn(4, 6, requires_grad=True)
    compiled = torch.compile(model, backend="ipu")
    trained(compiled, x)
    result = compiled(x)
    assert is_short(result)
    weight = torch.randn(3, 4).t()
    found, = torch.autograd.grad(result, x, weight, retain_graph=True)
    expected, = torch.autograd.grad(model(x), x, weight)
    torch.testing.assert_close(found, expected)
    slope, = torch.autograd.grad(result.sum(), x, create_graph=True)
    with pytest.raises(CaptureError, match="a gradient of its gradient is asked for"):
        slope.sum().backward()


@needs_names
def test_compiled_autograd_takes_a_graph_that_writes() -> None:
    model = Normed()
    compiled = torch.compile(model, backend="ipu")
    x = torch.randn(4, 6)
    trained(compiled, x)
    model.zero_grad()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="ipu")):
        result = compiled(x)
        assert is_short(result)
        result.sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for one, other in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(one, other.grad)
