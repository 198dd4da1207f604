"""Vertices of ops that move elements or fill them in, against the ops themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch

from tests.device.tilings.judged import Judged, judge

X = torch.Tensor
F = torch.nn.functional
SGD = partial(torch.optim.SGD, lr=0.1)


class Calls(torch.nn.Module):
    """A weight added to the input, and a function of both, without autograd where it is not trained."""

    def __init__(self, function: Callable[[X], X], *shape: int) -> None:
        super().__init__()
        self.function, self.weight = function, torch.nn.Parameter(torch.randn(*shape))

    def forward(self, x: X) -> X:
        y = self.function(x + self.weight)
        return (y * y).sum() if y.is_floating_point() else y


def served(machine: Judged, *targets: str) -> None:
    """Require that vertices computed these, by kernels."""
    assert set(targets) <= set(machine.tiled)
    assert not set(targets) & set(machine.whole)
    assert not set(targets) & set(machine.without_kernel)


def trained(function: Callable[[X], X], *shape: int, dtype: torch.dtype = torch.float32) -> Judged:
    """Judge a step of training with a function of a tensor of a shape."""
    return judge(Calls(function, *shape).to(dtype), torch.randn(1, *shape[1:], dtype=dtype), optimizer=SGD)


MOVES: list[tuple[str, Callable[[X], X], tuple[int, ...]]] = [
    ("cat", lambda x: torch.cat([x, x[:, :2] * 2, x[:, 3:4]], 1), (5, 7, 9)),
    ("cat", lambda x: torch.cat([x, x], -1), (33, 17)),
    ("stack", lambda x: torch.stack([x, x * 2, -x], 1), (5, 7)),
    ("constant_pad_nd", lambda x: F.pad(x, (2, -1, 0, 3), value=1.5), (5, 7, 9)),
    ("slice_scatter", lambda x: torch.slice_scatter(x, x[:, :3] * 2, 1, 1, 7, 2), (5, 7)),
    ("select_scatter", lambda x: torch.select_scatter(x, x[:, 2] * 2, -1, 3), (5, 7)),
    ("repeat", lambda x: x.repeat(2, 3, 1), (5, 7)),
    ("flip", lambda x: x.flip(0, -1), (5, 7, 3)),
    ("roll", lambda x: x.roll((2, -1), (0, 1)), (5, 7)),
    ("roll", lambda x: x.roll(4), (5, 7)),
    ("tril", lambda x: x.tril(-1), (3, 5, 7)),
    ("triu", lambda x: x.triu(2), (5, 7)),
    ("diag_embed", lambda x: torch.diag_embed(x, 1, 0, 2), (5, 7)),
    ("diagonal_scatter", lambda x: torch.diagonal_scatter(x, x.diagonal(1) * 2, 1), (5, 7)),
    ("reflection_pad1d", lambda x: F.pad(x, (2, 3), mode="reflect"), (5, 3, 7)),
    ("replication_pad2d", lambda x: F.pad(x, (2, 3, 1, 0), mode="replicate"), (2, 3, 5, 7)),
    ("im2col", lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=2), (2, 3, 9, 8)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("name", "function", "shape"), MOVES)
def test_moves(name: str, function: Callable[[X], X], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    machine = trained(function, *shape, dtype=dtype)
    served(machine, f"aten.{name}.default")


@pytest.mark.parametrize("padding", [(2, 3, 1, 0), (-1, 2, 3, -2), (7, 7, 5, 4)])
def test_circular_padding(padding: tuple[int, ...]) -> None:
    machine = trained(lambda x: F.pad(x, padding, mode="circular"), 2, 3, 5, 7)
    served(machine, "ipu.circular_pad.default", "ipu.circular_pad_backward.default")


def test_gradients_of_parts() -> None:
    machine = trained(lambda x: x[:, 1:6:2].sum() * x.select(0, 3) + x.diagonal(-1).sum(), 5, 7)
    served(machine, "aten.slice_backward.default", "aten.select_backward.default", "aten.diagonal_backward.default")


def test_types_that_differ() -> None:
    machine = judge(Calls(lambda x: torch.cat([x > 0, x.abs() < 1, x.to(torch.int32) + 1], 0), 5, 7), torch.randn(5, 7))
    served(machine, "aten.cat.default")


class Fills(torch.nn.Module):
    """Values that come from nowhere."""

    def forward(self, x: X, n: X) -> tuple[X, ...]:
        like = torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 2.5), x.new_full((3, 3), -1.0)
        return (
            *like, torch.arange(3, 4003, 2), torch.arange(0.5, 700.3, 0.3, dtype=x.dtype), torch.arange(9, 0, -2),
            torch.linspace(-1, 1, 999, dtype=x.dtype), torch.linspace(3, 3, 1), torch.eye(37, 11),
            torch.full((700,), 7), torch.ones(600, dtype=torch.bool), torch.fill(x, n), torch.scalar_tensor(3.0),
            torch.linspace(0, 100, 11, dtype=torch.int32),
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fills(dtype: torch.dtype) -> None:
    machine = judge(Fills(), torch.randn(40, 33, dtype=dtype), torch.tensor(2.25, dtype=dtype))
    served(machine, "aten.arange.start_step", "aten.zeros_like.default", "aten.full_like.default")
    assert set(machine.whole) <= {"aten.linspace.default"}
