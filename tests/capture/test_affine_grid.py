"""Grids of points that matrices place, beside float64, of dimensions of one element too."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import torchipu  # noqa: F401

SIZES = [(2, 3, 5, 7), (1, 1, 6, 4), (2, 1, 3, 4, 5)]
THIN = [(2, 3, 1, 5), (2, 3, 4, 1), (1, 2, 1, 1), (1, 1, 1, 4, 1)]
"""Of which torch 2.13 gives no gradient to any compiler, and nothing of halves."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", SIZES)
def test_grids_and_gradients_equal_float64(size: tuple[int, ...], align_corners: bool, dtype: torch.dtype) -> None:
    dims = len(size) - 2
    theta = torch.randn(size[0], dims, dims + 1, generator=torch.Generator().manual_seed(3)).to(dtype)
    weight = torch.linspace(-1, 2, dims)

    def values(kind: torch.dtype, compiled: bool) -> list[torch.Tensor]:
        def call(theta: torch.Tensor) -> torch.Tensor:
            return F.affine_grid(theta, list(size), align_corners=align_corners)

        given = theta.to(kind).clone().requires_grad_()
        grid = (torch.compile(call, backend="ipu", fullgraph=True) if compiled else call)(given)
        (grid * weight.to(kind)).sum().backward()
        assert grid.dtype is kind
        assert given.grad is not None
        return [grid.detach().double(), given.grad.double()]

    torch._dynamo.reset()
    rtol = 2e-3 if dtype is torch.float16 else 1e-5
    for ours, exact in zip(values(dtype, True), values(torch.float64, False), strict=True):
        torch.testing.assert_close(ours, exact, rtol=rtol, atol=rtol * float(exact.abs().max()))


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("size", THIN)
def test_dimensions_of_one_element_have_their_points_in_the_middle(size: tuple[int, ...], align_corners: bool) -> None:
    dims = len(size) - 2
    theta = torch.randn(size[0], dims, dims + 1, generator=torch.Generator().manual_seed(3))

    def call(theta: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta, list(size), align_corners=align_corners)

    torch._dynamo.reset()
    found = torch.compile(call, backend="ipu", fullgraph=True)(theta)
    torch.testing.assert_close(found.double(), call(theta.double()), rtol=1e-5, atol=1e-6)
