"""Three-dimensional convolutions over channels in blocks, and their gradients, against eager PyTorch in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F

from tests.kernels.immediate import run_op
from torchipu.host.emit import volume_blocked
from torchipu.ir.types import DType
from torchipu.ops import convolution  # noqa: F401
from torchipu.optable.volume import Volume

Three = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """Sizes of a convolution."""

    samples: int
    channels: tuple[int, int]
    size: Three
    window: Three = (3, 3, 3)
    stride: Three = (1, 1, 1)
    padding: Three = (1, 1, 1)
    dilation: Three = (1, 1, 1)

    @property
    def volume(self) -> Volume:
        """The same as the emitters have it."""
        out = tuple(
            (self.size[i] + 2 * self.padding[i] - self.dilation[i] * (self.window[i] - 1) - 1) // self.stride[i] + 1
            for i in range(3)
        )
        return Volume(
            self.samples, 1, *self.channels, self.size, (out[0], out[1], out[2]), self.window, self.stride,
            self.padding, self.dilation,
        )


CASES = {
    "even": Case(2, (16, 16), (6, 9, 10)),
    "odd channels": Case(2, (20, 24), (6, 10, 11), (3, 1, 3), padding=(1, 0, 1)),
    "strides": Case(1, (16, 32), (7, 9, 10), stride=(2, 2, 2)),
    "one depth, dilated": Case(1, (8, 40), (5, 14, 14), (1, 3, 3), padding=(0, 1, 1), dilation=(1, 2, 2)),
    "no padding": Case(3, (32, 8), (6, 8, 8), (2, 2, 2), padding=(0, 0, 0)),
    "more padding than windows reach": Case(1, (17, 33), (7, 8, 9), padding=(3, 0, 2)),
    "deep windows": Case(1, (16, 16), (9, 9, 9), (5, 3, 3), (1, 2, 1), (2, 1, 1)),
}


def attributes(case: Case) -> dict[str, object]:
    return {
        "stride": list(case.stride), "padding": list(case.padding), "dilation": list(case.dilation),
        "transposed": False, "output_padding": [0, 0, 0], "groups": 1,
    }


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_those_of_eager_pytorch(name: str) -> None:
    case = CASES[name]
    assert volume_blocked.serves(case.volume)
    draws = torch.Generator().manual_seed(len(name))
    x = torch.randn(case.samples, case.channels[0], *case.size, generator=draws)
    weight = torch.randn(*case.channels[::-1], *case.window, generator=draws) / 8
    bias = torch.randn(case.channels[1], generator=draws)
    exact = [each.double().requires_grad_() for each in (x, weight, bias)]
    y = F.conv3d(*exact, case.stride, case.padding, case.dilation)
    dy = torch.randn(y.shape, generator=draws)
    y.backward(dy.double())
    operands, shapes = {"input": x, "weight": weight, "bias": bias}, [(tuple(y.shape), DType.FLOAT)]
    found = [run_op("aten.convolution.default", operands, attributes(case), shapes, threads)[0] for threads in (1, 2)]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), y, rtol=1e-5, atol=1e-5)
    operands = {"grad_output": dy, "input": x, "weight": weight}
    given = {**attributes(case), "bias_sizes": [case.channels[1]], "output_mask": [True, True, True]}
    shapes = [(tuple(each.shape), DType.FLOAT) for each in exact]
    gradients = [run_op("aten.convolution_backward.default", operands, given, shapes, threads) for threads in (1, 2)]
    for each, again, judge in zip(*gradients, exact, strict=True):
        assert torch.equal(each, again)
        torch.testing.assert_close(each.double(), judge.grad, rtol=1e-4, atol=1e-4)


def test_which_convolutions_are_laid_out_so() -> None:
    assert not volume_blocked.serves(Case(1, (3, 16), (8, 32, 32)).volume), "blocks mostly empty"
    assert not volume_blocked.serves(Case(1, (16, 16), (8, 12, 12), dilation=(2, 1, 1)).volume), "depths do not adjoin"
    assert not volume_blocked.serves(Case(1, (16, 16), (3, 3, 3)).volume), "too little to do"
    assert volume_blocked.serves_input(CASES["even"].volume)
    assert not volume_blocked.serves_input(CASES["strides"].volume)
    assert not volume_blocked.serves_input(CASES["more padding than windows reach"].volume)
