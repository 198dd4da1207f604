"""What one strand alone touches lies in the scratch of its threads: which arguments do, and the same values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import torchipu
import torchipu.host.arrangement
import torchipu.host.planner
from torchipu._kernels.abi import Plan
from torchipu._kernels.table.copy import FILL, FillInts
from torchipu.host.plan import HostPlan
from torchipu.host.steps import Step
from torchipu.host.storage import Allocation, Place
from torchipu.host.unit_memory import Near, Ownership, lie_apart, near_arguments
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, contiguous_strides
from torchipu.optable.samples import Samples

EDGES, NODES, WIDTH = 5000, 70, 48
Function = Callable[..., torch.Tensor]


def held(buffer: int, *shape: int, offset: int = 0, strides: tuple[int, ...] | None = None) -> HostTensor:
    return HostTensor(buffer, offset, shape, strides or contiguous_strides(shape), DType.FLOAT)


def step(out: HostTensor, *sources: HostTensor, count: int) -> tuple[Step, Samples]:
    samples = Samples.of(count, out, *sources)
    return Step(None, FILL, (out,), sources, items=count, samples=samples), samples


def near(
    *members: tuple[Step, Samples], others: tuple[Step, ...] = (), kept: tuple[HostTensor, ...] = (),
    place: Place = Place.ARENA, chunk: int = 8,
) -> list[Near]:
    allocations = [Allocation(number, 1 << 20, place) for number in range(10)]
    steps = [*(one for one, _ in members), *others]
    return near_arguments(members, chunk, Ownership.of(steps, kept, allocations))


@pytest.mark.parametrize(("windows", "expected"), [
    ([(0, 8, 8)], True), ([(4, 8, 8), (0, 4, 8)], True), ([(-4, 4, 8)], True),
    ([(0, 12, 8)], False), ([(0, 4, 8), (8, 12, 8)], False), ([(0, 4, 8), (4, 8, 16)], False), ([(0, 0, 8)], False),
    ([(0, 4, 0)], False), ([], False),
])
def test_parts_of_samples_lie_apart_where_all_steps_are_alike_and_as_long_as_these(
    windows: list[tuple[int, int, int]], expected: bool,
) -> None:
    assert lie_apart(windows) is expected  # each from a byte to another, and bytes to that of the next sample


FIRST, SECOND = step(held(1, 40, 4), held(0, 40, 4), count=40), step(held(2, 40, 4), held(1, 40, 4), count=40)


def test_what_is_made_for_the_next_step_alone_is_near() -> None:
    # 8 samples of 16 bytes; results of the second are touched by nothing else, as those of a dropout's mask may be
    assert near(FIRST, SECOND) == [((0, 0, 128),), ((0, 128, 128), (1, 0, 128))]


@pytest.mark.parametrize("reason", ["read by others", "written by others", "kept", "not in an arena"])
def test_what_others_need_is_not(reason: str) -> None:
    others: dict[str, tuple[Step, ...]] = {
        "read by others": (step(held(3, 40, 4), held(1, 40, 4), held(2, 40, 4), count=40)[0],),
        "written by others": (
            step(held(1, 40, 4), held(3, 40, 4), count=40)[0], step(held(2, 40, 4), held(3, 40, 4), count=40)[0],
        ),
    }
    kept = (held(1, 40, 4), held(2, 40, 4)) if reason == "kept" else ()
    place = Place.OUTPUT if reason == "not in an arena" else Place.ARENA
    assert near(FIRST, SECOND, others=others.get(reason, ()), kept=kept, place=place) == [(), ()]


def test_what_is_there_before_or_is_added_to_is_not() -> None:
    adding = replace(FIRST[0], reads_outputs=True), FIRST[1]
    assert near(adding, SECOND) == [(), ((0, 0, 128),)]
    in_place = step(held(1, 40, 4), held(1, 40, 4), count=40)
    assert near(in_place, SECOND) == [(), ((0, 0, 128),)]


def test_parts_of_a_whole_are_near_together() -> None:
    whole = 40, 8
    left = step(held(1, 40, 3, strides=(8, 1)), held(0, 40, 3), count=40)
    right = step(held(1, 40, 5, offset=3, strides=(8, 1)), held(3, 40, 5), count=40)
    reader = step(held(2, *whole), held(1, *whole), count=40)
    assert near(left, right, reader, kept=(held(2, *whole),)) == [((0, 0, 256),), ((0, 12, 256),), ((1, 0, 256),)]


def test_parts_that_reach_into_other_samples_are_not() -> None:
    wide = step(held(1, 39, 8, strides=(4, 1)), held(0, 39, 8), count=39)
    reader = step(held(2, 39, 4), held(1, 39, 4), count=39)
    assert near(wide, reader, kept=(held(2, 39, 4),)) == [(), ()]
    behind = step(held(2, 39, 4), held(1, 39, 4, offset=4), count=39)  # of the sample after
    assert near(FIRST, behind, kept=(held(2, 39, 4),)) == [(), ()]


# --------------------------------------------------------------------------- samples
def test_what_lies_apart_is_divided_where_its_leading_dimensions_are_the_samples() -> None:
    place, scale = held(0, 40, 4, 3, strides=(32, 8, 1)), held(1, 40, 4, 3, strides=(4, 1, 0))
    shared = held(2, 40, 4, 3, strides=(0, 3, 1))
    samples = Samples.of(480, held(3, 40, 4, 3), place, scale, shared)
    assert samples.strides == (4, 0, 0, 0)
    rows, pairs = samples.counted(40), samples.counted(160)
    assert rows is not None
    assert rows.strides == (48, 128, 16, 0)
    assert pairs is not None
    assert pairs.strides == (12, 32, 4, 0)
    assert samples.counted(7) is None
    assert set(samples.coarser()) == {40, 160}


def test_what_is_picked_grows_with_the_samples() -> None:
    picked = Samples.of(480, held(0, 480), None).picking(1, 12).counted(40)
    assert picked is not None
    assert picked.picked == (0, 144)


# --------------------------------------------------------------------------- programs
def scored(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    pairs = torch.cat([x[index[0]], x[index[1]]], -1)
    return torch.nn.functional.leaky_relu((pairs * weight).sum(-1), 0.2)


def normalised(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    rows = x[index[0]] * 2 + 1
    rows = torch.nn.functional.layer_norm(rows, (WIDTH,))
    return (rows * weight[:WIDTH]).softmax(-1).amax(-1) + rows.var(-1)


def kept_too(x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    rows = x[index[0]]
    scaled = rows * weight[:WIDTH]
    return scaled, scaled.sum(-1)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x, weight = torch.randn(NODES, WIDTH, generator=generator), torch.randn(2 * WIDTH, generator=generator)
    return x, torch.randint(0, NODES, (2, EDGES), generator=generator), weight


def compiled(function: Function, threads: int) -> tuple[torch.Tensor, ...]:
    torch._dynamo.reset()
    run = torch.compile(function, backend="ipu", fullgraph=True, options={"host_threads": threads})
    found = run(*inputs())
    return found if isinstance(found, tuple) else (found,)


@pytest.mark.parametrize("function", [scored, normalised, kept_too])
def test_programs_compute_the_same_with_and_without_it_on_any_number_of_threads(
    function: Function, monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[HostPlan] = []
    arranged = torchipu.host.planner.arranged
    monkeypatch.setattr(torchipu.host.planner, "arranged", lambda emitted: plans.append(arranged(emitted)) or plans[-1])
    found = [compiled(function, threads) for threads in (1, 2, 3)]
    assert any(place for plan in plans for _, _, phases in plan.segments for phase in phases
               for _, members in phase for _, _, place in members)
    monkeypatch.setattr(torchipu.host.arrangement, "in_phases", lambda parts, *_: ([list(part) for part in parts], []))
    alone = compiled(function, 1)
    x, index, weight = inputs()
    judged = function(x.double(), index, weight.double())
    for values in found:
        for mine, other, wanted in zip(
            values, alone, judged if isinstance(judged, tuple) else (judged,), strict=True,
        ):
            assert torch.equal(mine, other)
            torch.testing.assert_close(mine.double(), wanted, rtol=1e-5, atol=1e-5)


def test_the_engine_refuses_what_a_step_has_not() -> None:
    for wrong in ((1, 0, 8), (-1, 0, 8), (0, -8, 8), (0, 0, -8)):
        plan = Plan(1)
        for _ in range(2):
            plan.add_step(FILL, [0], [0], FillInts(4, 0), (), 4, 1, 0)
        with pytest.raises(ValueError, match="of step 1 cannot be near"):
            plan.set_phases([(0, 2, [[(4, [(0, 1, ()), (1, 1, (wrong,))])]])])
