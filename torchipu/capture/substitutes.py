"""Functions of torch that Dynamo cannot trace, in a form that it can.

Dynamo asks no backend before it traces, so what stands here is registered for the process, through torch's own
`torch.compiler.substitute_in_graph`. Eager code does not come here. Other backends do, and compute the same with a
check in the graph where they had a break of the graph before.
"""

from __future__ import annotations

import contextlib
import math

import torch
import torch.nn.functional as F
from torch import Tensor


def _gaussian_nll_loss(
    input: Tensor, target: Tensor, var: Tensor | float, full: bool = False, eps: float = 1e-6, reduction: str = "mean",
) -> Tensor:
    """`F.gaussian_nll_loss` with an assertion in the graph where torch branches on the values of ``var``."""
    if isinstance(var, float):
        if var < 0:
            raise ValueError("var has negative entry/entries")
        var = var * torch.ones_like(input)
    else:
        torch._assert_async(~torch.any(var < 0), "var has negative entry/entries")
    if var.size() != input.size():
        if input.size()[:-1] == var.size():
            var = var.unsqueeze(-1)
        elif input.ndim != var.ndim or sum(
            wanted for given, wanted in zip(input.size(), var.size(), strict=True) if given != wanted
        ) != 1:
            raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(reduction + " is not valid")
    var = var.clone()
    with torch.no_grad():
        var.clamp_(min=eps)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    if full:
        loss += 0.5 * math.log(2 * math.pi)
    if reduction == "mean":
        return loss.mean()
    return loss.sum() if reduction == "sum" else loss


def register() -> None:
    """Tell Dynamo, unless someone else has: it refuses a second form of a function."""
    with contextlib.suppress(ValueError):
        # torch declares arguments with defaults as optional, which these are not.
        torch.compiler.substitute_in_graph(F.gaussian_nll_loss)(_gaussian_nll_loss)  # type: ignore[arg-type]
