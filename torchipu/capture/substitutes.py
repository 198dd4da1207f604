"""What Dynamo cannot or will not trace by itself, and what makes it.

Dynamo asks no backend before it traces, and offers one that is named to `torch.compile` no hook: so all of this holds
for the process, from when a door of torchipu is first opened. Eager code does not come here. Other backends in the
same process do, and compute the same values, with graphs that no longer break where they broke before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.trace_rules import _polyfilled_function_ids, get_torch_obj_rule_map
from torch._dynamo.variables import PolyfilledFunctionVariable

from torchipu.capture import (
    adaptive_softmax,
    assertions,
    autograd_functional,
    checkpoint,
    cross_map,
    ctc,
    cumulative_averages,
    distributions,
    dynamo_places,
    flex_attention,
    growing_caches,
    inner_gradients,
    known_constants,
    least_squares,
    recorded_outputs,
    recurrent_layers,
    shapes_of_convolutions,
    shapes_of_quantisation,
    traced_methods,
    unbranched_distributions,
)


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


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """`torch.masked_select` by an index, whose size is known if the mask is a constant."""
    if mask.dtype not in (torch.bool, torch.uint8):
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    spread, mask = torch.broadcast_tensors(input, mask)
    return spread[mask]


def cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None,
) -> Tensor:
    """`torch.cov` without a look at values at capture: weights below 0 end the run.

    Args:
        input: Variables in rows, observations in columns, `[V, O]` or `[O]`.
        correction: What is taken from the number of observations.
        fweights: How often each observation was made, whole numbers `[O]`.
        aweights: How much each observation counts, `[O]`.
    """
    if input.dim() > 2:
        raise RuntimeError(f"cov(): expected input to have two or fewer dimensions but got an input with {input.dim()}")
    if input.dtype == torch.bool:
        raise RuntimeError("cov(): bool dtype is not supported for input")
    for name, given, is_whole in (("fweights", fweights, True), ("aweights", aweights, False)):
        if given is not None and (given.dim() > 1 or given.is_floating_point() == is_whole):
            raise RuntimeError(f"cov(): expected {name} of one dimension and {'whole' if is_whole else 'real'} numbers")
        if given is not None:
            torch._assert_async((given >= 0).all(), f"cov(): {name} cannot be negative")
    values = input.reshape(1, -1) if input.dim() < 2 else input
    values = values if values.is_floating_point() or values.is_complex() else values.to(torch.get_default_dtype())
    counts = None if fweights is None else fweights.to(values.dtype)
    weights = counts if aweights is None else aweights if counts is None else counts * aweights
    if weights is None:
        centred = values - values.mean(1, keepdim=True)
        return ((centred @ centred.mH) / max(values.shape[1] - correction, 0)).squeeze()
    total = weights.sum()
    centred = values - (values * weights).sum(1, keepdim=True) / total
    lost = 1 if aweights is None else (weights * aweights).sum() / total
    return ((centred * weights) @ centred.mH / (total - correction * lost).clamp(min=0)).squeeze()


def corrcoef(input: Tensor) -> Tensor:
    """`torch.corrcoef` of variables in rows, `[V, O]` or `[O]`, by the `cov` of this module."""
    products = cov(input)
    if products.dim() == 0:
        return products / products
    deviations = products.diagonal().sqrt()
    found = products / deviations.unsqueeze(1) / deviations
    if found.is_complex():
        return torch.complex(found.real.clip(-1, 1), found.imag.clip(-1, 1))
    return found.clip(-1, 1)


def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """`torch.combinations` of ``r`` elements of a vector, whose places are known without its values."""
    if input.dim() != 1:
        raise RuntimeError(f"Expect a 1D vector, but got shape {list(input.shape)}")
    if r < 0:
        raise RuntimeError(f"Expect a non-negative number, but got {r}")
    places: list[tuple[int, ...]] = [()]
    for _ in range(r):
        places = [
            (*some, one) for some in places
            for one in range(some[-1] + (not with_replacement) if some else 0, input.shape[0])
        ]
    if not places or r == 0:
        return input[:0].reshape((0,) if r == 0 else (0, r))
    return input[torch.tensor(places, device=input.device)]


def infer_size(one: Sequence[int], other: Sequence[int]) -> torch.Size:
    """`torch._C._infer_size`, of which `torch.distributions` asks two sizes that Dynamo holds as plain tuples."""
    return torch.broadcast_shapes(one, other)


def detect_is_causal_mask(mask: Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
    """What `torch.nn.Transformer` asks of a mask: whether it is causal. It is applied in any case, so nobody looks."""
    return bool(is_causal)


TRACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    F.gaussian_nll_loss: gaussian_nll_loss,
    torch.combinations: combinations, torch.cov: cov, torch.corrcoef: corrcoef,
    torch.masked_select: masked_select, torch.linalg.lstsq: least_squares.lstsq, torch._C._infer_size: infer_size,
    torch.nn.modules.transformer._detect_is_causal_mask: detect_is_causal_mask,
    **assertions.TRACED, **autograd_functional.TRACED, **distributions.DRAWN_AT_ONCE,
}
"""Functions of torch that ask for values, or for a number of values, which a graph has not; and what Dynamo traces."""

OF_MODULES: Mapping[Callable[..., Any], Callable[..., Any]] = {
    **adaptive_softmax.TRACED, **cross_map.TRACED, **cumulative_averages.TRACED,
    **distributions.VALIDATED, **unbranched_distributions.TRACED,
}
"""Methods of modules that ask for values; and what Dynamo traces."""
OF_TENSORS: Mapping[str, Callable[..., Any]] = {
    "bincount": bincount, "cov": cov, "corrcoef": corrcoef, "masked_select": masked_select, "random_": random_,
}
"""Methods of tensors by their names; and what Dynamo traces."""


def _trace_as(function: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Let Dynamo trace a function of ours where another one is called."""
    rules = get_torch_obj_rule_map()
    if issubclass(rules.get(function, object), PolyfilledFunctionVariable):
        return
    rules.pop(function, None)
    if id(function) in _polyfilled_function_ids:
        # Registered before torch.distributed.init_process_group, which forgets the rule and nothing else.
        rules[function] = PolyfilledFunctionVariable
    else:
        # torch declares arguments with defaults as optional, which these are not.
        torch.compiler.substitute_in_graph(function, skip_signature_check=True)(ours)


def register() -> None:
    """Tell Dynamo of the functions here; its own rule for most of them is to run them on values that are not there."""
    for function, ours in TRACED.items():
        _trace_as(function, ours)
    growing_caches.register()
    known_constants.register()
    traced_methods.register(OF_MODULES, OF_TENSORS)
    ctc.register()
    checkpoint.register()
    flex_attention.register()
    recurrent_layers.register()
    shapes_of_convolutions.register()
    shapes_of_quantisation.register()
    recorded_outputs.register()
    inner_gradients.register()
    dynamo_places.register()
