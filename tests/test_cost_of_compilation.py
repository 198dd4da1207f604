"""What it takes to compile an operator does not grow with the model that it is in: lines of ours that are executed."""

import sys
from collections import Counter

import pytest
import torch
from torch import nn

import torchipu
from torchipu import backend
from torchipu.backend import ipu_backend
from torchipu.host.planner import Planner

OURS = torchipu.__path__[0]


class Loop(nn.Module):
    """A recurrent layer as a loop of Python, on ``[N, T, 8]``."""

    def __init__(self):
        super().__init__()
        self.given, self.hidden = nn.Linear(8, 16), nn.Linear(16, 16)

    def forward(self, x):
        hidden, steps = x.new_zeros(x.shape[0], 16), []
        for step in x.unbind(1):
            hidden = torch.tanh(self.given(step) + self.hidden(hidden))
            steps.append(hidden)
        return torch.stack(steps, 1)


class Pieces(nn.Module):
    """Many views of one value, each read with another one, on ``[N, T, 8]``."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.randn(8))

    def forward(self, x):
        x, length = x * self.factor, x.shape[1]
        return torch.cat([
            (x[:, at].reshape(2, 2, 8).transpose(0, 1)[..., :4] * x[:, at * 7 % length, 2:6].reshape(2, 2, 4)).flatten()
            for at in range(length)
        ])


class Sums(nn.Module):
    """One value that everything reads, and a sum that grows term by term, on ``[N, T, 8]``."""

    def __init__(self):
        super().__init__()
        self.centres = nn.Parameter(torch.randn(8))

    def forward(self, x):
        shares, total = torch.softmax(x[:, 0] * self.centres, 0), 0
        for at in range(x.shape[1]):
            total = total + torch.exp(-(x[:, at] - self.centres).square()) * shares
        return total


@pytest.fixture
def lines(monkeypatch):
    """Count lines of ours that our stages and the planner execute."""
    counted = Counter()

    def local(frame, event, argument):
        if event == "line":
            counted[frame.f_code] += 1
        return local

    def entered(frame, event, argument):
        return local if frame.f_code.co_filename.startswith(OURS) else None

    def traced(function):
        def call(*arguments, **named):
            before = sys.gettrace()
            if before is not None:  # one within another
                return function(*arguments, **named)
            sys.settrace(entered)
            try:
                return function(*arguments, **named)
            finally:
                sys.settrace(before)

        return call

    for owner, name in ((backend._Doors, "partition"), (backend._Doors, "_program"), (Planner, "plan")):
        monkeypatch.setattr(owner, name, traced(getattr(owner, name)))
    return counted


@pytest.mark.parametrize("kind", [Loop, Pieces, Sums])
def test_lines_for_a_step_do_not_grow_with_the_number_of_steps(kind, lines, monkeypatch):
    monkeypatch.setenv("TORCHIPU_CACHE", "0")
    found = []
    for steps in (4, 8, 20):
        torch._dynamo.reset()
        lines.clear()
        torch.compile(kind(), backend=ipu_backend)(torch.randn(4, steps, 8)).square().sum().backward()
        found.append(Counter(lines))
    few, some, many = found
    assert few.total() > 10_000
    each = (some.total() - few.total()) / 4
    # The same for each step, whatever is done once for a graph left out; what is quadratic more than doubles.
    assert (many.total() - some.total()) / 12 < 1.25 * each
    grown = {}
    for code, count in many.items():
        growth, expected = (count - some[code]) / 12, max(0, some[code] - few[code]) / 4
        if growth > 1.5 * expected + 40:
            grown[f"{code.co_filename}:{code.co_firstlineno} {code.co_name}"] = expected, growth
    assert not grown
