"""Calls that PopTorch computes otherwise than torch, and upsampling, whose documented limits are gone."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from torchipu import poptorch


class Called(nn.Module):
    """Calls a function.

    Args:
        body: The function.
    """

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, *args: torch.Tensor) -> Any:
        return self.body(*args)


def run(body: Any, *args: torch.Tensor) -> Any:
    return poptorch.inferenceModel(Called(body))(*args)


SHAPES: dict[str, tuple[tuple[int, ...], ...]] = {
    "addmv": ((3,), (3, 4), (4,)), "addmm": ((3, 2), (3, 4), (4, 2)), "addr": ((3, 2), (3,), (2,)),
    "baddbmm": ((2, 3, 5), (2, 3, 4), (2, 4, 5)), "addbmm": ((3, 5), (2, 3, 4), (2, 4, 5)),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("form", ["function", "method", "in_place", "out"])
@pytest.mark.parametrize(("beta", "alpha", "bad"), [
    (0, 1, 0), (0.0, 2.5, 0), (0, 0, 0), (1, 0, 1), (1, 0, 2), (2.0, 0.0, 1), (2.0, 0.0, 2), (0, 0, 1), (0, 0, 2),
])
def test_what_is_taken_zero_times_is_not_read(name: str, form: str, beta: float, alpha: float, bad: int) -> None:
    tensors = [torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape) / 7 for shape in SHAPES[name]]
    product = getattr(torch, name)(torch.zeros_like(tensors[0]), *tensors[1:])
    expected = beta * tensors[0] + alpha * product
    tensors[bad] = torch.full_like(tensors[bad], float("nan"))

    def body(added: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        if form == "function":
            return getattr(torch, name)(added, first, second, beta=beta, alpha=alpha)
        if form == "out":
            out = torch.empty_like(added)
            getattr(torch, name)(added, first, second, beta=beta, alpha=alpha, out=out)
            return out
        held = added.clone() if form == "in_place" else added
        return getattr(held, f"{name}_" if form == "in_place" else name)(first, second, beta=beta, alpha=alpha)

    torch.testing.assert_close(run(body, *tensors), expected)


COUNTED = torch.tensor([1, 3, 3, 5, 0])


@pytest.mark.parametrize("weights", [None, torch.rand(5), torch.arange(5)])
@pytest.mark.parametrize("length", [6, 9, 4, 1])
def test_bincount_has_exactly_the_minimum_length(weights: torch.Tensor | None, length: int) -> None:
    given = (COUNTED,) if weights is None else (COUNTED, weights)
    expected = torch.bincount(*given, minlength=length)[:length]
    for body in (
        lambda i, *w: torch.bincount(i, *w, minlength=length), lambda i, *w: i.bincount(*w, minlength=length),
        lambda i, *w: torch.bincount(i.int(), *w, minlength=torch.tensor(length)),
    ):
        torch.testing.assert_close(run(body, *given), expected, check_dtype=False)


@pytest.mark.parametrize("body", [
    lambda i: i.bincount(), lambda i: torch.bincount(i, i), lambda i: i.bincount(minlength=0),
    lambda i: torch.bincount(i, minlength=i[0]),
])
def test_bincount_without_a_constant_length_is_refused(body: Any) -> None:
    with pytest.raises(poptorch.Error, match=r"Bincount `minlength` must be specified and must be a constant. On the "
                                             r"IPU MK2 platform the minimum length is also the maximum length"):
        run(body, COUNTED)


@pytest.mark.parametrize("corners", [False, True])
@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("sizes", [
    {"scale_factor": 2}, {"scale_factor": 1.7}, {"scale_factor": (2, 3.5)}, {"scale_factor": 0.5}, {"size": (7, 11)},
    {"size": 9}, {"scale_factor": 1.7, "recompute_scale_factor": True},
])
def test_images_are_resampled_by_any_factor_and_to_any_size(sizes: Any, mode: str, corners: bool) -> None:
    x = torch.arange(40.0).reshape(1, 2, 4, 5).sin()
    body = lambda x: F.interpolate(x, mode=mode, align_corners=corners, **sizes)  # noqa: E731
    torch.testing.assert_close(run(body, x), body(x.double()).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", ["linear", "trilinear", "area", "nearest-exact"])
def test_other_modes_are_refused(mode: str) -> None:
    shape = {"linear": (1, 2, 4), "trilinear": (1, 2, 4, 4, 4)}.get(mode, (1, 2, 4, 4))
    with pytest.raises(poptorch.Error, match="only 'nearest' is supported"):
        run(lambda x: F.interpolate(x, scale_factor=2, mode=mode), torch.ones(shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular", "zeros"])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_padded_convolutions_with_a_stride_agree_with_eager(mode: str, stride: int, dtype: torch.dtype) -> None:
    torch.manual_seed(stride)
    for kind, size in ((nn.Conv1d, (2, 4, 11)), (nn.Conv2d, (2, 4, 7, 9))):
        layer = kind(4, 6, 3, stride=stride, padding=2, padding_mode=mode).to(dtype)
        x = torch.randn(size).to(dtype)
        expected = layer(x).detach()
        torch.testing.assert_close(poptorch.inferenceModel(layer)(x), expected, rtol=1e-4, atol=1e-4)


class Filled(nn.Module):
    """Fills rows or columns with a weight."""

    def __init__(self, fill: Any) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(3.0))
        self.scale = nn.Parameter(torch.ones(4))
        self.fill = fill

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> Any:
        filled = self.fill(x * self.scale, index, self.value)
        return filled, poptorch.identity_loss((filled * x).sum(), "none")


@pytest.mark.parametrize("fill", [
    lambda x, i, value: x.index_fill(0, i, value), lambda x, i, value: torch.index_fill(x, -1, i, value),
    lambda x, i, value: x.index_fill_(1, i, value), lambda x, i, value: x.index_fill(dim=0, index=i, value=value),
])
def test_what_indices_are_filled_with_is_trained_though_they_may_name_a_place_twice(fill: Any) -> None:
    model = Filled(fill)
    twin = copy.deepcopy(model).double()
    x, index = torch.linspace(-1, 2, 12).reshape(3, 4), torch.tensor([2, 0, 2])
    step = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    filled, loss = step(x, index)
    expected, wanted = twin(x.double(), index)
    wanted.backward()
    torch.optim.SGD(twin.parameters(), lr=0.1).step()
    torch.testing.assert_close((filled.double(), loss.double()), (expected.detach(), wanted.detach()))
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().double(), theirs.detach(), rtol=1e-5, atol=1e-6)
