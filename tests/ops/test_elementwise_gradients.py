"""Gradients of every differentiable elementwise overload, through capture and runtime, against eager in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.ops.elementwise_cases import TARGETS, Call, accepted, in_double, overload_of
from torchipu.backend import ipu_backend

OPTIONS = {"host_threads": 1, "strict_ops": True}


def tensors_of(call: Call) -> list[torch.Tensor]:
    return [value for value in call[0] if isinstance(value, torch.Tensor)]


class Overload(torch.nn.Module):
    """Calls an overload on the tensors of a call, all else being fixed."""

    def __init__(self, target: str, call: Call) -> None:
        super().__init__()
        self.overload, self.call = overload_of(target), call

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        rest = iter(tensors)
        args, kwargs = self.call
        given = [next(rest) if isinstance(value, torch.Tensor) else value for value in args]
        results: Any = self.overload(*given, **kwargs)
        return list(results) if isinstance(results, tuple) else [results]


def leaves(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_(tensor.is_floating_point()) for tensor in tensors]


def gradients(results: list[torch.Tensor], tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
    """Return the gradients of what reaches them, from an output gradient that differs from place to place."""
    reaching = [result for result in results if result.requires_grad]
    seeds = [torch.linspace(-1.0, 2.0, r.numel()).reshape(r.shape).to(r.dtype) for r in reaching]
    asking = [tensor for tensor in tensors if tensor.requires_grad]
    return list(torch.autograd.grad(reaching, asking, seeds, allow_unused=True)) if reaching else []


def is_differentiable(target: str) -> bool:
    """Whether eager has a gradient for the overload."""
    found = accepted(target, torch.float32)
    if not found:
        return False
    tensors = leaves(tensors_of(found[0][0]))
    try:
        return bool(gradients(Overload(target, found[0][0])(*tensors), tensors))
    except (RuntimeError, NotImplementedError):
        return False


# Where torch's formula of the gradient subtracts nearly equal numbers, float32 keeps few digits in eager mode too.
CANCELLING = {"aten.sinc.default": 1e-3}


@pytest.mark.whole
@pytest.mark.parametrize("target", [target for target in TARGETS if is_differentiable(target)])
def test_gradient_runs_on_records_alone_and_equals_eager_in_float64(target: str) -> None:
    call = accepted(target, torch.float32)[0][0]
    wide = in_double(call)
    exact_leaves = leaves(tensors_of(wide))
    exact = gradients(Overload(target, wide)(*exact_leaves), exact_leaves)
    tensors = leaves(tensors_of(call))
    compiled = ipu_backend(Overload(target, call), tensors, options=OPTIONS)
    ours = gradients(compiled(*tensors), tensors)
    for mine, theirs in zip(ours, exact, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            bound = CANCELLING.get(target, 1e-5)
            torch.testing.assert_close(mine.double(), theirs, rtol=bound, atol=bound, equal_nan=True)
