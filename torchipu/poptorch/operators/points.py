"""Searches among points: `fps` and `nearest`, built of operators of the program."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from torchipu.capture.bodies import repeat
from torchipu.poptorch.poptorch_core import createPoptorchError


def fps(src: torch.Tensor, ptr: list[int], ratio: float = 0.5, random_start: bool = False) -> torch.Tensor:
    """Choose points of each cloud that lie far from each other, each as far as can be from those before it.

    Args:
        src: All clouds one after another, ``[N, F]`` or ``[N]``.
        ptr: Where they begin, and where the last ends.
        ratio: Part of the points that is chosen, rounded up to a whole point.
        random_start: Whether the first point of each cloud is drawn; otherwise it is the first one.

    Returns:
        Indices into ``src`` in the order of choice, cloud by cloud.

    Raises:
        Error: An argument is of another type, or the places are not in order.
    """
    _check_points("fps", "src", src)
    is_list = isinstance(ptr, list) and all(isinstance(place, int) and not isinstance(place, bool) for place in ptr)
    if not is_list or len(ptr) < 2:
        raise createPoptorchError(f"poptorch.fps: ptr must be a list of at least 2 integers, not {ptr!r}")
    if ptr[0] < 0 or ptr[-1] > src.shape[0] or any(end <= begin for begin, end in itertools.pairwise(ptr)):
        raise createPoptorchError(
            f"poptorch.fps: ptr must grow, from 0 at least to the {src.shape[0]} points at most, but it is {ptr}"
        )
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio <= 1:
        raise createPoptorchError(f"poptorch.fps: ratio must be a number above 0 and at most 1, not {ratio!r}")
    if not isinstance(random_start, bool):
        raise createPoptorchError(f"poptorch.fps: random_start must be a bool, not {type(random_start)}")
    points = src.detach().reshape(src.shape[0], -1)
    return torch.cat([
        _spread(points[begin:end], math.ceil(ratio * (end - begin)), random_start) + begin
        for begin, end in itertools.pairwise(ptr)
    ])


def _spread(points: torch.Tensor, count: int, random_start: bool) -> torch.Tensor:
    """Return the indices of ``count`` points of a cloud ``[N, F]``."""
    size = points.shape[0]
    first = torch.randint(size, (1,)) if random_start else torch.zeros(1, dtype=torch.long)
    distances = torch.full((size,), math.inf, dtype=points.dtype)
    chosen = first.expand(count).clone()
    if count == 1:
        return chosen
    carried = (chosen, distances, first, torch.ones(1, dtype=torch.long))
    result: torch.Tensor = repeat((_next_point,), count - 1, carried, (points,))[0]
    return result


def _next_point(
    chosen: torch.Tensor, distances: torch.Tensor, last: torch.Tensor, count: torch.Tensor, points: torch.Tensor,
) -> list[torch.Tensor]:
    """Choose one point more: the one whose distance from all chosen ones is greatest."""
    distances = torch.minimum(distances, (points - points.index_select(0, last)).square().sum(1))
    last = distances.argmax().reshape(1)
    chosen = torch.where(torch.arange(chosen.shape[0]) == count, last, chosen)
    return [chosen, distances, last, count + 1]


def nearest(x: torch.Tensor, y: torch.Tensor, batch_x: Any = None, batch_y: Any = None) -> torch.Tensor:
    """Return for each point of one set the nearest of another.

    Args:
        x: ``[N, F]`` or ``[N]``.
        y: ``[M, F]`` or ``[M]``.
        batch_x: Number of the example that each point of ``x`` belongs to, a list or a tensor ``[N]``; only points of
            the same example are near each other. None for one example.
        batch_y: The same for ``y``.

    Returns:
        Indices into ``y``, ``[N]``; of equally near points the first.

    Raises:
        Error: An argument is of another type or size.
    """
    _check_points("nearest", "x", x)
    _check_points("nearest", "y", y)
    left, right = x.detach().reshape(x.shape[0], -1), y.detach().reshape(y.shape[0], -1)
    if left.shape[1] != right.shape[1]:
        raise createPoptorchError(
            f"poptorch.nearest: points of x have {left.shape[1]} coordinates, those of y {right.shape[1]}"
        )
    distances = (left.unsqueeze(1) - right.unsqueeze(0)).square().sum(-1)
    if batch_x is not None or batch_y is not None:
        examples = _examples("batch_x", batch_x, x.shape[0]).unsqueeze(1)
        others = _examples("batch_y", batch_y, y.shape[0]).unsqueeze(0)
        distances = torch.where(examples == others, distances, math.inf)
    return distances.argmin(1)


def _examples(name: str, batch: Any, size: int) -> torch.Tensor:
    if batch is None:
        return torch.zeros(size, dtype=torch.int32)
    if isinstance(batch, list) and all(isinstance(number, int) for number in batch):
        batch = torch.tensor(batch, dtype=torch.int32)
    if not isinstance(batch, torch.Tensor) or batch.is_floating_point():
        raise createPoptorchError(f"poptorch.nearest: {name} must be a list of integers or a tensor of them")
    if batch.numel() != size:
        raise createPoptorchError(f"poptorch.nearest: {name} has {batch.numel()} elements for {size} points")
    return batch.reshape(-1)


def _check_points(function: str, name: str, value: Any) -> None:
    if not isinstance(value, torch.Tensor):
        raise createPoptorchError(f"poptorch.{function}: {name} must be a tensor, not {type(value)}")
    if value.dim() not in (1, 2):
        raise createPoptorchError(f"poptorch.{function}: {name} must be [N] or [N, F], not {list(value.shape)}")
