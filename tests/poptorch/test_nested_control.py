"""Loops and choices in bodies of others that use tensors from around them, at any depth: values of eager float64."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from torchipu import poptorch
from torchipu.poptorch import cond, for_loop

X = torch.ones(2)


class Model(nn.Module):
    """Calls a function with itself and its input."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.call, self.linear = call, nn.Linear(2, 2)
        self.register_buffer("count", torch.zeros(2))

    def forward(self, a: torch.Tensor) -> Any:
        return self.call(self, a)


def accumulating(model: Model, a: torch.Tensor) -> Any:
    def inner(w: torch.Tensor, u: torch.Tensor) -> Any:
        model.count.add_(u)
        return [w + model.count]

    return [*for_loop(3, lambda u: for_loop(2, lambda w: inner(w, u), [u]), [a]), model.count * 1]


def sliced(model: Model, a: torch.Tensor) -> Any:
    rows = torch.stack([a, a * 2, a * 3])

    def row(i: torch.Tensor) -> torch.Tensor:
        return poptorch.dynamic_slice(rows, 0, i, 1, 1).view(2)

    def outer(u: torch.Tensor, j: torch.Tensor) -> Any:
        w, _ = for_loop(2, lambda w, i: [w + row(i) + u, i + 1], [u, j])
        return [w + row(j), j + 1]

    return for_loop(2, outer, [a, torch.zeros(1, dtype=torch.int32)])


CALLS: dict[str, Callable[[Model, torch.Tensor], Any]] = {
    "three deep": lambda m, a: for_loop(
        3, lambda u: for_loop(2, lambda w: for_loop(2, lambda z: [z + w + u + a], [w]), [u]), [a],
    ),
    "carried twice": lambda m, a: for_loop(
        3, lambda u, v: for_loop(2, lambda w, y: [w + u, y * v + u], [u, u]), [a, a],
    ),
    "two in a row": lambda m, a: for_loop(
        3, lambda u: for_loop(2, lambda w: [w + u], for_loop(2, lambda w: [w * u], [u])), [a],
    ),
    "choice in a loop": lambda m, a: for_loop(
        3, lambda u: cond(u.sum() > 5, lambda w: [w * 0.5 + u], [u], lambda w: [w + u + a], [u]), [a],
    ),
    "loop in a choice": lambda m, a: cond(
        a.sum() > 1, lambda w: for_loop(2, lambda z: [z + w + a], [w]), [a], lambda w: [w - a], [a],
    ),
    "choice in a choice": lambda m, a: cond(
        a.sum() > 1, lambda w: cond(w.sum() > 3, lambda z: [z + w], [w], lambda z: [z - w], [w]), [a],
        lambda w: [w - a], [a],
    ),
    "choice in a loop in a loop": lambda m, a: for_loop(3, lambda u: for_loop(2, lambda w: cond(
        (w + u).sum() > 9, lambda q: [q - u * 0.1], [w], lambda q: [q + u + w], [u],
    ), [u]), [a]),
    "views": lambda m, a: for_loop(3, lambda u: for_loop(2, lambda w: [w + u.view(2)], [u.view(2)]), [a]),
    "written before": lambda m, a: for_loop(3, lambda u: for_loop(2, lambda w: [w + u], [u.add_(1)]), [a]),
    "written within": lambda m, a: for_loop(3, lambda u: for_loop(2, lambda w: [w.add_(u)], [u]), [a]),
    "weights": lambda m, a: for_loop(3, lambda u: for_loop(2, lambda w: [m.linear(w) + u], [u]), [a]),
    "a buffer written by what is around": accumulating,
    "returned from around": lambda m, a: for_loop(3, lambda u: [u + for_loop(2, lambda w: [u], [a])[0]], [a]),
    "slices": sliced,
}


@pytest.mark.whole
@pytest.mark.parametrize("name", CALLS)
def test_a_nested_body_sees_what_is_around_it(name: str) -> None:
    model = Model(CALLS[name]).eval()
    judge = copy.deepcopy(model).double()
    step = poptorch.inferenceModel(model)
    for x in (X * 3, X):  # compiled with one, run with another
        got = step(x)
        with torch.no_grad():
            expected = judge(x.double())
        for one, other in zip(got, expected, strict=True):
            torch.testing.assert_close(one.double(), other.double(), rtol=1e-5, atol=1e-6)


def test_a_constant_written_in_a_nested_body_is_refused_by_its_name() -> None:
    model = Model(lambda m, a: for_loop(3, lambda u: for_loop(2, lambda w: [w + m.kept.add_(1)], [u]), [a]))
    model.kept = torch.zeros(2)
    with pytest.raises(poptorch.Error, match="Attribute kept is written"):
        poptorch.inferenceModel(model)(X)
