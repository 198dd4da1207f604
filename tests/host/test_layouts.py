"""Values that lie with their channels in blocks from one convolution to the next, against float64 torch."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchipu
from tests.host.planned import planned_kernels
from torchipu.host import planner
from torchipu.host.emit import winograd
from torchipu.host.emit.conv_shape import Shape


class Gated(nn.Module):
    """A depthwise convolution whose planes are weighted by what a small network makes of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.deep = nn.Conv2d(channels, channels, 5, padding=2, groups=channels, bias=False)
        self.norm, self.squeeze = nn.BatchNorm2d(channels), nn.Conv2d(channels, 8, 1)
        self.widen, self.out = nn.Conv2d(8, channels, 1), nn.Conv2d(channels, 40, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.hardswish(self.norm(self.deep(x)))
        gate = F.hardsigmoid(self.widen(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.out(x * gate)


class Residual(nn.Module):
    """Two convolutions, normalised, whose sum with the input is taken by a ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + x)


class Dense(nn.Module):
    """Concatenated channels, normalised before the convolution, and a chain that no kernel has at its end."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(16, 64, 3, padding=1), nn.Conv2d(80, 64, 3, padding=1)
        self.norm = nn.BatchNorm2d(80)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.first(x)) * 1.5
        return torch.exp(-self.second(F.relu(self.norm(torch.cat([x, y], 1)))).abs())


class Pooled(nn.Module):
    """Pooling of each kind between convolutions, and a mean that leaves `[N, C]`, of channels that fill no block."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 70, 7, 2, 3), nn.Conv2d(70, 90, 3, padding=1)
        self.third, self.last = nn.Conv2d(90, 45, 3, padding=1), nn.Linear(45, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(F.relu(self.first(x)), 3, 2, 1, ceil_mode=True)
        y = F.avg_pool2d(F.relu6(self.second(y)), 3, 2, 1, count_include_pad=False)
        return self.last(F.silu(self.third(y)).mean((2, 3)))


class ReadTwice(nn.Module):
    """A value in blocks that convolutions read, and others too: row-major ops, and the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(24, 64, 3, padding=1), nn.Conv2d(64, 64, 3, padding=1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = F.gelu(self.first(x))
        return self.second(y), y, y.transpose(2, 3).cumsum(1), F.softmax(y, 1)


class Perceptron(nn.Module):
    """A depthwise convolution, then linear layers on channels last, with a factor for each channel before or after."""

    def __init__(self, channels: int, *, is_scaled_last: bool, bias: bool = True) -> None:
        super().__init__()
        self.deep = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, elementwise_affine=bias)
        self.widen, self.narrow = nn.Linear(channels, 90, bias=bias), nn.Linear(90, channels, bias=bias)
        self.scale, self.is_scaled_last = nn.Parameter(torch.rand(channels) + 0.5), is_scaled_last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.widen(y)))
        if self.is_scaled_last:
            return x + (y * self.scale).permute(0, 3, 1, 2)
        return y.permute(0, 3, 1, 2) * self.scale[:, None, None] + x


