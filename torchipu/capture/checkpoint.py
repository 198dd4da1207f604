"""The user's word on what a recomputing backward keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

torch.library.define("torchipu::checkpoint", "(Tensor self) -> Tensor")


@torch.library.impl("torchipu::checkpoint", "CompositeExplicitAutograd")
def _copy(value: torch.Tensor) -> torch.Tensor:
    return value.clone()  # a result of an operator of torch's may not share its argument's storage


@torch.library.register_fake("torchipu::checkpoint")  # type: ignore[untyped-decorator]
def _like(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(value)


def _pass_on(context: Any, gradient: torch.Tensor) -> torch.Tensor:
    return gradient


torch.library.register_autograd("torchipu::checkpoint", _pass_on)


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
