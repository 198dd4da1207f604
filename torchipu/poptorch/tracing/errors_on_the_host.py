"""Errors of a model that cannot be captured, as a plain call of the model has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT
from torchipu.capture.fx_types import foreign_kind
from torchipu.poptorch.capturing import on_ipu
from torchipu.poptorch.poptorch_core import Error, createPoptorchError
from torchipu.poptorch.tracing.calls import REFUSALS
from torchipu.poptorch.tracing.devices import devices_seen
from torchipu.poptorch.tracing.mixed_types import with_common_type
from torchipu.poptorch.tracing.refusals import in_words_of_kernels
from torchipu.poptorch.tracing.traced_model import TracedModel, members_stay
from torchipu.poptorch.tracing.tracer_words import names_tracer, renamed


def error_on_the_host(error: Exception, traced: TracedModel, tensors: Sequence[torch.Tensor]) -> Exception:
    """Return the error to raise where a model cannot be captured: that of torch's own kernels where they refuse it too.

    An error of the user's own is left as it is, unless its message shows what stands in for tensors at capture.

    Args:
        error: What was raised while the model ran on tensors without values; torch words some refusals otherwise
            there than in its kernels.
        traced: The model.
        tensors: Inputs of one micro-batch.
    """
    if isinstance(error, Error) and isinstance(error.__cause__, REFUSALS) and _is_of_torch(error.__cause__):
        return in_words_of_kernels(error, _error_of_plain_call(traced, tensors)) or error
    if (refusal := _without_values(error, traced)) is not None:
        return refusal
    shows_tracer = names_tracer(str(error))
    is_refusal = isinstance(error, (*REFUSALS, AssertionError))  # torch's decompositions assert what its kernels check
    if not shows_tracer and not (is_refusal and _is_of_torch(error)):
        return error
    other = _error_of_plain_call(traced, tensors)
    if isinstance(other, REFUSALS) and is_refusal:
        return other
    if shows_tracer:
        return other if other is not None and type(other) is type(error) else renamed(error)
    return error


def _without_values(error: Exception, traced: TracedModel) -> Error | None:
    """Return the refusal of a tensor without values that met others, or None where that is not what went wrong."""
    if "device" not in str(error):
        return None
    members = (("parameter", traced.inner.named_parameters()), ("buffer", traced.inner.named_buffers()))
    named = [("input", traced.arguments.named_tensors()), *members]
    for what, tensors in named:
        for name, tensor in tensors:
            if tensor.device.type == "meta":
                kind, remedy = foreign_kind(tensor)
                return createPoptorchError(f"{what} {name}: {kind} cannot be held by the IPU: {remedy}")
    return None


def _is_of_torch(error: Exception) -> bool:
    """Whether torch has raised an error, or something of ours that torch's kernels raise it through."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    return innermost is not None and innermost.tb_frame.f_code.co_filename.startswith((TORCH_ROOT, OUR_ROOT))


def _error_of_plain_call(traced: TracedModel, tensors: Sequence[torch.Tensor]) -> Exception | None:
    """Return what the model raises when it is called with values, or None."""
    given = traced.arguments.with_tensors([tensor.clone() for tensor in tensors])
    buffers = [(buffer, buffer.clone()) for buffer in traced.inner.buffers()]
    traced.restore()
    try:
        with (
            torch.no_grad(), torch.random.fork_rng(devices=[]), on_ipu(traced.is_training),
            members_stay(traced.inner, traced.told), devices_seen(traced.inner, traced.warned_factories), _MixedTypes(),
        ):
            given.call(traced.inner)
    except Exception as other:
        return other
    finally:
        for buffer, before in buffers:
            buffer.copy_(before)
        traced.restore()
    return None


class _MixedTypes(TorchFunctionMode):
    """Brings mixed types together on the host too: what the device takes is no reason to refuse a model."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = with_common_type(function, args, kwargs or {})
        return function(*args, **kwargs)
