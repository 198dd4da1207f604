"""grid_sample at places that are no numbers, infinite or far away: nothing beside the image is read or written.

Eager PyTorch, whose backward may end the process there, is asked for results alone, in a process of its own; gradients
have their judge here, in float64.
"""

from __future__ import annotations

import functools
import json
import math
import subprocess
import sys
from itertools import product

import pytest
import torch
from torch import Tensor

from tests.kernels.immediate import run_op
from torchipu.ir.types import DType
from torchipu.ops import grid_sample  # noqa: F401

MODES, OUTSIDE = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")
FAR = [1e9, -1e9, 3e9, -3e9, 1e30, -1e30]
STRANGE = [math.nan, math.inf, -math.inf, 3.4e38, -3.4e38]
NEAR = [0.21, -0.37, 0.83, -0.91]
HEIGHT, WIDTH, CHANNELS = 3, 4, 2
CALLS = list(product(range(len(MODES)), range(len(OUTSIDE)), (False, True)))
EAGER = """
import json, sys, torch
places, calls = json.load(sys.stdin)
grid = torch.tensor(places).reshape(1, 1, -1, 2)
x = torch.arange(24.0).reshape(1, 2, 3, 4)
for call in calls:
    print(json.dumps(torch.grid_sampler_2d(x, grid, *call).flatten().tolist()), flush=True)
"""


def points(places: list[float]) -> Tensor:
    """Return a grid ``[1, 1, N, 2]`` of places in columns, in rows and in both; the other coordinate is near."""
    pairs = [pair for place in places for pair in ((place, 0.21), (-0.37, place), (place, place))]
    return torch.tensor(pairs).reshape(1, 1, -1, 2)


def attributes(mode: int, outside: int, aligned: bool) -> dict[str, object]:
    return {"interpolation_mode": mode, "padding_mode": outside, "align_corners": aligned}


def sampled(x: Tensor, grid: Tensor, call: tuple[int, int, bool]) -> Tensor:
    shape = (*x.shape[:2], *grid.shape[1:3])
    operands = {"input": x, "grid": grid}
    return run_op("aten.grid_sampler_2d.default", operands, attributes(*call), [(shape, DType.FLOAT)])[0]


def gradients(dy: Tensor, x: Tensor, grid: Tensor, call: tuple[int, int, bool]) -> list[Tensor]:
    return run_op(
        "aten.grid_sampler_2d_backward.default", {"grad_output": dy, "input": x, "grid": grid},
        {**attributes(*call), "output_mask": [True, True]}, [(tuple(each.shape), DType.FLOAT) for each in (x, grid)],
    )


def cubic(distance: Tensor) -> Tensor:
    """Return what a pixel at a distance counts. Source: R. G. Keys, 1981, with a = -0.75."""
    d, a = distance.abs(), -0.75
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a


def put_within(place: Tensor, size: int, outside: int, aligned: bool) -> Tensor:
    """Return a place in pixels, reflected or kept within the border as often as that takes."""
    if outside == OUTSIDE.index("reflection"):
        low, high = (0.0, size - 1.0) if aligned else (-0.5, size - 0.5)
        turns = math.floor((place.item() - low) / (high - low))
        place = place - turns * (high - low) if turns % 2 == 0 else high + low - (place - turns * (high - low))
    return place.clamp(0, size - 1) if outside else place


def taps(coordinate: Tensor, size: int, call: tuple[int, int, bool]) -> list[tuple[int, Tensor]]:
    """Return the pixels along one dimension, which may lie beyond the border, with what they count."""
    mode, outside, aligned = call
    place = (coordinate + 1) * ((size - 1) / 2) if aligned else ((coordinate + 1) * size - 1) / 2
    if mode == MODES.index("bicubic"):
        first = math.floor(place.item())
        each = [(first + k, cubic(place - float(first) - k)) for k in range(-1, 3)]
        whole = torch.tensor(0.0, dtype=torch.float64)
        return [(int(put_within(whole + float(at), size, outside, aligned)), by) for at, by in each]
    place = put_within(place, size, outside, aligned)
    if mode == MODES.index("nearest"):
        return [(round(place.item()), torch.ones((), dtype=torch.float64))]
    first = math.floor(place.item())
    return [(first, 1 - (place - float(first))), (first + 1, place - float(first))]


