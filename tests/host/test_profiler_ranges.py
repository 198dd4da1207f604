"""While torch.profiler records, every step of a program is a range that names kernel, op, block and line."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import torchipu
from torchipu.errors import ExecutionError
from torchipu.host import profiler_ranges


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torchipu.Block("front"):
            x = self.first(x).relu()
        with torchipu.Block("back"):
            return self.second(x).square().mean()


def ranges_of(call: object) -> list[str]:
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        call()  # type: ignore[operator]
    return [event.name for event in recorded.events() if event.name.startswith(profiler_ranges.PREFIX)]


def step_of(model: nn.Module) -> torchipu.TrainStep:
    options = torchipu.Options(gradient_accumulation=2, execution="sharded")
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1), options)


def test_ranges_of_a_training_step_name_op_block_line_and_module() -> None:
    step, x = step_of(Model()), torch.randn(8, 8)
    step(x)
    names = ranges_of(lambda: step(x))
    assert names[0] == "ipu::training"
    activated = [name for name in names if "aten.relu.default" in name]  # by the step of the product before it
    assert any("[front (" in name and "@ test_profiler_ranges.py:" in name for name in activated)
    products = [name for name in names if "aten.addmm.default" in name]
    assert any("[back (" in name and "second" in name for name in products)
    assert any("backward" in name for name in names)
    assert any("ipu.sgd.default" in name for name in names)


def test_ranges_of_torch_compile_lie_within_that_of_the_graph_and_change_no_value() -> None:
    torch._dynamo.reset()
    model, x = Model(), torch.randn(8, 8)
    compiled = torch.compile(model, backend="ipu")
    expected = compiled(x)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        assert torch.equal(compiled(x), expected)
    mine = [event for event in recorded.events() if event.name.startswith(profiler_ranges.PREFIX)]
    whole = next(event for event in mine if "graph" in event.name)
    steps = [event for event in mine if event is not whole]
    assert steps
    for event in steps:
        assert whole.time_range.start <= event.time_range.start <= event.time_range.end <= whole.time_range.end
    for before, after in itertools.pairwise(steps):
        assert before.time_range.end <= after.time_range.start


def test_without_a_profiler_the_engine_tells_nobody() -> None:
    step, x = step_of(Model()), torch.randn(8, 8)
    step(x)
    assert ranges_of(lambda: step(x))
    with profile(activities=[ProfilerActivity.CPU]):
        pass
    step(x)  # no watcher is left that would make ranges
    assert torch.autograd.profiler._is_profiler_enabled is False


def test_a_step_that_fails_ends_its_range() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda table, index: table[index] * 2, backend="ipu")
    table = torch.randn(4, 3)
    compiled(table, torch.tensor([1, 2]))
    with profile(activities=[ProfilerActivity.CPU]), pytest.raises(ExecutionError, match="index"):
        compiled(table, torch.tensor([1, 9]))
    assert any("graph" in name for name in ranges_of(lambda: compiled(table, torch.tensor([0, 3]))))
