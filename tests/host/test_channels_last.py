"""Ops on values with their channels last are computed as these lie: results are eager's, and nothing is transposed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.host.planned import planned_kernels


class Called(nn.Module):
    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *operands: torch.Tensor) -> torch.Tensor:
        return self.function(*operands)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def of(function: Callable[..., torch.Tensor]) -> Callable[[int], nn.Module]:
    return lambda channels: Called(function)


ALIKE: dict[str, Callable[[int], nn.Module]] = {
    "batch norm": lambda channels: nn.BatchNorm2d(channels),
    "batch norm without weights": lambda channels: nn.BatchNorm2d(channels, affine=False),
    "batch norm without statistics": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "batch norm and relu": lambda channels: nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU()),
    "several norms": lambda channels: nn.Sequential(nn.BatchNorm2d(channels), nn.SiLU(), nn.BatchNorm2d(channels)),
    "max-pool": lambda channels: nn.MaxPool2d(2, ceil_mode=True),
    "max-pool of windows that overlap": lambda channels: nn.MaxPool2d(3, 2, 1),
    "average": lambda channels: nn.AvgPool2d(2, ceil_mode=True),
    "average of windows that overlap": lambda channels: nn.AvgPool2d(3, (1, 2), 1),
    "average without padding": lambda channels: nn.AvgPool2d(3, 2, 1, count_include_pad=False),
    "average by a divisor": lambda channels: nn.AvgPool2d((1, 2), 1, (0, 1), divisor_override=3),
    "adaptive average": lambda channels: nn.AdaptiveAvgPool2d((2, 3)),
    "adaptive maximum": lambda channels: nn.AdaptiveMaxPool2d((3, 2)),
    "norm and pool": lambda channels: nn.Sequential(nn.BatchNorm2d(channels), nn.ReLU(), nn.AvgPool2d(2, 1, 1)),
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
    names = planned_kernels(monkeypatch)
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


@pytest.mark.parametrize("module", [
    nn.MaxPool3d(2, ceil_mode=True), nn.MaxPool3d((3, 2, 1), 1, (1, 1, 0)), nn.AvgPool3d(2, 1, 1),
    nn.AdaptiveAvgPool3d((2, 1, 3)), nn.AdaptiveMaxPool3d(2), nn.BatchNorm3d(5),
])
@pytest.mark.parametrize("trains", [False, True])
def test_volumes_are_computed_as_they_lie(module: nn.Module, trains: bool) -> None:
    x = torch.randn(2, 5, 4, 3, 5).to(memory_format=torch.channels_last_3d)
    module.train(trains).float()
    gradient = torch.randn(module(x).shape).to(memory_format=torch.channels_last_3d) if trains else None
    found = _of(torch.compile(module, backend="ipu"), x, gradient)
    wanted = _of(module.double(), x.double(), None if gradient is None else gradient.double())
    assert found[0].stride() == wanted[0].stride()
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, dilation=2), nn.AdaptiveMaxPool2d(2)])
def test_places_of_the_largest_are_those_of_eager_pytorch(pool: nn.Module) -> None:
    pool.return_indices = True
    x = torch.randint(0, 4, (2, 21, 7, 6)).float().to(memory_format=torch.channels_last)
    x[0, 3, 1:4, 2] = torch.nan
    x[1, :, 5] = -torch.inf
    with torch.no_grad():
        (largest, places), wanted = torch.compile(pool, backend="ipu")(x), pool(x)
    assert torch.equal(places, wanted[1])
    torch.testing.assert_close(largest, wanted[0], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("pool", [
    nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d((3, 2)), nn.MaxPool3d(2),
], ids=str)
@pytest.mark.parametrize("rounds_at_random", [False, True])
def test_halves_are_pooled_as_they_lie(
    pool: nn.Module, rounds_at_random: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = planned_kernels(monkeypatch)
    is_volume = isinstance(pool, nn.MaxPool3d)
    last = torch.channels_last_3d if is_volume else torch.channels_last
    x = torch.randn(2, 24, *((4,) if is_volume else ()), 9, 7).half().contiguous(memory_format=last)
    x = x.requires_grad_()
    like = pool(x.double())
    gradient = torch.randn(like.shape).half().contiguous(memory_format=last)
    compiled = torch.compile(pool, backend="ipu", fullgraph=True, options={"stochastic_rounding": rounds_at_random})
    found = compiled(x)
    assert found.stride() == like.stride()
    torch.testing.assert_close(found.double(), like, rtol=2e-3, atol=2e-3)
    mine, theirs = (torch.autograd.grad(result, x, gradient.to(result.dtype))[0] for result in (found, like))
    torch.testing.assert_close(mine.double(), theirs.double(), rtol=2e-3, atol=2e-3)
    if not rounds_at_random and not is_volume:
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
    names = planned_kernels(monkeypatch)
    x = torch.randn(2, 16, 5, 7)
    with torch.no_grad():
        found = torch.compile(lambda x: x.permute(0, 2, 3, 1).contiguous(), backend="ipu")(x)
    assert names == ["transpose"]
    assert found.is_contiguous()
    assert torch.equal(found, x.permute(0, 2, 3, 1))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_a_piece_that_is_saved_for_the_backward_lies_in_any_order(order: tuple[int, ...]) -> None:
    """A piece of neighbouring elements is no memory of its own: it is copied out of that of the whole."""

    def piece_by_weight(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        dim = order[0]
        return (torch.cat([x, x * 2], dim).narrow(dim, x.shape[dim], x.shape[dim]) * weight).square()

    sizes, back = (3, 4, 5, 6), [order.index(dim) for dim in range(4)]
    x = torch.randn([sizes[dim] for dim in order]).permute(back)
    weight = torch.randn(4, 1, 1, requires_grad=True)
    found = torch.compile(piece_by_weight, backend="ipu", fullgraph=True)(x, weight).sum()
    wanted = piece_by_weight(x.double(), exact := weight.detach().double().requires_grad_()).sum()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    (gradient,), (like,) = torch.autograd.grad(found, [weight]), torch.autograd.grad(wanted, [exact])
    torch.testing.assert_close(gradient.double(), like, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64], ids=str)
@pytest.mark.parametrize("sizes", [(2, 8, 5, 7), (1, 4, 6, 6), (3, 16, 1, 2)])
@pytest.mark.parametrize(("function", "lies_alike"), [
    (lambda x: functional.pixel_shuffle(x, 2), True),
    (lambda x: functional.channel_shuffle(x, 4), False),  # whose strides torch itself foretells differently by type
    (lambda x: functional.pixel_unshuffle(functional.pixel_shuffle(x, 2), 2), True),
    (lambda x: x.permute(0, 2, 3, 1).reshape(x.shape[0], -1, x.shape[1]).transpose(1, 2).contiguous(), True),
], ids=["pixels", "channels", "there and back", "rows"])
def test_what_is_shown_in_another_shape_is_copied_to_where_it_is_expected(
    function: Callable[[torch.Tensor], torch.Tensor], lies_alike: bool, sizes: tuple[int, ...], dtype: torch.dtype,
) -> None:
    count = int(torch.tensor(sizes).prod())
    x = torch.arange(count).remainder(2000).view(sizes).to(dtype).to(memory_format=torch.channels_last)
    mine, wanted = torch.compile(function, backend="ipu", fullgraph=True)(x), function(x)
    assert torch.equal(mine, wanted)
    if lies_alike:  # a step along a dimension of one element leads nowhere, and torch asks of none how long it is
        steps = zip(mine.shape, mine.stride(), wanted.stride(), strict=True)
        assert all(one == other for size, one, other in steps if size > 1)