def reference(x: Tensor, grid: Tensor, call: tuple[int, int, bool]) -> Tensor:
    """Return what is taken of one image ``[1, C, H, W]``, point by point and pixel by pixel, ``[1, C, 1, N]``."""
    results = []
    for column, row in grid.reshape(-1, 2):
        found = x[0, :, 0, 0] * 0 + (column + row) * 0
        for (r, by_row), (c, by_column) in product(taps(row, HEIGHT, call), taps(column, WIDTH, call)):
            if 0 <= r < HEIGHT and 0 <= c < WIDTH:
                found = found + x[0, :, r, c] * by_row * by_column
        results.append(found)
    return torch.stack(results, 1)[None, :, None]


@pytest.fixture(scope="module")
def eager() -> list[Tensor]:
    """Return what eager PyTorch takes at far and at strange places, for each call."""
    given = json.dumps([points([*FAR, *STRANGE]).tolist(), CALLS])
    run = subprocess.run([sys.executable, "-c", EAGER], input=given, capture_output=True, text=True, timeout=300)
    return [torch.tensor(json.loads(line)).reshape(1, CHANNELS, 1, -1) for line in run.stdout.splitlines()]


@functools.cache
def drawn() -> Tensor:
    return torch.randn(1, CHANNELS, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("call", [call for call in CALLS if call[1] != OUTSIDE.index("reflection")], ids=str)
def test_what_is_taken_is_what_eager_takes(call: tuple[int, int, bool], eager: list[Tensor]) -> None:
    # Which pixel a place is reflected to from far away is a matter of rounding.
    if len(eager) <= CALLS.index(call):
        pytest.skip("eager PyTorch has ended its process")
    x = torch.arange(24.0).reshape(1, CHANNELS, HEIGHT, WIDTH)
    found, judge = sampled(x, points([*FAR, *STRANGE]), call), eager[CALLS.index(call)]
    torch.testing.assert_close(found, judge, rtol=1e-5, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_gradients_of_places_far_away_are_those_of_float64(call: tuple[int, int, bool]) -> None:
    # Reflected from far away a place is no float32's: some steps beyond the border say the same.
    x, grid = drawn(), points([*NEAR, *([5.3, -6.1, 17.7] if call[1] == OUTSIDE.index("reflection") else FAR)])
    dy = torch.randn(1, CHANNELS, 1, grid.shape[2], generator=torch.Generator().manual_seed(4))
    exact = [each.double().requires_grad_() for each in (x, grid)]
    y = reference(*exact, call)
    y.backward(dy.double())
    torch.testing.assert_close(sampled(x, grid, call).double(), y.detach(), rtol=1e-4, atol=1e-4)
    for found, judge in zip(gradients(dy, x, grid, call), exact, strict=True):
        assert judge.grad is not None
        torch.testing.assert_close(found.double(), judge.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_strange_places_leave_others_as_they_are(call: tuple[int, int, bool]) -> None:
    x, strange, near = drawn(), points([*FAR, *STRANGE]), points(NEAR)
    both = torch.cat([near, strange, near], 2)
    alone, beside = sampled(x, near, call), sampled(x, both, call)
    count = near.shape[2]
    assert torch.equal(beside[..., :count], alone)
    assert torch.equal(beside[..., -count:], alone)
    if call[0] != MODES.index("bicubic"):  # between pixels, or no number
        within = beside[beside.isfinite()]
        assert within.abs().max() <= x.abs().max() + 1e-6
        assert not beside.isinf().any()
    dy = torch.ones(1, CHANNELS, 1, both.shape[2])
    images, places = gradients(dy, x, both, call)
    assert images.shape == x.shape
    _, wanted = gradients(dy[..., :count], x, near, call)
    assert torch.equal(places[:, :, :count], wanted)
    assert torch.equal(places[:, :, -count:], wanted)