class Stages(nn.Module):
    """Two stages of such blocks, between which pixels are normalised over their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, 40, 4, 4), nn.Conv2d(40, 56, 2, 2)
        self.norms = nn.ModuleList([nn.LayerNorm(40), nn.LayerNorm(56)])
        self.first, self.second = Perceptron(40, is_scaled_last=True), Perceptron(56, is_scaled_last=False, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.stem(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = self.second(self.down(self.first(y)))
        return self.norms[1](y.permute(0, 2, 3, 1))


class Inverted(nn.Module):
    """An inverted residual: channels are widened, convolved each by itself, and narrowed."""

    def __init__(self, channels: int, wide: int, size: int, stride: int) -> None:
        super().__init__()
        self.widen = nn.Conv2d(channels, wide, 1, bias=False)
        self.deep = nn.Conv2d(wide, wide, size, stride, size // 2, groups=wide, bias=False)
        self.narrow = nn.Conv2d(wide, channels, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(wide) for _ in range(2))
        self.is_residual = stride == 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norms[0](self.widen(x)))
        y = self.narrow(F.relu6(self.norms[1](self.deep(y))))
        return x + y if self.is_residual else y


class RowsReadTwice(nn.Module):
    """Channels last that other ops read, that a convolution takes for other images, and that the caller adds to."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(96, 80, 3, padding=1), nn.Conv2d(12, 40, 3, padding=1)
        self.norm, self.line = nn.LayerNorm(80), nn.Linear(80, 24)

    def forward(self, x: torch.Tensor, given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = self.norm(F.relu(self.first(x)).permute(0, 2, 3, 1))
        z = self.line(y) + given
        return self.second(y), y.flatten(0, 2), torch.tanh(z).permute(0, 3, 1, 2), y.view(2, 6, 24, 80).softmax(2)


class Split(nn.Module):
    """Channels that fill no blocks, each part convolved by itself, then put behind each other and taken apart again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.width = channels
        self.widen = nn.Conv2d(20, 4 * channels, 1)
        self.parts = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for width in (channels, channels - 2))
        self.last = nn.Conv2d(5 * channels - 2, 24, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        width, y = self.width, F.relu(self.widen(x))
        first, second = self.parts[0](y[:, width : 2 * width]), self.parts[1](y[:, 3 : width + 1])
        z = torch.cat([y[:, :width], first.relu(), second, y[:, -2 * width :]], 1)
        return self.last(z), y[:, 1:4]  # of which few are taken


class Grouped(nn.Module):
    """Pools of normalised groups, scaled by channels of two shapes and divided by those of each image."""

    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(8, channels, 3, padding=1), nn.Conv2d(channels, 24, 1)
        self.norm, self.other = nn.GroupNorm(groups, channels), nn.GroupNorm(1, channels, affine=False)
        self.scale = nn.Parameter(torch.rand(channels, 1, 1) + 0.5)
        self.shift = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(self.norm(self.first(x)))
        y = y + self.scale * (F.avg_pool2d(y, 3, 1, 1, count_include_pad=False) - y)
        y = self.other(y) / (1 + y.mean((2, 3), keepdim=True).square()) + self.shift
        return self.last(y)


CASES: dict[str, tuple[Callable[[], nn.Module], *tuple[tuple[int, ...], ...]]] = {
    "gated": (lambda: nn.Sequential(Gated(72), Gated(40)), (2, 72, 14, 14)),
    "residual": (lambda: nn.Sequential(Residual(48), Residual(48)), (3, 48, 9, 7)),
    "dense": (Dense, (2, 16, 12, 12)),
    "split": (lambda: Split(58), (3, 20, 14, 13)),
    "split-in-blocks": (lambda: Split(64), (2, 20, 14, 13)),
    "grouped": (lambda: Grouped(60, 12), (2, 8, 26, 25)),
    "one-group": (lambda: Grouped(48, 1), (3, 8, 19, 20)),
    "pooled": (Pooled, (2, 3, 61, 61)),
    "read-twice": (ReadTwice, (1, 24, 10, 13)),
    "inverted": (
        lambda: nn.Sequential(Inverted(24, 96, 3, 1), Inverted(24, 130, 5, 2), Inverted(24, 72, 7, 1)), (8, 24, 21, 18),
    ),
    "stages": (Stages, (3, 3, 60, 52)),
    "rows-read-twice": (RowsReadTwice, (2, 96, 12, 12), (2, 12, 12, 24)),
}


def note_layouts(monkeypatch: pytest.MonkeyPatch) -> list[planner.Layouts]:
    """Return a list that receives the layouts of every plan that is made from now on."""
    made = []

    def noted(*args: object) -> planner.Layouts:
        made.append(layouts(*args))
        return made[-1]

    layouts = planner.Layouts
    monkeypatch.setattr(planner, "Layouts", noted)
    return made


@pytest.mark.parametrize("name", CASES)
def test_models_in_blocks_equal_float64_for_any_number_of_threads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    make, *sizes = CASES[name]
    model, xs = make().eval(), [torch.randn(size) for size in sizes]
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.running_mean.normal_(0, 0.3)
            norm.running_var.uniform_(0.5, 2.0)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(*(x.double() for x in xs))
        made, found = note_layouts(monkeypatch), []
        for threads in (1, 3):
            torch._dynamo.reset()
            options = {"frozen_weights": True, "allow_out_of_memory": True, "host_threads": threads}
            compiled = torch.compile(model, backend="ipu", options=options)
            compiled(*xs)
            found.append(compiled(*xs))
    assert all(layouts.runs for layouts in made), "nothing was computed in blocks"
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    for ours, wanted in zip(*(v if isinstance(v, tuple) else (v,) for v in (found[0], exact)), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-5)


def test_channels_that_fill_no_blocks_are_joined_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, x = planned_kernels(monkeypatch), torch.randn(3, 20, 28, 26)
    model = Split(58).eval().requires_grad_(False)
    found = torchipu.InferenceStep(model, torchipu.Options(frozen_weights=True))(x)
    for ours, wanted in zip(found, model.double()(x.double()), strict=True):
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-5)
    joined = [place for place, name in enumerate(kernels) if name == "move_blocked"]
    assert len(joined) == 8, kernels
    assert "to_blocked" not in kernels[joined[0] : joined[-1]], kernels


def test_groups_and_what_is_done_to_channels_stay_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, x = planned_kernels(monkeypatch), torch.randn(2, 8, 26, 25)
    torchipu.InferenceStep(Grouped(60, 12).eval().requires_grad_(False), torchipu.Options(frozen_weights=True))(x)
    assert kernels.count("group_moments_blocked") == 2, kernels
    assert kernels.count("to_blocked") == 2, kernels  # the numbers of channels, once for all calls
    assert kernels.count("from_blocked") == 1, kernels


class Weighed(nn.Module):
    """Planes times numbers that are made of their means, which come first in the product."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(16, channels, 3, padding=1), nn.Conv2d(channels, 16, 3, padding=1)
        self.line = nn.Linear(channels, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.first(x))
        return self.last(torch.sigmoid(self.line(y.mean((2, 3))))[:, :, None, None] * y)


@pytest.mark.whole
@pytest.mark.parametrize("channels", [60, 64])
def test_means_of_planes_leave_the_blocks_and_come_back_as_gates(
    channels: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels, x = planned_kernels(monkeypatch), torch.randn(3, 16, 14, 13)
    model = Weighed(channels).eval().requires_grad_(False)
    found = torchipu.InferenceStep(model, torchipu.Options(frozen_weights=True))(x)
    torch.testing.assert_close(found.double(), model.double()(x.double()), rtol=1e-4, atol=1e-5)
    at = kernels.index("mean_blocked")
    assert (kernels[at + 1] == "from_blocked") == (channels == 60), kernels
    assert "end_blocked" in kernels[at:], kernels


class Shortcut(nn.Module):
    """A residual block whose other branch is a convolution too: both would take the sum, and one of them has it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(64, 96, 3, 2, 1, bias=False), nn.Conv2d(96, 96, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(64, 96, 1, 2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(96) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[1](self.second(F.relu(self.norms[0](self.first(x)))))
        return F.relu(y + self.norms[2](self.shortcut(x)))


def test_both_branches_of_a_residual_block_are_computed_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, made = Shortcut().eval(), torch.randn(2, 64, 21, 21), note_layouts(monkeypatch)
    options = {"frozen_weights": True, "allow_out_of_memory": True}
    with torch.no_grad():
        found = torch.compile(model, backend="ipu", options=options)(x)
        torch.testing.assert_close(found.double(), copy.deepcopy(model).double()(x.double()), rtol=1e-4, atol=1e-5)
    (layouts,) = made
    targets = [[op.target.split(".")[1] for op in run.ops] for run in layouts.runs.values()]
    assert sorted(map(len, targets)) == [2, 3, 4]
    assert all(names[0] == "convolution" for names in targets)


@pytest.mark.parametrize(("images", "together"), [(8, 2), (1, 1)])
def test_depthwise_convolutions_go_on_behind_those_of_a_pixel(
    images: int, together: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not where bands of a single image would need many rows again."""
    model, x, made = Inverted(24, 64, 5, 1).eval(), torch.randn(images, 24, 14, 14), note_layouts(monkeypatch)
    with torch.no_grad():
        torch.compile(model, backend="ipu", options={"frozen_weights": True, "allow_out_of_memory": True})(x)
    convolutions = [
        sum(op.target == "aten.convolution.default" for op in run.ops) for run in made[0].runs.values()
    ]
    assert max(convolutions) == together
    assert sum(convolutions) == 3


def test_linear_layers_on_channels_last_move_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, made = Stages().eval(), torch.randn(3, 3, 60, 52), note_layouts(monkeypatch)
    options = torchipu.Options(frozen_weights=True, allow_out_of_memory=True, host_times=True)
    step = torchipu.InferenceStep(model, options)
    step(x)
    targets = [tuple(op.target.split(".")[1] for op in run.ops) for run in made[0].runs.values()]
    assert {("addmm", "view", "gelu", "view"), ("mm", "view", "gelu", "view")} & set(targets)
    assert any({"mul", "permute", "add"} <= set(names) and names[0] in ("mm", "addmm") for names in targets)
    moved = [timed.name for timed in step.observed().steps if timed.name in ("transpose", "copy", "matmul", "chain")]
    assert set(moved) <= {"copy"}
    assert len(moved) <= 2, "the result alone leaves the layout: whole blocks, and the rest"


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("strict", [False, True])
def test_strict_numerics_keep_convolutions_from_transforms(
    strict: bool, frozen: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    emitted: list[Shape] = []
    emit = winograd.emit
    monkeypatch.setattr(winograd, "emit", lambda plan, s, *rest: (emitted.append(s), emit(plan, s, *rest)))
    model, x = nn.Conv2d(64, 96, 3, padding=1).eval(), torch.randn(2, 64, 28, 28)
    options = {"frozen_weights": frozen, "allow_out_of_memory": True, "strict_numerics": strict}
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(x.double())
        found = torch.compile(model, backend="ipu", options=options)(x)
    assert len(emitted) == (0 if strict else 1)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=2e-6 * float(exact.abs().max()))


@pytest.mark.parametrize("iterations", [1, 2])
def test_a_step_of_inference_prepares_weights_anew_when_they_change(
    iterations: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, x = nn.Sequential(Residual(48), Residual(48)).eval(), torch.randn(2 * iterations, 48, 9, 7)
    made = note_layouts(monkeypatch)
    options = torchipu.Options(frozen_weights=True, allow_out_of_memory=True, device_iterations=iterations)
    step = torchipu.InferenceStep(model, options)
    for _ in range(3):
        first, again = step(x), step(x)
        exact = copy.deepcopy(model).double()(x.double())
        torch.testing.assert_close(first.double(), exact, rtol=1e-4, atol=1e-5)
        assert torch.equal(first, again)
        with torch.no_grad():
            model[1].second.weight.mul_(0.5)
    assert all(layouts.runs for layouts in made), "nothing was computed in blocks"


@pytest.mark.parametrize("frozen", [False, True])
def test_what_would_not_pay_stays_row_major(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Conv2d(64, 64, 1).eval() if frozen else nn.Conv2d(64, 64, 3, padding=1).eval()
    made, x = note_layouts(monkeypatch), torch.randn(2, 64, 20, 20) if frozen else torch.randn(1, 64, 3, 3)
    options = {"frozen_weights": frozen, "allow_out_of_memory": True}
    with torch.no_grad():
        found = torch.compile(model, backend="ipu", options=options)(x)
        torch.testing.assert_close(found, model(x), rtol=1e-4, atol=1e-5)
    assert not any(layouts.runs for layouts in made)
