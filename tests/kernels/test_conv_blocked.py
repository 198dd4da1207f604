"""Convolutions over channels in blocks, and the layout itself, against float64 torch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.elem_planner import MiniPlanner
from torchipu._kernels.table.conv_blocked import Activation, BlockedWindow
from torchipu._kernels.table.conv_product import ConvEnding
from torchipu._kernels.table.depthwise_blocked import DEPTHWISE_BLOCKED
from torchipu._kernels.table.pool_blocked import Pooling
from torchipu.host.emit import (
    blocked_layout,
    conv_blocked,
    depthwise_blocked,
    layer_norm_blocked,
    pointwise_depthwise,
    pool_blocked,
)
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor

# images, groups, channels, results, size, window, stride, padding, dilation
CASES = [
    (2, 1, 5, 33, (9, 11), (3, 3), 1, 1, 1),  # odd channels
    (3, 1, 40, 64, (16, 16), (1, 1), 1, 0, 1),  # read in place, tiles span images
    (9, 1, 16, 20, (24, 20), (1, 1), 1, 0, 1),  # few channels: items of more pixels than an image has
    (9, 1, 16, 20, (24, 21), (1, 1), 2, 0, 1),  # the same with pixels left out
    (5, 1, 32, 45, (7, 7), (3, 3), 2, 1, 1),
    (1, 1, 130, 97, (7, 7), (3, 3), 1, 1, 1),  # several chunks of channels
    (9, 1, 16, 16, (7, 7), (3, 3), 1, 1, 1),  # several images of an item, the last of them fewer
    (1, 1, 33, 7, (13, 5), (1, 1), 2, 0, 1),
    (2, 1, 3, 24, (31, 29), (7, 7), 2, 3, 1),
    (2, 1, 17, 19, (12, 14), (3, 5), 1, 2, 2),  # dilation
    (1, 1, 300, 1000, (1, 1), (1, 1), 1, 0, 1),
    (2, 1, 24, 40, (10, 12), (3, 3), 1, 0, 1),  # no padding: read in place
    (2, 1, 8, 8, (4, 300), (3, 3), 1, 1, 1),  # long rows
    (2, 1, 5, 20, (1, 1001), (1, 7), (1, 2), (0, 3), 1),  # rows in several parts
    (1, 1, 20, 16, (7, 901), (2, 3), 1, (1, 40), 5),  # parts wholly in the padding, and dilation
    (2, 2, 32, 48, (9, 9), (3, 3), 1, 1, 1),  # groups that fill blocks
    (1, 1, 6, 10, (3, 3), (3, 3), 3, 4, 1),  # windows wholly in the padding
    (3, 1, 16, 20, (26, 1), (1, 1), (1, 2), 0, 1),  # images of one column, whose neighbours are no columns
    (3, 1, 16, 20, (1, 26), (1, 1), (2, 1), 0, 1),
]


def layers_of(case: tuple) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Shape]:
    """Return an input, weights, the exact result, and the sizes."""
    n, g, c, m, (h, w), (kh, kw), stride, padding, dilation = case
    torch.manual_seed(5)
    x, weight = torch.randn(n, c, h, w), torch.randn(m, c // g, kh, kw)
    y = F.conv2d(x.double(), weight.double(), None, stride, padding, dilation, g)
    strides, paddings = (pair if isinstance(pair, tuple) else (pair, pair) for pair in (stride, padding))
    sizes = (n, g, c // g, m // g, h, w, *y.shape[2:], kh, kw, *strides, *paddings, dilation, dilation)
    return x, weight, y, Shape(*sizes)


def blocked(plan: MiniPlanner, x: torch.Tensor) -> HostTensor:
    """Return a value in the blocked layout; NaN stands behind the last channel."""
    held = plan.scratch(blocked_layout.blocked_shape(x.shape))
    plan.fetch(held).fill_(float("nan"))
    blocked_layout.emit_to_blocked(plan, held, plan.hold(x))
    return held


def plain(plan: MiniPlanner, held: HostTensor, shape: torch.Size) -> torch.Tensor:
    """Return a blocked value as torch has it."""
    y = plan.scratch(shape)
    blocked_layout.emit_from_blocked(plan, y, held)
    return plan.fetch(y).clone()


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 16, 8, 8), (3, 37, 1, 1), (2, 20, 33, 31), (1, 8, 40, 40)])
def test_the_layout_holds_every_channel_in_its_lane_and_comes_back(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        held = blocked(plan, x)
        lanes = vector_lanes()
        expected = F.pad(x, (0, 0, 0, 0, 0, -shape[1] % lanes), value=float("nan"))
        expected = expected.unflatten(1, (-1, lanes)).permute(0, 1, 3, 4, 2)
        torch.testing.assert_close(plan.fetch(held), expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(plain(plan, held, x.shape), x)


@pytest.mark.parametrize("is_plain", [False, True], ids=["blocked", "plain"])
@pytest.mark.parametrize("case", CASES)
def test_convolutions_equal_float64(case: tuple, is_plain: bool) -> None:
    x, weight, exact, shape = layers_of(case)
    if not conv_blocked.serves(shape):
        pytest.skip("groups that do not fill the vectors of this machine")
    found = []
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
        source = plan.hold(x) if is_plain else blocked(plan, x)
        conv_blocked.emit(plan, shape, out, source, plan.hold(weight), conv_blocked.Ending(), is_plain=is_plain)
        found.append(plain(plan, out, exact.shape))
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=2e-6 * float(exact.abs().max()))
    assert torch.equal(found[0], found[1])


def test_long_sums_round_no_worse_than_those_of_eager() -> None:
    x, weight, exact, shape = layers_of((1, 1, 512, 64, (7, 7), (3, 3), 1, 1, 1))
    plan = MiniPlanner()
    out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
    conv_blocked.emit(plan, shape, out, blocked(plan, x), plan.hold(weight), conv_blocked.Ending())
    error = (plain(plan, out, exact.shape).double() - exact).abs().max()
    eager = (F.conv2d(x, weight, None, 1, 1).double() - exact).abs().max()
    assert error <= 2 * eager


ACTIVATIONS = {
    Activation.NONE: lambda v: v, Activation.RELU: F.relu, Activation.RELU6: F.relu6,
    Activation.HARDSWISH: F.hardswish, Activation.HARDSIGMOID: F.hardsigmoid, Activation.SILU: F.silu,
    Activation.SIGMOID: F.sigmoid, Activation.GELU: F.gelu,
}


@pytest.mark.parametrize("parts", ["bias", "norm", "addend", "factor", "all"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("case", [CASES[0], CASES[1], CASES[2], CASES[5]])
def test_endings_equal_float64(case: tuple, activation: Activation, parts: str) -> None:
    x, weight, exact, shape = layers_of(case)
    bias, mean, variance, scale, shift, factor = (torch.randn(exact.shape[1]) for _ in range(6))
    variance, other = variance.abs() + 0.5, torch.randn(exact.shape)
    plan, flags, norm = MiniPlanner(2), 0, []
    if parts in ("bias", "all"):
        exact = exact + bias.double()[:, None, None]
    if parts in ("norm", "all"):
        exact = F.batch_norm(exact, mean.double(), variance.double(), scale.double(), shift.double(), eps=1e-3)
        flags = ConvEnding.HAS_NORM | ConvEnding.HAS_NORM_WEIGHT | ConvEnding.HAS_NORM_BIAS
        norm = [plan.hold(t) for t in (mean, variance, scale, shift)]
    if parts in ("factor", "all"):
        exact = exact * factor.double()[:, None, None]
    if parts in ("addend", "all"):
        exact = exact + other.double()
    exact = ACTIVATIONS[activation](exact)
    out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
    ending = conv_blocked.Ending(
        bias=plan.hold(bias) if parts in ("bias", "all") else None, norm=norm,
        addend=blocked(plan, other) if parts in ("addend", "all") else None, flags=flags, epsilon=1e-3,
        factor=plan.hold(factor) if parts in ("factor", "all") else None, activation=activation,
    )
    conv_blocked.emit(plan, shape, out, blocked(plan, x), plan.hold(weight), ending)
    torch.testing.assert_close(plain(plan, out, exact.shape).double(), exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_nan_stays_one_through_every_activation(activation: Activation) -> None:
    x, weight, exact, shape = layers_of((1, 1, 8, 16, (5, 5), (1, 1), 1, 0, 1))
    x[0, 2, 1, 1] = float("nan")
    plan = MiniPlanner()
    out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
    ending = conv_blocked.Ending(activation=activation)
    conv_blocked.emit(plan, shape, out, blocked(plan, x), plan.hold(weight), ending)
    assert torch.equal(plain(plan, out, exact.shape).isnan(), x.isnan().any(1, keepdim=True).expand(exact.shape))


# images, channels, size, window, stride, padding, dilation
DEPTHWISE = [
    (2, 16, (9, 11), (3, 3), 1, 1, 1),
    (1, 21, (7, 7), (5, 5), 1, 2, 1),  # odd channels
    (3, 9, (15, 14), (3, 3), 2, 1, 1),
    (1, 8, (40, 40), (7, 7), 1, 3, 1),  # bands of rows
    (2, 5, (12, 10), (3, 5), 3, 2, 2),
    (1, 3, (4, 4), (4, 4), 1, 0, 1),
    (2, 9, (31, 33), (3, 3), 2, 1, 1),  # from here on read in place but for the sides
    (1, 5, (40, 50), (3, 5), 3, 2, 2),
    (1, 11, (3, 29), (5, 3), 1, 3, 1),  # rows wholly in the padding
    (1, 8, (20, 61), (2, 4), 2, 1, 2),
    (2, 37, (7, 7), (3, 3), 1, 1, 1),  # from here on pixels are loaded once for a row of taps
    (1, 20, (14, 9), (5, 5), 2, 2, 1),
    (1, 9, (6, 33), (7, 7), 2, 3, 1),
    (1, 9, (5, 3), (7, 7), 1, 3, 1),  # windows wider than the image
    (2, 17, (9, 12), (7, 3), 2, 0, 1),
]


@pytest.mark.parametrize("is_plain", [False, True], ids=["blocked", "plain"])
@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise_convolutions_equal_float64(case: tuple, is_plain: bool) -> None:
    n, c, size, window, stride, padding, dilation = case
    x, weight, exact, shape = layers_of((n, c, c, c, size, window, stride, padding, dilation))
    bias, other = torch.randn(c), torch.randn(exact.shape)
    exact = F.hardswish(exact + bias.double()[:, None, None] + other.double())
    found = []
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
        ending = conv_blocked.Ending(
            bias=plan.hold(bias), addend=blocked(plan, other), activation=Activation.HARDSWISH,
        )
        source = plan.hold(x) if is_plain else blocked(plan, x)
        depthwise_blocked.emit(plan, shape, out, source, plan.hold(weight), ending, is_plain=is_plain)
        found.append(plain(plan, out, exact.shape))
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-5)
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize(("size", "window", "dilation", "lays_out"), [
    ((14, 14), (3, 3), 1, False),  # pixels are loaded once for a row of taps, zeros beside the image too
    ((3, 3), (3, 3), 1, False),
    ((14, 14), (3, 3), 2, True),  # four columns of fourteen are more than one in six
    ((14, 60), (3, 3), 2, False),
    ((14, 9), (4, 4), 1, True),
    ((14, 60), (4, 4), 1, False),
])
def test_rows_are_laid_out_where_many_windows_reach_over_a_side(
    size: tuple[int, int], window: tuple[int, int], dilation: int, lays_out: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It saves looking for the side at each of them, takes scratch, and gives the same bits."""
    x, weight, exact, shape = layers_of((1, 20, 20, 20, size, window, 1, 1, dilation))

    class Listing(MiniPlanner):
        def step(self, kernel: Any, *args: Any, **kwargs: Any) -> None:
            if kernel is DEPTHWISE_BLOCKED:
                laid_out.append((bool(kwargs["ints"].lays_out), kwargs["scratch_bytes"] > 0))
            super().step(kernel, *args, **kwargs)

    found, laid_out = [], list[tuple[bool, bool]]()
    for sides in (depthwise_blocked.SIDES, 0, 10**6):
        monkeypatch.setattr(depthwise_blocked, "SIDES", sides)
        plan = Listing()
        out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
        depthwise_blocked.emit(plan, shape, out, blocked(plan, x), plan.hold(weight), conv_blocked.Ending())
        found.append(plain(plan, out, exact.shape))
    assert laid_out[0] == (lays_out, lays_out)
    slides = dilation == 1 and window == (3, 3)
    assert laid_out[1:] == [(False, False), (not slides, not slides)]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=1e-5)


