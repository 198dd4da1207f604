"""Convolutions and their gradients against float64 torch."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from tests.kernels.immediate import run_op
from tests.kernels.rounding_of_sums import error_bound, error_of
from torchipu._kernels.table.gemm import SUM_BLOCK
from torchipu.ir.types import DType
from torchipu.ops import convolution  # noqa: F401

# n, groups, input channels, output channels, size, window, stride, padding, dilation
CASES = [
    (3, 1, 1, 10, (28, 28), (5, 5), (1, 1), (0, 0), (1, 1)),
    (5, 1, 10, 20, (12, 12), (5, 5), (1, 1), (0, 0), (1, 1)),
    (2, 1, 3, 64, (37, 41), (7, 7), (2, 2), (3, 3), (1, 1)),
    (2, 1, 64, 64, (15, 14), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 1, 32, 40, (15, 14), (3, 3), (2, 2), (1, 1), (1, 1)),
    (5, 1, 96, 48, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 1, 32, 64, (9, 9), (1, 1), (2, 2), (0, 0), (1, 1)),
    (2, 1, 33, 17, (9, 11), (1, 1), (1, 1), (0, 0), (1, 1)),
    (2, 4, 8, 12, (10, 9), (3, 2), (1, 2), (1, 0), (1, 1)),
    (2, 2, 64, 64, (2, 2), (3, 3), (1, 1), (1, 1), (1, 1)),
    (2, 6, 6, 6, (10, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    (1, 1, 5, 7, (17, 19), (3, 3), (3, 2), (2, 1), (2, 3)),
    (1, 1, 32, 32, (17, 19), (3, 3), (1, 1), (2, 2), (2, 1)),
    (1, 1, 2, 3, (5, 4), (5, 4), (1, 1), (0, 0), (1, 1)),
    (1, 1, 4, 4, (5, 6), (3, 1), (1, 1), (0, 0), (1, 1)),
    (2, 1, 4, 6, (6, 6), (2, 2), (3, 3), (4, 4), (1, 1)),
    (2, 1, 310, 97, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1)),  # more weights than a cache holds
    (3, 1, 513, 520, (3, 5), (1, 1), (1, 1), (0, 0), (1, 1)),
    (1, 1, 300, 8, (40, 40), (3, 3), (1, 1), (1, 1), (1, 1)),
    # rows of whole halves of a vector, which are read where they lie: in halves, whole, with borders, a half at the end
    (2, 1, 3, 7, (13, 18), (3, 3), (1, 1), (0, 0), (1, 1)),
    (9, 1, 5, 6, (5, 34), (2, 3), (1, 1), (0, 0), (1, 1)),
    (2, 2, 8, 12, (9, 24), (3, 3), (1, 1), (1, 1), (1, 1)),
    (9, 1, 2, 13, (11, 40), (5, 3), (1, 1), (0, 1), (1, 1)),
    (2, 1, 3, 5, (13, 24), (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, 1, 100, 5, (10, 10), (3, 3), (1, 1), (0, 0), (1, 1)),
    (1, 1, 2, 3, (1, 512), (1, 3), (1, 1), (0, 1), (1, 1)),
    (1, 1, 2, 3, (3, 514), (3, 3), (1, 1), (0, 0), (1, 1)),
    (1, 1, 2, 3, (50, 8), (3, 9), (1, 1), (1, 4), (1, 1)),
    # rows of half a vector: with borders, dilations, groups, a last block of fewer
    (9, 1, 4, 20, (8, 8), (5, 5), (1, 1), (2, 2), (1, 1)),
    (3, 2, 6, 24, (13, 8), (3, 3), (1, 1), (2, 2), (2, 2)),
    (1, 1, 4, 19, (61, 10), (3, 3), (1, 1), (1, 0), (1, 1)),
    # phases of the strides apart: borders, sizes that strides do not divide, groups, dilations, windows over all of it
    (2, 1, 3, 40, (31, 45), (7, 7), (4, 4), (3, 3), (1, 1)),
    (3, 1, 4, 32, (36, 37), (8, 8), (4, 4), (0, 0), (1, 1)),
    (2, 2, 6, 70, (26, 29), (5, 6), (2, 3), (1, 2), (2, 1)),
    (2, 1, 1, 33, (1, 203), (1, 10), (1, 5), (0, 2), (1, 1)),
    (1, 1, 2, 40, (9, 11), (5, 5), (1, 1), (4, 4), (2, 2)),
    (2, 1, 3, 32, (5, 6), (11, 11), (4, 4), (3, 3), (1, 1)),
    (1, 1, 1, 32, (51, 50), (33, 33), (16, 16), (1, 0), (1, 1)),  # more taps than have one place
    (1, 1, 1, 32, (34, 35), (33, 33), (1, 1), (0, 0), (1, 1)),
    # groups of one channel and windows higher than what shares loads: halves, thirds, sevenths, a prime; then apart
    (2, 5, 5, 5, (13, 20), (8, 3), (1, 1), (4, 1), (1, 1)),
    (2, 6, 6, 6, (20, 19), (9, 9), (1, 1), (4, 4), (1, 1)),
    (1, 3, 3, 6, (25, 41), (14, 5), (1, 1), (6, 2), (1, 1)),
    (2, 4, 4, 4, (19, 23), (11, 2), (1, 1), (5, 0), (1, 1)),
    (1, 3, 3, 3, (27, 23), (9, 3), (1, 2), (4, 1), (1, 1)),
    (1, 3, 3, 3, (27, 23), (9, 3), (2, 1), (8, 1), (2, 1)),
    # one window is the image
    (5, 1, 3, 7, (4, 5), (4, 5), (1, 1), (0, 0), (1, 1)),
    (70, 1, 16, 120, (5, 5), (5, 5), (2, 2), (0, 0), (1, 1)),
    (1, 1, 2, 130, (7, 1), (7, 1), (3, 3), (0, 0), (1, 5)),
    (9, 1, 40, 1, (3, 3), (3, 3), (1, 1), (0, 0), (1, 1)),
]


def make(case: tuple) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, dict[str, object]]:
    n, groups, ic, oc, size, window, stride, padding, dilation = case
    torch.manual_seed(1)
    attrs = {
        "stride": list(stride),
        "padding": list(padding),
        "dilation": list(dilation),
        "transposed": False,
        "output_padding": [0, 0],
        "groups": groups,
    }
    return torch.randn(n, ic, *size), torch.randn(oc, ic // groups, *window), torch.randn(oc), attrs


def reference(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None, attrs: dict[str, object]) -> torch.Tensor:
    arguments = [attrs[name] for name in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]
    return torch.ops.aten.convolution(x.double(), w.double(), None if b is None else b.double(), *arguments)


@pytest.mark.parametrize(
    "case",
    [
        (2, 1, 5000, 9, (5, 7), (1, 1), (1, 1), (0, 0), (1, 1)),
        (1, 1, 600, 5, (10, 10), (3, 3), (1, 1), (0, 0), (1, 1)),  # rows of whole halves of a vector
        (1, 1, 600, 20, (9, 9), (3, 3), (2, 2), (0, 0), (1, 1)),
    ],
)
def test_long_sums_round_like_short_ones(case: tuple) -> None:
    x, w, _, attrs = make(case)
    expected = reference(x, w, None, attrs)
    operands = {"input": x, "weight": w, "bias": None}
    result = run_op("aten.convolution.default", operands, attrs, [(tuple(expected.shape), DType.FLOAT)])[0]
    assert error_of(result, expected) < error_bound(w[0].numel(), SUM_BLOCK)


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_convolution_equals_float64(case: tuple, biased: bool) -> None:
    x, w, b, attrs = make(case)
    bias = b if biased else None
    expected = reference(x, w, bias, attrs)
    shapes = [(tuple(expected.shape), DType.FLOAT)]
    operands = {"input": x, "weight": w, "bias": bias}
    results = [run_op("aten.convolution.default", operands, attrs, shapes, threads)[0] for threads in (1, 2, 4)]
    torch.testing.assert_close(results[0].double(), expected, atol=2e-4, rtol=1e-4)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize("case", CASES)
def test_convolution_gradients_equal_float64(case: tuple) -> None:
    x, w, _, attrs = make(case)
    y = reference(x, w, None, attrs)
    dy = torch.randn(y.shape)
    arguments = [attrs[name] for name in ("stride", "padding", "dilation", "transposed", "output_padding", "groups")]
    expected = torch.ops.aten.convolution_backward(
        dy.double(), x.double(), w.double(), [w.shape[0]], *arguments, [True] * 3
    )
    shapes = [(tuple(t.shape), DType.FLOAT) for t in expected]
    operands = {"grad_output": dy, "input": x, "weight": w}
    attrs = {**attrs, "output_mask": [True, True, True], "bias_sizes": [w.shape[0]]}
    results = [run_op("aten.convolution_backward.default", operands, attrs, shapes, threads) for threads in (1, 2, 4)]
    for one, two, four, exact in zip(*results, expected, strict=True):
        torch.testing.assert_close(one.double(), exact, atol=1e-3, rtol=1e-4)
        assert torch.equal(one, two)
        assert torch.equal(one, four)


@pytest.mark.parametrize(("images", "channels", "results", "window"), [(5, 100, 33, (4, 4)), (1, 3, 1, (2, 7))])
def test_transposed_convolution_of_a_pixel_equals_float64(
    images: int, channels: int, results: int, window: tuple[int, int],
) -> None:
    torch.manual_seed(1)
    x, w, b = torch.randn(images, channels, 1, 1), torch.randn(channels, results, *window), torch.randn(results)
    attrs = {
        "stride": [1, 1], "padding": [0, 0], "dilation": [1, 1], "transposed": True, "output_padding": [0, 0],
        "groups": 1,
    }
    expected = reference(x, w, b, attrs)
    operands = {"input": x, "weight": w, "bias": b}
    found = run_op("aten.convolution.default", operands, attrs, [(tuple(expected.shape), DType.FLOAT)])[0]
    torch.testing.assert_close(found.double(), expected, atol=2e-4, rtol=1e-4)


def test_convolution_of_one_dimension_equals_torch() -> None:
    x, w = torch.randn(2, 3, 1000), torch.randn(8, 3, 10)
    attrs = {"stride": [5], "padding": [4], "dilation": [2], "transposed": False, "output_padding": [0], "groups": 1}
    expected = torch.nn.functional.conv1d(x, w, None, 5, 4, 2)
    (result,) = run_op(
        "aten.convolution.default",
        {"input": x, "weight": w, "bias": None},
        attrs,
        [(tuple(expected.shape), DType.FLOAT)],
        2,
    )
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)


def test_masked_gradients_are_left_out() -> None:
    x, w, _, attrs = make(CASES[1])
    dy = torch.randn(5, 20, 8, 8)
    plan = MiniPlanner()
    attrs = {**attrs, "output_mask": [False, True, False], "present": (False, True, False)}
    (dw,) = run_op(
        "aten.convolution_backward.default",
        {"grad_output": dy, "input": x, "weight": w},
        attrs,
        [(tuple(w.shape), DType.FLOAT)],
        planner=plan,
    )
    expected = torch.nn.grad.conv2d_weight(x, w.shape, dy)
    torch.testing.assert_close(dw, expected, atol=1e-3, rtol=1e-4)
    assert "conv_input" not in plan.steps


def test_nan_in_one_image_stays_there() -> None:
    x, w, b, attrs = make(CASES[1])
    x[2, 3, 4, 5] = float("nan")
    (result,) = run_op(
        "aten.convolution.default", {"input": x, "weight": w, "bias": b}, attrs, [((5, 20, 8, 8), DType.FLOAT)]
    )
    expected = torch.nn.functional.conv2d(x, w, b)
    assert torch.equal(result.isnan(), expected.isnan())
