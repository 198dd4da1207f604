"""For which sizes a device program is taken to fit: held to the programs that are compiled for them."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from torchipu.backend import COUNTS, ipu_backend, symbolic
from torchipu.backend.fitting import Checked, larger
from torchipu.compiler import try_graph
from torchipu.ir.settling import Settling
from torchipu.ir.sizes import settled


class Scores(nn.Module):
    """Attention over ``[N, T, 64]`` whose scores are written."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x):
        q, k, v = self.before(x).chunk(3, -1)
        return self.after((q @ k.transpose(1, 2)).softmax(-1) @ v)


def dense():
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.LayerNorm(256), nn.Linear(256, 64))


@pytest.fixture
def graphs(monkeypatch):
    """Graphs of symbolic sizes that are captured, each once."""
    seen = []
    plain = symbolic.SymbolicGraph.program

    def program(self, arguments):
        made = plain(self, arguments)
        if self not in seen:
            seen.append(self)
        return made

    monkeypatch.setattr(symbolic.SymbolicGraph, "program", program)
    return seen


@pytest.mark.parametrize("make", [Scores, dense])
def test_what_is_said_of_other_sizes_is_no_less_than_they_take(make, graphs):
    run = torch.compile(make(), backend=ipu_backend, dynamic=True)
    run(torch.randn(2, 20, 64, requires_grad=True)).square().sum().backward()
    assert len(graphs) == 2
    judged = 0
    for graph in graphs:
        (placed,) = graph.placed
        for length, rows in ((20, 2), (40, 2), (20, 8), (160, 2), (64, 16), (320, 4)):
            numbers = graph.symbols.sizes.numbers([rows, length])
            num_bytes = settled(placed.num_bytes, numbers)
            real = Checked.of(
                try_graph(Settling(numbers).graph(placed.imported.graph), graph.recipe.options, graph.recipe.target),
                num_bytes,
            )
            for known in graph.checked:
                growth = max(new / old for new, old in zip(num_bytes, known.num_bytes, strict=True) if old)
                assert real.share <= known.lasting + (known.share - known.lasting) * max(1, growth) + 0.01
                judged += 1
    assert judged == 24


def test_all_sizes_grow_to_a_tensor_sixteen_times_as_large_and_none_beyond_what_it_can_be():
    assert larger([20], [math.inf], 16) == [320]
    assert larger([2, 20], [math.inf, math.inf], 16) == [8, 80]
    assert larger([2, 20], [math.inf, 64], 16) == [8, 64]
    assert larger([2, 64], [math.inf, 64], 16) == [32, 64]
    assert larger([2, 0.5], [math.inf, math.inf], 16) == [32, 0.5]
    assert larger([64], [64], 16) == [64]


def test_a_program_may_grow_unchecked_up_to_four_fifths_of_a_tile():
    known = Checked([100, 0, 50], share=0.2, lasting=0.0)
    assert known.covers([400, 0, 50])
    assert known.covers([100, 8, 200])
    assert not known.covers([402, 0, 50])
    assert not known.covers([100, 50])
    full = Checked([100], share=0.95, lasting=0.5)
    assert full.covers([100])
    assert full.covers([40])
    assert not full.covers([101])
    resting = Checked([100], share=0.5, lasting=0.25)  # half of it does not grow
    assert resting.covers([200])
    assert not resting.covers([240])


def test_sizes_within_those_looked_at_ahead_are_not_compiled_for_the_device():
    model = Scores()
    run = torch.compile(model, backend=ipu_backend, dynamic=True)
    before = COUNTS.device_programs
    with torch.no_grad():
        for rows, length in ((2, 20), (3, 33), (8, 80), (2, 128), (4, 200), (4, 310)):
            x = torch.randn(rows, length, 64)
            torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    assert COUNTS.device_programs - before == 1


def test_a_larger_size_that_nobody_may_have_is_no_error(monkeypatch, caplog):
    def broken(*arguments, **named):
        raise ValueError("no such sizes")

    monkeypatch.setattr(symbolic, "try_graph", broken)
    caplog.set_level("DEBUG", "torchipu.sizes")
    model = nn.Linear(8, 4)
    run = torch.compile(lambda x: functional.relu(model(x)), backend=ipu_backend, dynamic=True)
    with torch.no_grad():
        for rows in (3, 5):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(run(x), functional.relu(model(x)))
    assert "a larger size is not looked at ahead" in caplog.text
