"""Gradients that a forward takes of itself: penalties on gradients, forces, derivatives within a loss."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._dynamo.output_graph import OutputGraph

from torchipu.capture.process_wide import replaced

_TRACES = "trace_autograd_ops"
_CHECK = "_check_requires_grad_intermediate_outputs"


def register() -> None:
    """Let Dynamo trace ``torch.autograd.grad`` of compiled functions, in whatever thread.

    What needs a gradient that AOT autograd does not give leads to a break of the graph still.
    """
    entry = torch._dynamo.config._config.get(_TRACES)  # type: ignore[attr-defined]
    if entry is not None and not entry.default:
        entry.default = True
        setattr(torch._dynamo.config, _TRACES, True)


@contextlib.contextmanager
def inner_gradients() -> Iterator[None]:
    """Let Dynamo trace ``torch.autograd.grad``, also by values on which ``requires_grad_`` was called in forward.

    Of a compiled function Dynamo hands back nothing that was made from such a value, since the caller could ask for its
    gradient there, which AOT autograd does not give. Who runs a step asks for gradients of parameters alone. Releases
    of torch that do not trace ``torch.autograd.grad`` have neither setting nor check.
    """
    with contextlib.ExitStack() as stack:
        if _TRACES in torch._dynamo.config._config:  # type: ignore[attr-defined]
            stack.enter_context(torch._dynamo.config.patch({_TRACES: True}))
        if hasattr(OutputGraph, _CHECK):
            stack.enter_context(replaced(OutputGraph, _CHECK, _unchecked))
        yield


def _unchecked(*arguments: object) -> None:
    """Pass what Dynamo is about to hand back."""
