"""What must not change when a call is refused: weights, gradients, the states of the optimiser, the mode."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


def same(left: Any, right: Any) -> bool:
    """Whether two states are equal bit for bit, through lists and dicts."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(
            left.detach().contiguous().view(-1).view(torch.uint8) if left.dim() else left.detach(),
            right.detach().contiguous().view(-1).view(torch.uint8) if right.dim() else right.detach(),
        )
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(value, right[key]) for key, value in left.items())
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _state(model: torch.nn.Module, optimiser: torch.optim.Optimizer | None) -> dict[str, Any]:
    return copy.deepcopy({
        "model": dict(model.state_dict()),
        "gradients": [parameter.grad for parameter in model.parameters()],
        "wants_gradient": [parameter.requires_grad for parameter in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "optimiser": optimiser.state_dict() if optimiser is not None else None,
    })


@contextmanager
def unharmed(model: torch.nn.Module, optimiser: torch.optim.Optimizer | None = None) -> Iterator[None]:
    """Assert that the model and its optimiser are afterwards what they were before, bit for bit."""
    before = _state(model, optimiser)
    yield
    after = _state(model, optimiser)
    changed = [name for name, value in before.items() if not same(value, after[name])]
    assert not changed, f"changed: {changed}"
