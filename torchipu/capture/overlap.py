"""An operator that marks an input or a result whose transfer from or to the host runs beside the computation."""

from __future__ import annotations

import torch
from torch import library

library.define("torchipu::overlap", "(Tensor self, str transfer, str mode) -> Tensor")


@library.impl("torchipu::overlap", "CompositeExplicitAutograd")
def _copy(value: torch.Tensor, transfer: str, mode: str) -> torch.Tensor:
    return value.clone()  # a result of an operator of torch's may not share its argument's storage


@library.register_fake("torchipu::overlap")  # type: ignore[untyped-decorator]
def _like(value: torch.Tensor, transfer: str, mode: str) -> torch.Tensor:
    return torch.empty_like(value)


def _pass_on(context: object, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    return gradient, None, None


library.register_autograd("torchipu::overlap", _pass_on)


def overlap(value: torch.Tensor, transfer: str, mode: str) -> torch.Tensor:
    """Mark a tensor.

    Args:
        value: An input or a result of the model.
        transfer: ``input`` or ``output``.
        mode: A name for the loop whose next turn is computed meanwhile; ``no_overlap`` for none.

    Returns:
        The same value.
    """
    result: torch.Tensor = torch.ops.torchipu.overlap(value, transfer, mode)
    return result
