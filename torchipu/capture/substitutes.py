"""What Dynamo cannot or will not trace by itself, and what makes it.

Dynamo asks no backend before it traces, and offers one that is named to `torch.compile` no hook: so all of this holds
for the process, from when a door of torchipu is first opened. Eager code does not come here. Other backends in the
same process do, and compute the same values, with graphs that no longer break where they broke before.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.trace_rules import get_torch_obj_rule_map
from torch._dynamo.variables import PolyfilledFunctionVariable

from torchipu.capture import ctc


def gaussian_nll_loss(
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


def bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    """`torch.bincount` whose result has ``minlength`` elements: all values must be below it."""
    if minlength <= 0:
        return torch.bincount(input, weights, minlength)  # torch refuses to capture a size that values make
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    counted = torch.ones_like(input, dtype=dtype) if weights is None else weights.to(dtype)
    return torch.zeros(minlength, dtype=dtype, device=input.device).index_add(0, input.long(), counted)


def random_(self: Tensor, low: int = 0, high: int | None = None, **more: int | None) -> Tensor:
    """`Tensor.random_`, whose keyword ``from`` the code of a graph cannot hold.

    Without an upper bound, all whole numbers that the type holds exactly, but none that a signed 32-bit one does not.
    """
    low, high = int(more.get("from") or low), more.get("to", high)
    if high is None and (low == 0 or "from" in more):
        mantissa = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 31}.get(self.dtype)
        high = torch.iinfo(torch.int32).max if mantissa is None else 2**mantissa + 1
        if mantissa is None and self.dtype != torch.bool:
            high = min(high, torch.iinfo(self.dtype).max)
        high = 2 if self.dtype == torch.bool else high
    elif high is None:
        low, high = 0, low
    return self.copy_(torch.randint(low, high, self.shape, device=self.device))


def register() -> None:
    """Tell Dynamo of the functions here; its own rule for one of them is to run it on values that are not there."""
    rules = get_torch_obj_rule_map()
    if not issubclass(rules.get(F.gaussian_nll_loss, object), PolyfilledFunctionVariable):
        rules.pop(F.gaussian_nll_loss, None)
        # torch declares arguments with defaults as optional, which these are not.
        torch.compiler.substitute_in_graph(F.gaussian_nll_loss)(gaussian_nll_loss)  # type: ignore[arg-type]
    ctc.register()
    # Recurrent layers, which Dynamo leaves to eager unless this says otherwise when it begins to trace.
    torch._dynamo.config.allow_rnn = True
