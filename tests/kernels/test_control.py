"""What a loop does between its steps: rows in and out on guarded buffers, counting, a seed for each trip, jumps."""

import pytest
import torch

from tests.kernels.elem_planner import MiniPlanner
from torchipu._kernels.abi import Plan, run_kernel
from torchipu._kernels.table.control import COUNT, FORK, PUT_ROW, TAKE_ROW, CountInts, RowInts
from torchipu._kernels.table.copy import FILL, FillInts

ROW = 100_001  # bytes; more than one thread's share, and odd


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("trip", [0, 2])
def test_rows_are_taken_and_put_where_the_counter_says(threads: int, trip: int) -> None:
    plan = MiniPlanner(threads)
    table = torch.randint(0, 255, (3, ROW), dtype=torch.uint8)
    held, counter = plan.hold(table), plan.hold(torch.tensor([trip]))
    row, other = plan.scratch((ROW,), held.dtype), plan.scratch((3, ROW), held.dtype)
    plan.step(TAKE_ROW, [row], [held, counter], ints=RowInts(ROW), items=ROW, grain=65_536)
    assert torch.equal(plan.fetch(row), table[trip])
    before = plan.fetch(other).clone()
    plan.step(PUT_ROW, [other], [row, counter], ints=RowInts(ROW), items=ROW, grain=65_536)
    before[trip] = table[trip]
    assert torch.equal(plan.fetch(other), before)


def test_counting_ends_with_the_last_trip() -> None:
    counter, done = torch.tensor([0]), torch.tensor([True])
    for trip in range(1, 4):
        run_kernel(COUNT, [counter.data_ptr(), done.data_ptr()], ints=CountInts(3))
        assert counter.item() == trip
        assert done.item() is (trip == 3)


def test_every_trip_of_every_seed_has_a_seed_of_its_own() -> None:
    seeds = set()
    for seed in (0, 1, -5, 2**62):
        for trip in range(100):
            mine, state = torch.zeros(4, dtype=torch.int64), torch.tensor([seed, 2, 7, 11])
            counter = torch.tensor([trip])
            run_kernel(FORK, [mine.data_ptr(), state.data_ptr(), counter.data_ptr()])
            assert mine[1:].tolist() == [2, 7, 11]
            seeds.add(int(mine[0]))
    assert len(seeds) == 400


@pytest.mark.parametrize("flag", [True, False])
def test_a_jump_is_taken_unless_its_boolean_is_true(flag: bool) -> None:
    condition, out = torch.tensor([flag]), torch.zeros(1, dtype=torch.uint8)
    plan = Plan(2)
    plan.add_jump(2, 0)
    plan.add_step(FILL, [1], [0], FillInts(1, 5), (), 1, 1, 0)
    plan.add_jump(3)
    plan.bind(0, condition.data_ptr())
    plan.bind(1, out.data_ptr())
    plan.run((0, 0), (0, 3), (3, 3), 1, 1, 1)
    assert out.item() == (5 if flag else 0)


def test_a_jump_by_a_buffer_that_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="buffer 7"):
        Plan(2).add_jump(0, 7)