# size, window, stride, dilation; windows whose rows are laid out
STRIPS = [((14, 9), (4, 4), 1, 1), ((30, 20), (3, 5), (1, 2), 2), ((64, 70), (4, 4), 2, 1), ((9, 9), (3, 3), 1, 2)]


@pytest.mark.parametrize(("size", "window", "stride", "dilation"), STRIPS)
def test_memory_is_taken_for_the_rows_that_the_results_of_an_item_reach(
    size: tuple[int, int], window: tuple[int, int], stride: Any, dilation: int,
) -> None:
    """For none besides: what several rows of results need has to stay in a first-level cache."""
    x, weight, exact, shape = layers_of((2, 40, 40, 40, size, window, stride, 1, dilation))
    taken = list[tuple[int, int]]()

    class Noting(MiniPlanner):
        def step(self, kernel: Any, *args: Any, **kwargs: Any) -> None:
            if kernel is DEPTHWISE_BLOCKED:
                taken.append((kwargs["ints"].rows, kwargs["scratch_bytes"]))
            super().step(kernel, *args, **kwargs)

    plan = Noting()
    out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
    depthwise_blocked.emit(
        plan, shape, out, plan.hold(x), plan.hold(weight), conv_blocked.Ending(), is_plain=True,
    )
    ((rows, num_bytes),) = taken

    def reached(results: int, stride: int, taps: int) -> int:
        places = {result * stride + tap * dilation for result in range(results) for tap in range(taps)}
        return max(places) - min(places) + 1

    down, across = stride if isinstance(stride, tuple) else (stride, stride)
    pixels = reached(rows, down, window[0]) * reached(exact.shape[-1], across, window[1])
    assert num_bytes == 4 * vector_lanes() * pixels
    assert rows == 1 or num_bytes <= 20 * 1024, "of 32 KiB: the results are there too"


