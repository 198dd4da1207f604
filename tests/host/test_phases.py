"""Steps between two meetings of threads, and samples that go through several steps: values, order and refusals."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchipu
import torchipu.host.arrangement
from torchipu._kernels.abi import Plan
from torchipu._kernels.table.copy import FILL, FillInts
from torchipu.errors import ExecutionError
from torchipu.host.phases import Phases, in_phases, widen_lifetimes
from torchipu.host.plan import HostPlan
from torchipu.host.steps import Step
from torchipu.host.storage import Allocation, Place
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor, contiguous_strides
from torchipu.optable.samples import Samples


class Images(nn.Module):
    """Two convolutions with pools and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.hidden, self.head = nn.Linear(320, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(nn.functional.max_pool2d(self.first(x), 2))
        x = torch.relu(nn.functional.max_pool2d(self.second(x), 2))
        x = self.head(torch.relu(self.hidden(x.flatten(1))))
        return x, nn.functional.cross_entropy(x, y)


class Normalised(nn.Module):
    """Plain convolutions beside each other, normalisations, average pools, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.left, self.right = nn.Conv2d(1, 6, 3), nn.Conv2d(6, 6, 3), nn.Conv2d(6, 6, 3)
        self.batch, self.group, self.layer = nn.BatchNorm2d(6), nn.GroupNorm(2, 6), nn.LayerNorm(24)
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(24, 10)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.batch(torch.relu(self.stem(nn.functional.avg_pool2d(x, 2))))
        x = self.group(self.left(x)) + nn.functional.gelu(self.right(x))
        x = self.drop(self.layer(nn.functional.max_pool2d(x, 5).flatten(1)))
        x = self.head(x)
        return x, nn.functional.cross_entropy(x, y)


def data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, 1, 28, 28, generator=generator), torch.randint(10, (count,), generator=generator)


def trained(make: Callable[[], nn.Module], batch: int, threads: int) -> list[torch.Tensor]:
    """Return results and weights after three updates."""
    torch.manual_seed(0)
    model = make()
    step = torchipu.TrainStep(
        model, torch.optim.AdamW(model.parameters(), lr=0.01),
        torchipu.Options(device_iterations=3, host_threads=threads, seed=5),
    )
    results = step(*data(3 * batch))
    return [*results, *model.state_dict().values()]


def phases_of(plan: HostPlan) -> list[list[list[str]]]:
    """Return the kernels of every strand of every phase."""
    return [
        [[plan.steps[number].kernel.name for number, _, _ in members] for _, members in phase]
        for _, _, phases in plan.segments for phase in phases
    ]


@pytest.mark.usefixtures("captures_kept")
@pytest.mark.parametrize("make", [Images, Normalised])
@pytest.mark.parametrize("batch", [1, 7, 37, 40])
def test_bits_are_those_of_steps_one_after_another_on_any_number_of_threads(make, batch, monkeypatch):
    found = [trained(make, batch, threads) for threads in (1, 2, 3, 7)]
    monkeypatch.setattr(torchipu.host.arrangement, "in_phases", lambda parts, *_: ([list(part) for part in parts], []))
    expected = trained(make, batch, 2)
    for values in found:
        assert all(torch.equal(a, b) for a, b in zip(values, expected, strict=True))


@pytest.mark.parametrize("batch", [5, 40])
def test_gradients_equal_float64(batch):
    model = Images()
    exact = copy.deepcopy(model).double()
    before = [p.detach().clone() for p in model.parameters()]
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=1.0), torchipu.Options(host_threads=3))
    x, y = data(batch)
    step(x, y)
    exact(x.double(), y)[1].backward()
    for old, new, judge in zip(before, model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close((old - new).double(), judge.grad, rtol=1e-4, atol=1e-6)


def test_samples_go_through_both_convolutions_and_back():
    model = Images()
    step = torchipu.TrainStep(model, torch.optim.AdamW(model.parameters()), torchipu.Options(host_threads=2))
    step(*data(40))
    assert step._bound is not None
    plan = step._bound.host_plan
    strands = [strand for phase in phases_of(plan) for strand in phase]
    assert ["conv_max_pool", "conv_max_pool"] in strands
    assert ["sparse_conv_backward", "sparse_conv_backward"] in strands
    assert len(phases_of(plan)) < len(plan.steps) / 3


def test_a_refused_value_is_told_as_without_phases():
    for threads in (1, 3):
        model = Images()
        step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options(
            host_threads=threads,
        ))
        x, y = data(40)
        y[17] = 12
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(ExecutionError, match="nll_loss"):
            step(x, y)
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


# --------------------------------------------------------------------------- the pass by itself
def held(buffer: int, *shape: int, offset: int = 0) -> HostTensor:
    return HostTensor(buffer, offset, shape, contiguous_strides(shape), DType.FLOAT)


def step_of(out: HostTensor, source: HostTensor, items: int, grain: int, samples: Samples | None) -> Step:
    return Step(None, FILL, (out,), (source,), items=items, grain=grain, samples=samples)


def strands_of(*steps: Step) -> list[list[tuple[int, int]]]:
    """Return units and members of every strand of every phase."""
    phases = Phases()
    for number, step in enumerate(steps):
        phases.add(step, number, is_last=False)
    return [[(strand.units, len(strand.members)) for strand in phase] for phase in phases.ordered()]


def rows(out: HostTensor, source: HostTensor, count: int, grain: int, each: int = 1) -> Step:
    return step_of(out, source, -(-count // each), grain, Samples.of(count, out, source, each=each))


def test_rows_of_tokens_and_of_sentences_go_together():
    sentences = rows(held(1, 12, 8, 4), held(0, 12, 8, 4), 12, 3)
    tokens = rows(held(2, 96, 4), held(1, 96, 4), 96, 96)
    assert strands_of(sentences, tokens) == [[(4, 2)]]


def test_groups_of_rows_decide_how_many_go_together():
    first, second = rows(held(1, 40, 4), held(0, 40, 4), 40, 5), rows(held(2, 40, 4), held(1, 40, 4), 40, 1, each=10)
    assert strands_of(first, second) == [[(4, 2)]]


def test_as_few_samples_as_leave_threads_idle_go_through_one_step_after_another():
    def strands(count):
        return strands_of(*(rows(held(n + 1, count, 4), held(n, count, 4), count, 1) for n in range(2)))

    assert strands(4) == [[(4, 2)]]
    assert strands(3) == [[(3, 1)], [(3, 1)]]


def test_samples_of_one_byte_go_through_both_steps():
    flags = [HostTensor(number, 0, (40,), (1,), DType.BOOL) for number in range(3)]
    assert strands_of(*(rows(flags[n + 1], flags[n], 40, 5) for n in range(2))) == [[(8, 2)]]


def test_what_reads_other_rows_waits():
    first = rows(held(1, 40, 4), held(0, 40, 4), 40, 5)
    shifted = rows(held(2, 39, 4), held(1, 39, 4, offset=4), 39, 5)
    unknown = step_of(held(3, 40, 4), held(1, 40, 4), 40, 5, None)
    assert strands_of(first, shifted) == [[(8, 1)], [(8, 1)]]
    next_ones = rows(held(2, 40, 4), held(1, 40, 4, offset=4), 40, 5)  # of a buffer with a row more
    assert strands_of(first, next_ones) == [[(8, 1)], [(8, 1)]]
    assert strands_of(first, unknown) == [[(8, 1)], [(8, 1)]]


def test_too_much_for_a_cache_is_shared_out_step_by_step():
    first, second = (rows(held(n + 1, 40, 1 << 16), held(n, 40, 1 << 16), 40, 5) for n in range(2))
    assert strands_of(first, second) == [[(8, 1)], [(8, 1)]]


def test_what_overwrites_waits_for_readers():
    first = step_of(held(1, 40, 4), held(0, 40, 4), 8, 1, None)
    over = step_of(held(0, 40, 4), held(2, 40, 4), 8, 1, None)
    assert strands_of(first, over) == [[(8, 1)], [(8, 1)]]


def test_independent_steps_share_a_phase_and_single_ones_a_thread():
    first, beside = (step_of(held(n, 8), held(9, 8), 8, 1, None) for n in (1, 2))
    small = step_of(held(3, 8), held(9, 8), 1, 1, None)
    after = step_of(held(4, 8), held(3, 8), 1, 1, None)
    assert strands_of(first, beside, small, after) == [[(8, 1), (8, 1), (1, 2)]]


def test_threads_do_not_meet_for_next_to_nothing():
    small = [step_of(held(n, 8), held(9, 8), 1, 1, None) for n in (1, 2)]
    large = [step_of(held(n, 8192), held(9, 8192), 1, 1, None) for n in (1, 2)]
    assert strands_of(*small) == [[(1, 2)]]
    assert strands_of(small[0], large[1]) == [[(1, 2)]], "one alone would have work"
    assert strands_of(*large) == [[(1, 1), (1, 1)]]


def test_long_strands_end():
    steps = [step_of(held(n + 1, 8), held(n, 8), 1, 1, None) for n in range(40)]
    assert strands_of(*steps) == [[(1, 32)], [(1, 8)]]


def test_a_step_without_a_kernel_parts_phases():
    jump = Step(None, None, (), ())
    steps = [step_of(held(n, 8), held(9, 8), 8, 1, None) for n in range(4)]
    allocations = [Allocation(n, 32, Place.ARENA) for n in range(10)]
    _, segments = in_phases([[*steps[:2], jump, *steps[2:]]], allocations)
    assert [(begin, end) for begin, end, _ in segments] == [(0, 2), (3, 5)]


def test_a_unit_of_steps_that_follow_each_other_holds_whole_chunks_of_each() -> None:
    steps = [step_of(held(number + 1, 5), held(number, 5), 5, grain, None) for number, grain in enumerate((8, 6, 5))]
    allocations = [Allocation(number, 32, Place.ARENA) for number in range(4)]
    _, ((_, _, phases),) = in_phases([steps], allocations)
    assert phases == (((1, ((0, 8, ()), (1, 6, ()))),), ((1, ((2, 5, ()),)),))


def two_steps() -> Plan:
    plan = Plan(1)
    for _ in range(2):
        plan.add_step(FILL, [0], [0], FillInts(4, 0), (), 4, 1, 0)
    return plan


def test_what_a_phase_touches_is_kept_through_all_of_it_unless_one_thread_runs_it() -> None:
    alone, beside = [(1, ((0, 1, ()), (1, 1, ())))], [(3, ((2, 1, ()), (3, 1, ()))), (2, ((4, 1, ()),))]
    lives = [(0, 0), (0, 3), (3, 3), (4, 4), (-1, -1)]
    allocations = [Allocation(n, 4, Place.ARENA, first=first, last=last) for n, (first, last) in enumerate(lives)]
    widen_lifetimes(allocations, [(0, 5, [alone, beside])])
    assert [(one.first, one.last) for one in allocations] == [(0, 0), (0, 4), (2, 4), (2, 4), (-1, -1)]


def test_what_several_threads_run_one_after_another_is_kept_as_long_as_any_may_touch_it() -> None:
    allocations = [Allocation(0, 4, Place.ARENA, first=0, last=0), Allocation(1, 4, Place.ARENA, first=2, last=2)]
    shared, two = [(3, ((0, 1, ()), (1, 1, ())))], [(1, ((2, 1, ()),)), (1, ((3, 1, ()),))]
    widen_lifetimes(allocations, [(0, 4, [shared, two])])
    assert [(one.first, one.last) for one in allocations] == [(0, 1), (2, 3)]


def test_the_engine_refuses_phases_that_leave_steps_out():
    plan = two_steps()
    with pytest.raises(ValueError, match="do not run each of them once"):
        plan.set_phases([(0, 2, [[(4, [(0, 1, ())])]])])
    plan = two_steps()
    with pytest.raises(ValueError, match="are not all of step 0"):
        plan.set_phases([(0, 2, [[(2, [(0, 1, ()), (1, 1, ())])]])])


def test_what_phases_have_taken_stays_as_it_is() -> None:
    plan = two_steps()
    plan.set_phases([(0, 2, [[(4, [(0, 1, ()), (1, 1, ())])]])])
    with pytest.raises(ValueError, match="are added before phases take them"):
        plan.add_step(FILL, [0], [0], FillInts(4, 0), (), 4, 1, 0)


REDUCED: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "few columns": lambda x: (x.relu() * 2).sum(2),
    "largest of few columns": lambda x: (x.relu() * 2).amax(2),
    "exponentials of columns": lambda x: (x.relu() * 2).mT.logsumexp(2),
    "exponentials of few columns": lambda x: (x.relu() * 2).logsumexp(2),
    "along rows": lambda x: (x.relu() * 2).sum(3),
    "exponentials along rows": lambda x: (x.relu() * 2).logsumexp(3),
    "of a permuted value": lambda x: (x.relu() * 2).permute(3, 1, 0, 2).sum(3),
    "windows that overlap": lambda x: torch.bmm((x[0, 0].relu() * 2).unfold(0, 7, 1), x[0, :14, :7, :1]),
    "a transposed matrix": lambda x: (x[0, 0].relu() * 2).mT @ (x[0, 1].relu() * 2),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", REDUCED)
def test_a_sample_has_all_that_its_results_are_made_of(name: str, threads: int) -> None:
    """Columns lie in each other: a chunk of the step before makes those of a result if it has whole rows."""
    torch.manual_seed(0)
    x, function = torch.randn(7, 90, 20, 5), REDUCED[name]
    with torch.no_grad():
        found = torch.compile(function, backend="ipu", options={"host_threads": threads})(x)
    torch.testing.assert_close(found.double(), function(x.double()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("shape", "strides", "count", "step"), [
    ((6, 5, 4), (20, 4, 1), 6, 80), ((6, 5, 4), (20, 4, 1), 30, 16), ((6, 5, 4), (24, 4, 1), 6, 96),
    ((6, 4, 5), (20, 1, 4), 6, 80),  # columns of a sample
    ((4, 6, 5), (1, 20, 4), 4, 0),  # samples that are columns
    ((6, 5), (2, 1), 6, 0),  # windows that overlap
    ((6, 5), (5, -1), 6, 0), ((6, 5), (0, 1), 6, 0),
])
def test_samples_that_lie_in_each_other_are_not_divided(
    shape: tuple[int, ...], strides: tuple[int, ...], count: int, step: int,
) -> None:
    assert Samples.of(count, HostTensor(0, 0, shape, strides, DType.FLOAT)).strides == (step,)
