"""The user's word on what a recomputing backward keeps; and an op that is there to be seen."""

from __future__ import annotations

from typing import Any

import torch
from torch import library
from torch.utils import _pytree as pytree


def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.clone()  # a result of an operator of torch's may not share its argument's storage


def _pass_on(context: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient


for _name in ("checkpoint", "nop"):
    library.define(f"torchipu::{_name}", "(Tensor self) -> Tensor")
    library.impl(f"torchipu::{_name}", "CompositeExplicitAutograd", _copy)
    library.register_fake(f"torchipu::{_name}", torch.empty_like)
    library.register_autograd(f"torchipu::{_name}", _pass_on)


def nop(value: torch.Tensor) -> torch.Tensor:
    """Return a value through an op that computes nothing and that no pass takes away."""
    result: torch.Tensor = torch.ops.torchipu.nop(value)
    return result


def recomputation_checkpoint(*values: Any) -> Any:
    """Keep tensors from the forward to the backward where the compiler would compute them again.

    Args:
        *values: Tensors, alone or in tuples, lists and dicts.

    Returns:
        The same values, to be used from here on: one alone as it is, several as a tuple.
    """
    kept = pytree.tree_map(lambda leaf: _marked(leaf), values)
    return kept[0] if len(values) == 1 else kept


def _marked(leaf: Any) -> Any:
    return torch.ops.torchipu.checkpoint(leaf) if isinstance(leaf, torch.Tensor) else leaf
