"""Operators that choose among equal elements: PyTorch promises no choice; any is right that picks eager's values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tests.opinfo.samples import Call


@dataclass(frozen=True, slots=True)
class Choice:
    """How an operator chooses from the rows of its first tensor.

    Attributes:
        dim: Dimension that the rows lie along.
        values: Which result holds the elements that were chosen; None for none.
        positions: Which result says where they lie; None for none.
        keeps_dim: Whether the results have that dimension.
        distinct: Whether no element is chosen twice.
        promised: Whether PyTorch promises which of equal elements comes first.
    """

    dim: int = -1
    values: int | None = 0
    positions: int | None = 1
    keeps_dim: bool = True
    distinct: bool = True
    promised: bool = False


def _sort(dim: int = -1, descending: bool = False, stable: bool = False) -> Choice:
    return Choice(dim, promised=stable)


def _argsort(dim: int = -1, descending: bool = False, stable: bool = False) -> Choice:
    return Choice(dim, values=None, positions=0, promised=stable)


def _topk(k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Choice:
    return Choice(dim)


def _of_row(k: int, dim: int = -1, keepdim: bool = False) -> Choice:
    return Choice(dim, keeps_dim=keepdim, distinct=False)


CHOICES: dict[str, Callable[..., Choice]] = {
    "sort": _sort, "argsort": _argsort, "msort": lambda: Choice(0, positions=None), "topk": _topk,
    "kthvalue": _of_row, "mode": lambda dim=-1, keepdim=False: _of_row(1, dim, keepdim),
}
"""Operators of OpInfo, with what reads their further arguments."""


def choice_of(call: Call) -> Choice | None:
    """Return how a sample chooses; None where PyTorch promises its results."""
    read = CHOICES.get(call.op)
    if read is None:
        return None
    _, args, kwargs = call.arguments()
    choice = read(*args, **kwargs)
    return None if choice.promised else choice


def assert_same_choice(choice: Choice, chosen_from: torch.Tensor, ours: Sequence[Any], eagers: Sequence[Any]) -> None:
    """Raise AssertionError unless our results choose what eager's do, but for which of equal elements it is.

    Args:
        choice: How the operator chooses.
        chosen_from: Its first tensor.
        ours: Our results.
        eagers: Eager's, of the same types and shapes.
    """
    rows = chosen_from.detach()
    if choice.values is not None:
        torch.testing.assert_close(ours[choice.values], eagers[choice.values], rtol=0, atol=0, equal_nan=True)
    if choice.positions is None:
        return
    mine, theirs = (_with_dim(results[choice.positions], choice) for results in (ours, eagers))
    rows = rows if rows.dim() else rows.reshape(1)
    assert bool(((mine >= 0) & (mine < rows.shape[choice.dim])).all()), "a position lies outside of the row"
    picked, expected = rows.gather(choice.dim, mine), rows.gather(choice.dim, theirs)
    torch.testing.assert_close(picked, expected, rtol=0, atol=0, equal_nan=True)
    if choice.distinct:
        ordered = mine.sort(choice.dim).values
        assert not bool((ordered.diff(dim=choice.dim) == 0).any()), "a position comes twice in a row"


def assert_same_gradient(choice: Choice, chosen_from: torch.Tensor, ours: torch.Tensor, eagers: torch.Tensor) -> None:
    """Raise AssertionError unless gradients agree but for an exchange among equal elements of a row."""
    rows = chosen_from.detach()
    if not rows.dim():
        rows, ours, eagers = rows.reshape(1), ours.reshape(1), eagers.reshape(1)
    torch.testing.assert_close(_ranked(ours, rows, choice.dim), _ranked(eagers, rows, choice.dim), equal_nan=True)


def _with_dim(positions: torch.Tensor, choice: Choice) -> torch.Tensor:
    if not positions.dim():
        return positions.reshape(1)
    return positions if choice.keeps_dim else positions.unsqueeze(choice.dim)


def _ranked(gradient: torch.Tensor, rows: torch.Tensor, dim: int) -> torch.Tensor:
    """Return a gradient in the order of the elements it belongs to, among equal ones in its own."""
    own = gradient.argsort(dim=dim, stable=True)
    order = rows.gather(dim, own).argsort(dim=dim, stable=True)
    return gradient.gather(dim, own).gather(dim, order)