# images, channels read, channels, size, window, stride, padding
WIDENED = [
    (2, 5, 21, (9, 11), (3, 3), 1, 1),  # odd channels
    (1, 24, 72, (56, 56), (5, 5), 2, 2),  # bands of rows, strips, several parts of blocks
    (3, 300, 70, (14, 14), (3, 3), 1, 1),  # chunks of the channels that are read
    (9, 16, 33, (7, 7), (7, 7), 1, 3),
    (1, 16, 64, (112, 112), (3, 3), 2, 1),  # strips that share a row
    (1, 8, 40, (37, 130), (3, 5), 2, 0),  # no padding
    (1, 8, 16, (120, 40), (2, 3), 2, 1),  # strips that share none
    (1, 8, 8, (5, 9), (3, 3), 1, 4),  # windows wholly in the padding
]


@pytest.mark.parametrize("activation", [Activation.NONE, Activation.HARDSWISH, Activation.SILU])
@pytest.mark.parametrize("case", WIDENED)
def test_depthwise_convolutions_behind_those_of_a_pixel_equal_float64(case: tuple, activation: Activation) -> None:
    n, channels, c, size, window, stride, padding = case
    x, inner, widened, inner_shape = layers_of((n, 1, channels, c, size, (1, 1), 1, 0, 1))
    _, weight, _, shape = layers_of((n, c, c, c, size, window, stride, padding, 1))
    biases = torch.randn(2, c)
    widened = ACTIVATIONS[activation](widened + biases[0].double()[:, None, None])
    exact = F.conv2d(widened, weight.double(), biases[1].double(), stride, padding, 1, c)
    other = torch.randn(exact.shape)
    exact = ACTIVATIONS[activation](exact + other.double())
    found = []
    for threads in (1, 3):
        plan = MiniPlanner(threads)
        out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
        endings = (
            conv_blocked.Ending(bias=plan.hold(biases[0]), activation=activation),
            conv_blocked.Ending(bias=plan.hold(biases[1]), addend=blocked(plan, other), activation=activation),
        )
        held = plan.hold(inner), plan.hold(weight)
        pointwise_depthwise.emit(plan, inner_shape, shape, out, blocked(plan, x), held, endings)
        found.append(plain(plan, out, exact.shape))
    torch.testing.assert_close(found[0].double(), exact, rtol=1e-5, atol=2e-6 * float(exact.abs().max()))
    assert torch.equal(found[0], found[1])


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("window", [(3, 2, 1, 1), (2, 2, 0, 1), (3, 1, 1, 2), (5, 3, 2, 1)])
def test_pooling_equals_torch(pooling: Pooling, window: tuple[int, int, int, int]) -> None:
    size, stride, padding, dilation = window
    if pooling is not Pooling.MAXIMUM and dilation > 1:
        pytest.skip("averages have no dilation")
    x = torch.randn(2, 11, 13, 10)
    if pooling is Pooling.MAXIMUM:
        x[0, 3, 5, 5] = float("nan")
        exact = F.max_pool2d(x, size, stride, padding, dilation, ceil_mode=True)
    else:
        with_padding = pooling is Pooling.AVERAGE_WITH_PADDING
        exact = F.avg_pool2d(x, size, stride, padding, ceil_mode=True, count_include_pad=with_padding)
    plan = MiniPlanner(2)
    out = plan.scratch(blocked_layout.blocked_shape(exact.shape))
    lanes = vector_lanes()
    sizes = BlockedWindow(
        2, -(-11 // lanes), 1, 1, 13, 10, *exact.shape[2:], size, size, stride, stride, padding, padding, dilation,
        dilation,
    )
    pool_blocked.emit_pool(plan, sizes, out, blocked(plan, x), pooling, 0)
    torch.testing.assert_close(plain(plan, out, exact.shape), exact, rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("has_weight", [False, True])
@pytest.mark.parametrize("size", [(2, 19, 31, 7), (1, 64, 4, 4), (3, 5, 1, 3), (1, 800, 9, 1)])
def test_pixels_are_normalised_over_their_channels_alone(
    size: tuple[int, int, int, int], has_weight: bool, has_bias: bool,
) -> None:
    x, plan = torch.randn(size) * 3 + 5, MiniPlanner(2)
    weight, bias = torch.randn(2, size[1])
    out = plan.scratch(blocked_layout.blocked_shape(size))
    layer_norm_blocked.emit(
        plan, size, out, blocked(plan, x), plan.hold(weight) if has_weight else None,
        plan.hold(bias) if has_bias else None, 1e-4,
    )
    exact = F.layer_norm(
        x.double().movedim(1, -1), size[1:2], weight.double() if has_weight else None,
        bias.double() if has_bias else None, 1e-4,
    ).movedim(-1, 1)
    torch.testing.assert_close(plain(plan, out, exact.shape).double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(2, 19, 5, 7), (1, 64, 4, 4), (3, 5, 1, 3)])
def test_images_with_their_channels_last_come_into_blocks_and_back(size: tuple[int, ...]) -> None:
    x, plan = torch.randn(size), MiniPlanner(2)
    rows, held = x.movedim(1, -1).contiguous(), plan.scratch(blocked_layout.blocked_shape(size))
    blocked_layout.emit_rows_to_blocked(plan, held, plan.hold(rows))
    assert torch.equal(plain(plan, held, x.shape), x)
    back = plan.scratch(rows.shape)
    blocked_layout.emit_rows_from_blocked(plan, back, held)
    assert torch.equal(plan.fetch(back), rows)


@pytest.mark.parametrize(("source", "target", "channels"), [
    (0, 0, 19), (0, 16, 16), (5, 0, 14), (3, 8, 13), (16, 7, 24), (15, 33, 2), (1, 2, 40), (0, 31, 41), (9, 9, 1),
])
@pytest.mark.parametrize("threads", [1, 3])
def test_channels_in_blocks_move_beside_others_that_stay(source: int, target: int, channels: int, threads: int) -> None:
    x, y = torch.randn(2, source + channels + 3, 23, 29), torch.randn(2, 80, 23, 29)
    plan = MiniPlanner(threads)
    held = blocked(plan, y)
    blocked_layout.emit_move(plan, held, blocked(plan, x), source=source, target=target, channels=channels)
    y[:, target : target + channels] = x[:, source : source + channels]
    assert torch.equal(plain(plan, held, y.shape), y)


def test_means_of_planes_equal_float64() -> None:
    x = torch.randn(2, 19, 31, 7) + 100
    plan = MiniPlanner(2)
    out = plan.scratch(blocked_layout.blocked_shape((2, 19, 1, 1)))
    pool_blocked.emit_mean(plan, out, blocked(plan, x))
    exact = x.double().mean((2, 3), keepdim=True)
    torch.testing.assert_close(plain(plan, out, exact.shape).double(), exact, rtol=1e-7, atol=0)


GRADIENT_CASES = [
    *(case for case in CASES if isinstance(case[6], int) and case[6] <= 2),
    (2, 1, 20, 40, (11, 8), (5, 4), 2, 1, 1),  # phases of different numbers of taps
    (2, 1, 24, 24, (9, 9), (3, 3), 2, 2, 2),  # dilation and stride share a factor: three phases have no taps
    (1, 1, 24, 24, (10, 7), (3, 3), 2, 2, 3),
]


@pytest.mark.parametrize("case", GRADIENT_CASES)
def test_gradients_of_the_input_equal_float64(case: tuple) -> None:
    x, weight, exact, shape = layers_of(case)
    if not conv_blocked.serves_input(shape):
        pytest.skip("groups that do not fill the vectors of this machine")
    dy, other, gate = torch.randn(exact.shape), torch.randn(x.shape), torch.randn(x.shape)
    _, groups, *_, stride, padding, dilation = case
    wanted = torch.nn.grad.conv2d_input(x.shape, weight.double(), dy.double(), stride, padding, dilation, groups)
    for ends in (False, True):
        found = []
        for threads in (1, 3):
            plan = MiniPlanner(threads)
            dx = plan.scratch(blocked_layout.blocked_shape(x.shape))
            held = [blocked(plan, t) if ends else None for t in (other, gate)]
            ending = conv_blocked.Ending(addend=held[0], gate=held[1])
            conv_blocked.emit_input_gradient(plan, shape, dx, blocked(plan, dy), plan.hold(weight), ending)
            found.append(plain(plan, dx, x.shape))
        ended = torch.where(gate > 0, wanted + other.double(), 0) if ends else wanted
        torch.testing.assert_close(found[0].double(), ended, rtol=1e-5, atol=2e-6 * float(wanted.abs().max()))
        assert torch.equal(found[0], found[1])


def test_long_strides_have_too_many_phases() -> None:
    assert not conv_blocked.serves_input(layers_of((1, 1, 16, 16, (12, 12), (3, 3), 3, 0, 1))[-1])
