"""Convolutions of one to three dimensions, plain and transposed, against eager float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.ops.judge import judge

# function, input, weight, whether there is a bias, keywords
CASES: list[tuple[Any, tuple[int, ...], tuple[int, ...], bool, dict[str, Any]]] = [
    (F.conv1d, (2, 3, 17), (4, 3, 5), True, {}),
    (F.conv1d, (2, 4, 17), (4, 1, 3), False, {"groups": 4, "padding": 1}),
    (F.conv1d, (3, 17), (4, 3, 5), True, {"stride": 2, "padding": 3, "dilation": 2}),
    (F.conv1d, (2, 3, 18), (6, 3, 4), True, {"padding": "same"}),
    (F.conv1d, (2, 3, 18), (6, 3, 3), True, {"padding": "same", "dilation": 3}),
    (F.conv1d, (2, 3, 18), (6, 3, 3), True, {"padding": "valid"}),
    (F.conv2d, (2, 3, 9, 8), (4, 3, 3, 3), True, {}),
    (F.conv2d, (3, 9, 8), (4, 3, 3, 2), True, {"padding": (1, 0)}),
    (F.conv2d, (2, 4, 11, 10), (8, 2, 3, 3), True, {"stride": (2, 3), "padding": (2, 1), "groups": 2}),
    (F.conv2d, (2, 6, 9, 8), (6, 1, 3, 3), False, {"groups": 6, "padding": 1}),
    (F.conv2d, (2, 6, 9, 8), (12, 1, 3, 3), True, {"groups": 6, "stride": 2}),
    (F.conv2d, (9, 8, 7, 7), (8, 1, 5, 5), True, {"groups": 8, "padding": 2}),
    (F.conv2d, (2, 4, 130, 41), (12, 1, 7, 7), False, {"groups": 4, "padding": 3}),
    (F.conv2d, (2, 4, 40, 21), (4, 1, 9, 3), True, {"groups": 4, "padding": (4, 1), "dilation": (1, 2)}),
    (F.conv2d, (2, 4, 29, 29), (4, 1, 5, 5), True, {"groups": 4, "padding": 2, "stride": 2}),
    (F.conv2d, (2, 4, 9, 9), (4, 1, 1, 1), True, {"groups": 4, "stride": 2}),
    (F.conv2d, (2, 3, 13, 13), (4, 3, 3, 3), True, {"dilation": (2, 3), "stride": 3}),
    (F.conv2d, (2, 3, 9, 8), (4, 3, 4, 3), True, {"padding": "same"}),
    (F.conv2d, (2, 40, 6, 6), (40, 40, 3, 3), True, {"padding": 1}),
    (F.conv2d, (2, 5, 6, 6), (7, 5, 1, 1), False, {}),
    (F.conv2d, (1, 5, 3, 3), (7, 5, 3, 3), True, {}),
    (F.conv2d, (0, 3, 9, 8), (4, 3, 3, 3), True, {"padding": 1}),
    (F.conv3d, (2, 3, 5, 6, 7), (4, 3, 3, 3, 3), True, {}),
    (F.conv3d, (3, 5, 6, 7), (4, 3, 2, 3, 1), True, {"padding": 1}),
    (F.conv3d, (2, 4, 7, 8, 6), (6, 2, 3, 2, 3), True, {"stride": (2, 1, 2), "padding": (1, 2, 0), "groups": 2}),
    (F.conv3d, (2, 3, 9, 8, 7), (4, 3, 3, 2, 3), False, {"dilation": (3, 2, 1), "padding": (2, 1, 1), "stride": 2}),
    *(
        (F.conv3d, (2, 3, 5, 6, width), (4, 3, 3, 3, 3), True, {"stride": 2, "padding": 1})
        for width in (1, 2, 15, 33, 66)
    ),
    (F.conv3d, (2, 3, 5, 6, 7), (3, 1, 3, 3, 3), True, {"groups": 3, "padding": "same"}),
    (F.conv3d, (0, 3, 5, 6, 7), (4, 3, 3, 3, 3), True, {}),
    (F.conv_transpose1d, (2, 3, 9), (3, 4, 5), True, {}),
    (F.conv_transpose1d, (2, 4, 9), (4, 3, 3), False, {"stride": 3, "padding": 1, "output_padding": 2, "groups": 2}),
    (F.conv_transpose1d, (3, 9), (3, 4, 3), True, {"dilation": 2, "stride": 2, "padding": 2}),
    (F.conv_transpose2d, (2, 3, 5, 6), (3, 4, 3, 3), True, {}),
    (F.conv_transpose2d, (2, 3, 5, 6), (3, 4, 3, 2), True, {"stride": 2, "padding": 1, "output_padding": 1}),
    (F.conv_transpose2d, (2, 4, 5, 6), (4, 2, 3, 3), True, {"stride": (2, 3), "groups": 2, "dilation": 2,
                                                            "output_padding": (1, 0)}),
    (F.conv_transpose2d, (2, 4, 5, 6), (4, 1, 4, 4), False, {"stride": 2, "groups": 4, "padding": 1}),
    (F.conv_transpose2d, (0, 3, 5, 6), (3, 4, 3, 3), True, {}),
    (F.conv_transpose3d, (2, 3, 3, 4, 5), (3, 4, 2, 3, 3), True, {}),
    (F.conv_transpose3d, (2, 4, 3, 4, 5), (4, 2, 3, 2, 3), True, {"stride": (2, 1, 3), "padding": 1, "groups": 2,
                                                                  "output_padding": (1, 0, 2)}),
    (F.conv_transpose3d, (2, 3, 3, 4, 3), (3, 4, 2, 2, 2), False, {"dilation": (2, 1, 3), "stride": 2}),
]

pytestmark = pytest.mark.whole  # each form has a lowering of its own


def name_of(case: tuple[Any, ...]) -> str:
    function, x, weight, _, keywords = case
    marks = "-".join(f"{key}={value}" for key, value in keywords.items())
    return f"{function.__name__}-{'x'.join(map(str, x))}-{'x'.join(map(str, weight))}-{marks}".replace(" ", "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_convolution_and_its_gradients_equal_eager(case: tuple[Any, ...], dtype: torch.dtype) -> None:
    function, x_shape, weight_shape, has_bias, keywords = case
    torch.manual_seed(0)
    channels = weight_shape[0] if "transpose" not in function.__name__ else weight_shape[1] * keywords.get("groups", 1)
    x = torch.randn(x_shape, requires_grad=True)
    weight = torch.randn(weight_shape, requires_grad=True)
    bias = torch.randn(channels, requires_grad=True) if has_bias else None
    judge(lambda x, weight, bias: function(x, weight, bias, **keywords), x, weight, bias, dtype=dtype)


@pytest.mark.parametrize("wanted", ["x", "weight", "bias", "x,weight", "weight,bias", "x,bias"])
@pytest.mark.parametrize("case", [CASES[8], CASES[12], CASES[24], CASES[30], CASES[32], CASES[37]], ids=name_of)
def test_any_subset_of_the_gradients_may_be_asked_for(case: tuple[Any, ...], wanted: str) -> None:
    function, x_shape, weight_shape, _, keywords = case
    channels = weight_shape[0] if "transpose" not in function.__name__ else weight_shape[1] * keywords.get("groups", 1)
    x, weight, bias = (
        torch.randn(shape, requires_grad=name in wanted.split(","))
        for name, shape in (("x", x_shape), ("weight", weight_shape), ("bias", (channels,)))
    )
    judge(lambda x, weight, bias: function(x, weight, bias, **keywords), x, weight, bias)
