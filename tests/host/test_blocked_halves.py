"""Half values with their channels in blocks: rounded after each op, by the random bits of their places."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

import torchipu
from tests.host.test_layouts import CASES, note_layouts
from tests.releases import NO_EPSILON
from torchipu.ops.blocked import convolution


class RoundedOneByOne(TorchDispatchMode):
    """Computes each op in float64 and rounds what it gives to half, as a machine does that stores each result."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = tree_map(_widened, (args, kwargs or {}))
        return tree_map(_rounded, func(*given[0], **given[1]))


def _widened(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.dtype is torch.half else value


def _rounded(value: Any) -> Any:
    return value.half() if isinstance(value, torch.Tensor) and value.dtype is torch.double else value


def step_of(model: nn.Module, **options: Any) -> torchipu.InferenceStep:
    """Return the model as a step with frozen weights."""
    chosen = {"frozen_weights": True, "allow_out_of_memory": True, "seed": 5, **options}
    return torchipu.InferenceStep(model, torchipu.Options(**chosen))


def rms(value: torch.Tensor) -> float:
    """Return the root of the mean square."""
    return float(value.double().square().mean().sqrt())


# Chains of halves stay row-major, and between them what is normalised over groups does not pay.
IN_BLOCKS = [name for name in CASES if name not in ("grouped", "one-group")]


@pytest.mark.parametrize("name", IN_BLOCKS)
def test_each_op_of_a_run_rounds_its_result(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    make, *sizes = CASES[name]
    model, xs = make().eval().half().requires_grad_(False), [torch.randn(size).half() for size in sizes]
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.3)
        elif name.endswith("running_var"):
            buffer.uniform_(0.5, 2.0)
    made = note_layouts(monkeypatch)
    found = step_of(model)(*xs)
    assert all(layouts.runs for layouts in made), "nothing was computed in blocks"
    with RoundedOneByOne():
        wanted = model(*xs)
    exact = copy.deepcopy(model).double()(*(x.double() for x in xs))
    each = (value if isinstance(value, tuple) else (value,) for value in (found, wanted, exact))
    for ours, rounded, never in zip(*each, strict=True):
        assert ours.dtype is torch.half
        # Float sums and those of float64 fall to different sides of a tie now and then, and that spreads; rounded at
        # the ends alone, the two would be as far apart as on the right side.
        assert rms(ours - rounded) <= 0.7 * rms(rounded - never)


class Whole(nn.Module):
    """Convolutions whose weights and inputs are such that float sums are exact, but no half holds them all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(20, 48, 3, padding=1), nn.Conv2d(48, 48, 3, padding=1, bias=False)
        self.deep, self.norm = nn.Conv2d(48, 48, 3, padding=1, groups=48), nn.BatchNorm2d(48, eps=0.0)
        self.line, self.scale = nn.Linear(48, 40), nn.Parameter(torch.rand(40))
        self.out = nn.Conv2d(40, 24, 3, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randint(-7, 8, parameter.shape) / 8)
            self.norm.register_buffer("running_mean", torch.randint(-3, 4, (48,)) / 4)
            self.norm.register_buffer("running_var", torch.full((48,), 4.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(x))
        y = F.relu(self.norm(self.second(y)) + y)
        y = self.line(self.deep(y).permute(0, 2, 3, 1))
        return self.out(F.max_pool2d(F.relu(y * self.scale).permute(0, 3, 1, 2), 2))


@NO_EPSILON
@pytest.mark.parametrize("size", [(19, 22), (16, 24)], ids=["odd planes", "planes of whole groups of bits"])
@pytest.mark.parametrize("rounds", [False, True], ids=["nearest", "stochastic"])
def test_random_bits_are_those_of_row_major_values(
    rounds: bool, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(3)
    model, x = Whole().eval().half().requires_grad_(False), (torch.randint(-8, 9, (3, 20, *size)) / 8).half()
    made = note_layouts(monkeypatch)
    results = [step_of(model, stochastic_rounding=rounds, host_threads=threads)(x) for threads in (1, 3)]
    assert all(len(layouts.runs) >= 3 for layouts in made), "the model was not computed in blocks"
    plain = step_of(model, stochastic_rounding=rounds, frozen_weights=False)(x)
    assert torch.equal(results[0], plain)
    assert torch.equal(results[0], results[1])


class Widened(nn.Module):
    """A convolution of one pixel, and the depthwise one that reads what it makes."""

    def __init__(self, channels: int, window: int, stride: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.inner, self.first = nn.Conv2d(20, channels, 1), nn.BatchNorm2d(channels)
        self.deep = nn.Conv2d(channels, channels, window, stride, window // 2, groups=channels)
        self.second, self.activation = nn.BatchNorm2d(channels), activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.activation(self.first(self.inner(x)))
        return self.activation(self.second(self.deep(y)))


@pytest.mark.parametrize("rounds", [False, True], ids=["nearest", "stochastic"])
@pytest.mark.parametrize(
    "case", [(72, 3, 1, nn.Hardswish), (37, 5, 2, nn.SiLU), (130, 3, 2, nn.ReLU), (64, 7, 1, nn.Identity)], ids=str,
)
def test_what_a_depthwise_convolution_reads_of_the_cache_is_rounded_as_in_memory(
    case: tuple[int, int, int, type[nn.Module]], rounds: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(6)
    model, x = Widened(*case).eval().half().requires_grad_(False), torch.randn(17, 20, 15, 18).half()
    whole = [step_of(model, stochastic_rounding=rounds, host_threads=threads, host_times=True) for threads in (1, 3)]
    found = [step(x) for step in whole]
    assert "pointwise_depthwise" in {timed.name for timed in whole[0].observed().steps}
    monkeypatch.setattr(convolution, "_goes_deep", lambda *_: False)
    parted = step_of(model, stochastic_rounding=rounds, host_times=True)
    expected = parted(x)
    assert "pointwise_depthwise" not in {timed.name for timed in parted.observed().steps}
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], expected)


def test_rounding_at_random_has_no_bias_and_is_switched_off_between_calls() -> None:
    torch.manual_seed(4)
    model, x = nn.Conv2d(32, 64, 3, padding=1).eval().half().requires_grad_(False), torch.randn(2, 32, 24, 24).half()
    exact = copy.deepcopy(model).double()(x.double())
    nearest = step_of(model)(x)
    step = step_of(model, stochastic_rounding=True)
    drawn = [step(x).double() for _ in range(64)]
    assert not torch.equal(drawn[0], drawn[1])
    assert rms(sum(drawn) / 64 - exact) < 0.2 * rms(drawn[0] - exact)
    step.stochastic_rounding = False
    assert torch.equal(step(x), nearest)


@pytest.mark.parametrize(("overflow", "stand_in"), [("infinity", torch.inf), ("nan", torch.nan), ("saturate", 65504.0)])
@pytest.mark.parametrize("rounds", [False, True], ids=["nearest", "stochastic"])
def test_what_is_too_large_for_a_half(
    overflow: str, stand_in: float, rounds: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Conv2d(64, 64, 3, padding=1, bias=False).eval().half().requires_grad_(False)
    model.weight.fill_(1.0)
    made, x = note_layouts(monkeypatch), torch.full((2, 64, 16, 16), 250.0).half()
    found = step_of(model, half_overflow=overflow, stochastic_rounding=rounds)(x)
    assert all(layouts.runs for layouts in made), "nothing was computed in blocks"
    inner = found[:, :, 1:-1, 1:-1]
    torch.testing.assert_close(inner, torch.full_like(inner, stand_in), rtol=0, atol=0, equal_nan=True)
    assert torch.equal(found[:, :, 0, 0], torch.full_like(found[:, :, 0, 0], 64000.0))


def test_half_partials_are_not_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    model, x = nn.Conv2d(32, 64, 3, padding=1).eval().half().requires_grad_(False), torch.randn(2, 32, 16, 16).half()
    made = note_layouts(monkeypatch)
    found = step_of(model, partials_type="half")(x)
    assert not any(layouts.runs for layouts in made)
    assert torch.equal(found, step_of(model, partials_type="half", frozen_weights=False)(x))


@pytest.mark.parametrize("activation", [F.silu, F.relu])
@pytest.mark.parametrize("shape", [(4, 48, 1, 3), (2, 24, 3, 6)])
def test_a_chain_with_channels_last_reads_what_comes_out_of_blocks(shape: tuple[int, ...], activation: Any) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    channels = shape[1]
    convolution = nn.Conv2d(channels, channels, 3, padding=1, groups=channels).half()
    norm = nn.BatchNorm2d(channels, track_running_stats=False).half()
    x = torch.randn(shape).half().to(memory_format=torch.channels_last)

    def layers(value: torch.Tensor, convolution: nn.Module, norm: nn.Module) -> torch.Tensor:
        return activation(norm(convolution(value * torch.sigmoid(value))))  # type: ignore[no-any-return]

    exact_x, mine_x = x.double().requires_grad_(), x.clone().requires_grad_()
    exact = layers(exact_x, copy.deepcopy(convolution).double(), copy.deepcopy(norm).double())
    exact.square().sum().backward()
    options = {"allow_out_of_memory": True}
    mine = torch.compile(lambda value: layers(value, convolution, norm), backend="ipu", options=options)(mine_x)
    mine.float().square().sum().backward()
    assert mine.is_contiguous(memory_format=torch.channels_last)
    assert mine_x.grad is not None
    assert exact_x.grad is not None
    assert rms((mine - exact).detach()) < 3e-3 * rms(exact.detach())
    assert rms(mine_x.grad - exact_x.grad) < 1e-2 * rms(exact_x.grad)
