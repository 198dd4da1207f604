"""Ops on values with their channels last are computed as these lie: results are eager's, and nothing is transposed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchipu.host.planner import Planner


class Called(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return self.function(*operands)


def of(function: Callable[..., torch.Tensor]) -> Callable[[int], nn.Module]:
    return lambda channels: Called(function)


ALIKE: dict[str, Callable[[int], nn.Module]] = {
    "batch norm": lambda channels: nn.BatchNorm2d(channels),
    "batch norm without weights": lambda channels: nn.BatchNorm2d(channels, affine=False),
    "batch norm without statistics": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "batch norm and relu": lambda channels: nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()),
    "several norms": lambda channels: nn.Sequential(nn.BatchNorm2d(channels), nn.SiLU(), nn.BatchNorm2d(channels)),
    "pad": of(lambda x: functional.pad(x, (1, 0, 2, 3))),
    "flip": of(lambda x: x.flip(2)),
    "cat": of(lambda x: torch.cat([x, x * 2], 1)),
    "clone": of(lambda x: x.clone()),
}
"""Modules whose results lie as what they read."""
SIZES = [(2, 3, 5, 4), (3, 16, 4, 4), (1, 40, 3, 5), (2, 130, 1, 3), (4, 7, 9, 1), (70, 5, 2, 2)]


def _of(module: nn.Module, x: torch.Tensor, gradient: torch.Tensor | None) -> list[torch.Tensor]:
    """Return the result, and where there is a gradient of it those of the input and of the weights."""
    if gradient is None:
        with torch.no_grad():
            return [module(x)]
    x = x.detach().requires_grad_()
    result = module(x)
    return [result, *torch.autograd.grad(result, [x, *module.parameters()], gradient)]


def _planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    collect = Planner._collect_outputs

    def collected(planner: Planner) -> object:
        found = collect(planner)
        names.extend(step.kernel.name for step in planner.steps if step.kernel is not None)
        return found

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    return names


def _made(name: str, channels: int) -> nn.Module:
    torch.manual_seed(0)
    module = ALIKE[name](channels)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.7)
    return module


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", ALIKE)
def test_results_are_those_of_eager_pytorch(
    monkeypatch: pytest.MonkeyPatch, name: str, sizes: tuple[int, ...], trains: bool,
) -> None:
    names = _planned(monkeypatch)
    torch._dynamo.reset()
    ours, exact = _made(name, sizes[1]).train(trains), _made(name, sizes[1]).double().train(trains)
    x = torch.randn(sizes).to(memory_format=torch.channels_last)
    like = exact(x.double())
    gradient = torch.randn(like.shape).to(memory_format=torch.channels_last) if trains else None
    exact = _made(name, sizes[1]).double().train(trains)
    found = _of(torch.compile(ours, backend="ipu", fullgraph=True), x, gradient)
    wanted = _of(exact, x.double(), None if gradient is None else gradient.double())
    is_last = wanted[0].is_contiguous(memory_format=torch.channels_last)
    assert found[0].is_contiguous(memory_format=torch.channels_last if is_last else torch.contiguous_format)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=2e-4)
    for mine, theirs in zip(ours.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(mine.to(theirs.dtype), theirs, rtol=1e-5, atol=1e-5)
    if is_last:
        assert "transpose" not in names


@pytest.mark.parametrize("name", ["batch norm", "batch norm and relu"])
def test_running_statistics_give_the_bits_that_they_give_row_major(name: str) -> None:
    module = _made(name, 37).eval()
    for statistics in module.buffers():
        if statistics.is_floating_point():
            statistics.uniform_(0.1, 2.0)
    compiled = torch.compile(module, backend="ipu")
    x = torch.randn(3, 37, 5, 6)
    with torch.no_grad():
        assert torch.equal(compiled(x), compiled(x.to(memory_format=torch.channels_last)))


def test_a_gradient_in_another_order_is_brought_into_that_of_the_input() -> None:
    module = _made("batch norm", 6)
    compiled = torch.compile(module, backend="ipu")
    x, gradient = torch.randn(3, 6, 4, 5).to(memory_format=torch.channels_last), torch.randn(3, 6, 4, 5)
    wanted = _of(_made("batch norm", 6).double(), x.double(), gradient.double())
    for mine, theirs in zip(_of(compiled, x, gradient), wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("threads", [2, 3])
def test_statistics_do_not_depend_on_threads(threads: int) -> None:
    x = torch.randn(8, 40, 24, 24).to(memory_format=torch.channels_last)
    gradient = torch.randn_like(x)

    def run(host_threads: int) -> list[torch.Tensor]:
        torch._dynamo.reset()
        compiled = torch.compile(_made("batch norm", 40), backend="ipu", options={"host_threads": host_threads})
        return _of(compiled, x, gradient)

    for one, several in zip(run(1), run(threads), strict=True):
        assert torch.equal(one, several)


def test_what_is_not_row_major_is_copied_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    names = _planned(monkeypatch)
    x = torch.randn(2, 16, 5, 7)
    with torch.no_grad():
        found = torch.compile(lambda x: x.permute(0, 2, 3, 1).contiguous(), backend="ipu")(x)
    assert names == ["transpose"]
    assert found.is_contiguous()
    assert torch.equal(found, x.permute(0, 2, 3, 1))
