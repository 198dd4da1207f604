"""Convolutions of volumes whose groups have a single channel, and their gradients, against eager float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.immediate import run_op
from torchipu.ir.types import DType
from torchipu.ops import convolution  # noqa: F401

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """Sizes of a convolution."""

    samples: int
    groups: int
    size: Three
    window: Three = (3, 3, 3)
    stride: Three = (1, 1, 1)
    padding: Three = (1, 1, 1)
    dilation: Three = (1, 1, 1)
    of_each: int = 1


CASES = {
    "even": Case(2, 6, (8, 16, 16)),
    "odd sizes": Case(2, 5, (7, 9, 11)),
    "strides": Case(1, 6, (8, 9, 10), stride=(2, 2, 2)),
    "strides that leave depths out": Case(1, 4, (16, 4, 64), (3, 2, 3), (5, 1, 1), (2, 1, 0), (2, 1, 1)),
    "dilated, two of each": Case(1, 3, (9, 9, 17), (5, 1, 3), (1, 2, 3), (2, 0, 1), (1, 1, 2), 2),
    "no padding": Case(1, 2, (5, 5, 5), padding=(0, 0, 0), of_each=3),
    "windows in the padding": Case(1, 2, (2, 3, 3), padding=(4, 3, 5)),
    "one channel, deep": Case(1, 1, (40, 12, 70)),
    "along one dimension": Case(2, 3, (20, 5, 5), (5, 1, 1), padding=(2, 0, 0)),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_eager_pytorch(name: str) -> None:
    case = CASES[name]
    draws = torch.Generator().manual_seed(len(name))
    x = torch.randn(case.samples, case.groups, *case.size, generator=draws)
    weight = torch.randn(case.groups * case.of_each, 1, *case.window, generator=draws) / 4
    bias = torch.randn(case.groups * case.of_each, generator=draws)
    exact = [each.double().requires_grad_() for each in (x, weight, bias)]
    y = F.conv3d(*exact, case.stride, case.padding, case.dilation, case.groups)
    dy = torch.randn(y.shape, generator=draws)
    y.backward(dy.double())
    attributes = {
        "stride": list(case.stride), "padding": list(case.padding), "dilation": list(case.dilation),
        "transposed": False, "output_padding": [0, 0, 0], "groups": case.groups,
    }
    operands, shapes = {"input": x, "weight": weight, "bias": bias}, [(tuple(y.shape), DType.FLOAT)]
    found = [run_op("aten.convolution.default", operands, attributes, shapes, threads)[0] for threads in (1, 2)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), y, rtol=1e-5, atol=1e-5)
    operands = {"grad_output": dy, "input": x, "weight": weight}
    given = {**attributes, "bias_sizes": [len(bias)], "output_mask": [True, True, True]}
    shapes = [(tuple(each.shape), DType.FLOAT) for each in exact]
    gradients = [run_op("aten.convolution_backward.default", operands, given, shapes, threads) for threads in (1, 2)]
    for each, again, judge in zip(*gradients, exact, strict=True):
        assert torch.equal(each, again)
        torch.testing.assert_close(each.double(), judge.grad, rtol=1e-4, atol=1e-4)
