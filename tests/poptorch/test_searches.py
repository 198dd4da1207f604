"""Beam search over CTC outputs, and searches among points: answers of exhaustive search."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from torchipu import poptorch
from torchipu.poptorch import _impl


def labels_of(way: tuple[int, ...], blank: int) -> tuple[int, ...]:
    """Return the labels that a way through the steps stands for."""
    return tuple(label for label, _ in itertools.groupby(way) if label != blank)


def by_exhaustion(log_probs: torch.Tensor, blank: int) -> list[tuple[tuple[int, ...], float]]:
    """Add up all ways to each label sequence, ``[T, C]``; the most likely first."""
    totals: dict[tuple[int, ...], float] = {}
    for way in itertools.product(range(log_probs.shape[1]), repeat=log_probs.shape[0]):
        chance = math.exp(sum(float(log_probs[step, label]) for step, label in enumerate(way)))
        labels = labels_of(way, blank)
        totals[labels] = totals.get(labels, 0.0) + chance
    return sorted(totals.items(), key=lambda item: -item[1])


@pytest.mark.parametrize("blank", [0, 2])
@pytest.mark.parametrize("on_device", [True, False])
def test_wide_beams_find_the_most_likely_sequences(blank: int, on_device: bool) -> None:
    torch.manual_seed(blank)
    probs = (torch.randn(5, 3, 4) * 2).log_softmax(2)
    lengths = torch.tensor([5, 3, 0], dtype=torch.int32)

    def model(probs: torch.Tensor, lengths: torch.Tensor) -> Any:
        return poptorch.ctc_beam_search_decoder(probs, lengths, blank=blank, beam_width=400, top_paths=3)

    found, sizes, paths = (poptorch.inferenceModel(model) if on_device else model)(probs, lengths)
    assert (found.shape, sizes.shape, paths.shape) == ((3, 3), (3, 3), (3, 3, 5))
    assert (found.dtype, sizes.dtype, paths.dtype) == (torch.float32, torch.int32, torch.int32)
    for sample in range(2):
        expected = by_exhaustion(probs[: lengths[sample], sample].double(), blank)[:3]
        for rank, (labels, chance) in enumerate(expected):
            assert tuple(paths[sample, rank, : sizes[sample, rank]].tolist()) == labels
            assert (paths[sample, rank, sizes[sample, rank] :] == blank).all()
            assert math.exp(float(found[sample, rank])) == pytest.approx(chance, rel=1e-5)
    assert sizes[2].tolist() == [0, 0, 0]
    assert found[2].tolist() == [0.0, -math.inf, -math.inf]  # no step: the empty sequence is certain


def test_narrow_beam_follows_the_best_prefix() -> None:
    # The best single way is "blank, blank", but label 1 has more ways in all: a beam of one loses them.
    probs = torch.tensor([[[0.6, 0.4]], [[0.6, 0.4]]]).log()
    lengths = torch.tensor([2])
    _, sizes, _ = poptorch.ctc_beam_search_decoder(probs, lengths, beam_width=1)
    assert sizes.tolist() == [[0]]
    found, sizes, paths = poptorch.ctc_beam_search_decoder(probs, lengths, beam_width=2)
    assert sizes.tolist() == [[1]]
    assert paths[0, 0, 0] == 1
    assert found.exp().item() == pytest.approx(0.64)


def test_beam_search_costs_more_with_more_beams() -> None:
    def cycles(width: int) -> int:
        settings = poptorch.Options()
        settings.logCycleCount(True)
        step = poptorch.inferenceModel(
            lambda p, n: poptorch.ctc_beam_search_decoder(p, n, beam_width=width), settings
        )
        step(torch.randn(10, 8, 30).log_softmax(2), torch.full((8,), 10))
        return step.cycleCount()

    assert cycles(200) > cycles(10)


@pytest.mark.parametrize(("change", "words"), [
    ({"probs": [1.0]}, "probs must be a tensor, not <class 'list'>"),
    ({"lengths": 3}, "lengths must be a tensor, not <class 'int'>"),
    ({"lengths": torch.zeros(3)}, r"probs must be \[T, N, C\] and lengths \[N\]"),
    ({"blank": 4}, "blank must be an integer from 0 to 3, not 4"),
    ({"beam_width": 0}, "beam_width must be an integer from 1, not 0"),
    ({"top_paths": 101}, "top_paths must be an integer from 1 to 100, not 101"),
])
def test_beam_search_checks_its_arguments(change: Any, words: str) -> None:
    given = {"probs": torch.randn(5, 2, 4), "lengths": torch.tensor([5, 5]), **change}
    with pytest.raises(poptorch.Error, match=words):
        poptorch.ctc_beam_search_decoder(**given)


# --------------------------------------------------------------------------- points
def farthest(points: torch.Tensor, count: int, first: int = 0) -> list[int]:
    """Choose points one by one in float64."""
    chosen = [first]
    while len(chosen) < count:
        apart = torch.cdist(points.double(), points[chosen].double()).min(1).values
        chosen.append(int(apart.argmax()))
    return chosen


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("ratio", [0.3, 1.0])
def test_fps_chooses_the_farthest_point_each_time(on_device: bool, ratio: float) -> None:
    torch.manual_seed(0)
    points, ptr = torch.randn(30, 3), [0, 11, 12, 30]

    def model(src: torch.Tensor) -> torch.Tensor:
        return poptorch.fps(src, ptr, ratio)

    got = (poptorch.inferenceModel(model) if on_device else model)(points)
    expected = [
        begin + place for begin, end in itertools.pairwise(ptr)
        for place in farthest(points[begin:end], math.ceil(ratio * (end - begin)))
    ]
    assert got.tolist() == expected


def test_fps_can_begin_anywhere() -> None:
    points = torch.randn(16, 2)
    step = poptorch.inferenceModel(lambda src: poptorch.fps(src, [0, 16], 0.25, random_start=True))
    starts = set()
    for _ in range(12):
        got = step(points).tolist()
        assert got == farthest(points, 4, got[0])
        starts.add(got[0])
    assert len(starts) > 1


@pytest.mark.parametrize("on_device", [True, False])
@pytest.mark.parametrize("kind", [list, torch.tensor, None])
def test_nearest_looks_within_the_same_example(on_device: bool, kind: Any) -> None:
    torch.manual_seed(1)
    x, y = torch.randn(7, 3), torch.randn(9, 3)
    batch_x, batch_y = [0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1, 1]

    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return poptorch.nearest(x, y) if kind is None else poptorch.nearest(x, y, kind(batch_x), kind(batch_y))

    got = (poptorch.inferenceModel(model) if on_device else model)(x, y)
    distances = torch.cdist(x.double(), y.double())
    if kind is not None:
        distances[torch.tensor(batch_x)[:, None] != torch.tensor(batch_y)] = math.inf
    assert got.tolist() == distances.argmin(1).tolist()


POINTS = torch.randn(4, 2)


@pytest.mark.parametrize(("call", "words"), [
    (lambda: poptorch.fps([1.0], [0, 1]), "src must be a tensor"),
    (lambda: poptorch.fps(POINTS, [0]), "ptr must be a list of at least 2 integers"),
    (lambda: poptorch.fps(POINTS, torch.tensor([0, 4])), "ptr must be a list of at least 2 integers"),
    (lambda: poptorch.fps(POINTS, [0, 5]), "ptr must grow, from 0 at least to the 4 points at most"),
    (lambda: poptorch.fps(POINTS, [0, 4], 1.5), "ratio must be a number above 0 and at most 1"),
    (lambda: poptorch.fps(POINTS, [0, 4], 0.5, 1), "random_start must be a bool"),
    (lambda: poptorch.nearest(POINTS, [1.0]), "y must be a tensor"),
    (lambda: poptorch.nearest(POINTS, POINTS[:, :1]), "points of x have 2 coordinates, those of y 1"),
    (lambda: poptorch.nearest(POINTS, POINTS, [0, 0], [0] * 4), "batch_x has 2 elements for 4 points"),
    (lambda: poptorch.nearest(POINTS, POINTS, None, 3), "batch_y must be a list of integers or a tensor of them"),
])
def test_searches_among_points_check_their_arguments(call: Any, words: str) -> None:
    with pytest.raises(poptorch.Error, match=words):
        call()


# --------------------------------------------------------------------------- names
def test_internal_cast_takes_float_and_half() -> None:
    assert _impl.internal_cast(POINTS, torch.half).dtype == torch.float16
    assert poptorch.inferenceModel(lambda x: _impl.internal_cast(x, torch.half))(POINTS).dtype == torch.float16
    with pytest.raises(ValueError, match="Invalid cast type"):
        _impl.internal_cast(POINTS, torch.int32)


def test_ops_are_in_the_module_of_their_name() -> None:
    assert all(getattr(poptorch.ops, name) is getattr(poptorch, name) for name in poptorch.ops.__all__)
