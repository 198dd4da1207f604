"""Images taken at the places that a grid says, and gradients of images and grid, against eager PyTorch in float64."""

from __future__ import annotations

import pytest
import torch

from tests.kernels.immediate import run_op
from torchipu.ir.types import DType
from torchipu.ops import grid_sample  # noqa: F401

MODES, OUTSIDE = {"bilinear": 0, "nearest": 1, "bicubic": 2}, {"zeros": 0, "border": 1, "reflection": 2}
SIZES = [((2, 3, 9, 7), (5, 6)), ((1, 20, 16, 16), (16, 16)), ((3, 1, 1, 5), (4, 3)), ((1, 9, 5, 1), (1, 130))]
"""Of images, and the height and width of what is taken."""


def drawn(images: tuple[int, ...], taken: tuple[int, int]) -> list[torch.Tensor]:
    draws = torch.Generator().manual_seed(sum(images))
    x = torch.randn(images, generator=draws)
    grid = torch.rand(images[0], *taken, 2, generator=draws) * 3 - 1.5
    return [x, grid, torch.randn(*images[:2], *taken, generator=draws)]


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("images", "taken"), SIZES, ids=str)
def test_results_and_gradients(
    images: tuple[int, ...], taken: tuple[int, int], mode: str, outside: str, aligned: bool,
) -> None:
    x, grid, dy = drawn(images, taken)
    given = {"interpolation_mode": MODES[mode], "padding_mode": OUTSIDE[outside], "align_corners": aligned}
    exact = [each.double().requires_grad_() for each in (x, grid)]
    y = torch.nn.functional.grid_sample(*exact, mode, outside, aligned)
    y.backward(dy.double())
    shapes = [(tuple(y.shape), DType.FLOAT)]
    found = [
        run_op("aten.grid_sampler_2d.default", {"input": x, "grid": grid}, given, shapes, threads)[0]
        for threads in (1, 2)
    ]
    assert torch.equal(*found)
    torch.testing.assert_close(found[0].double(), y, rtol=1e-4, atol=1e-4)
    operands = {"grad_output": dy, "input": x, "grid": grid}
    both = [(tuple(each.shape), DType.FLOAT) for each in exact]
    for mask in ([True, True], [True, False], [False, True]):
        wanted = [shape for shape, here in zip(both, mask, strict=True) if here]
        judges = [each.grad for each, here in zip(exact, mask, strict=True) if here]
        runs = [
            run_op("aten.grid_sampler_2d_backward.default", operands, {**given, "output_mask": mask}, wanted, threads)
            for threads in (1, 2)
        ]
        for each, again, judge in zip(*runs, judges, strict=True):
            assert torch.equal(each, again)
            torch.testing.assert_close(each.double(), judge, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("mode", MODES)
def test_places_that_are_no_numbers_or_far_away(mode: str, outside: str) -> None:
    """As in eager PyTorch, which reads no memory that is not the image's."""
    x = torch.arange(12.0).reshape(1, 1, 3, 4)
    places = torch.tensor([float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 0.25])
    grid = places.repeat(2, 1).t().reshape(1, 1, 6, 2)
    given = {"interpolation_mode": MODES[mode], "padding_mode": OUTSIDE[outside], "align_corners": False}
    (found,) = run_op(
        "aten.grid_sampler_2d.default", {"input": x, "grid": grid}, given, [((1, 1, 1, 6), DType.FLOAT)], 1,
    )
    assert found.shape == (1, 1, 1, 6)
    eager = torch.nn.functional.grid_sample(x, grid, mode, outside, False)
    if mode != "bicubic" and outside != "reflection":
        torch.testing.assert_close(found, eager, equal_nan=True)
    torch.testing.assert_close(found[..., 5:], eager[..., 5:])
