"""Tensors that the backward reads, as they were when the forward read them.

PopTorch makes its gradients from a graph of values, where a write makes a new value and leaves the old one to whoever
has read it. Autograd keeps the tensor instead and refuses gradients of one that was written since, such as a state that
forward reads and then carries on: ``self.h.copy_(h.detach())``.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd.graph import saved_tensors_hooks
from torch.fx.experimental import proxy_tensor

from torchipu.capture.process_wide import replaced

WRITTEN_AFTER_READ = "needed for gradient computation has been modified by an inplace operation"
"""Torch's words for a tensor that forward has written after it was saved for the backward."""


@contextlib.contextmanager
def saved_as_read() -> Iterator[None]:
    """Let autograd save the values of tensors that are traced, and not the tensors.

    Hooks of forward's own, such as those of `torch.utils.checkpoint`, are ignored as torch ignores them in a trace.
    """
    # Tracing turns hooks off.
    was_off = torch._C._autograd._saved_tensors_hooks_set_tracing(False)
    try:
        with saved_tensors_hooks(_value_of, _tensor_of), _ignored("__enter__"), _ignored("__exit__"):
            yield
    finally:
        torch._C._autograd._saved_tensors_hooks_set_tracing(was_off)


@contextlib.contextmanager
def constants_saved() -> Iterator[None]:
    """Let a function with a backward of its own save constants: torch looks for the call that made what it saves.

    Releases of torch before 2.13 do not look.
    """
    find = getattr(proxy_tensor, "_get_proxies", None)
    if find is None:
        yield
        return

    def found(saved: Any) -> list[Any]:
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.PROXY)
        is_constant = isinstance(saved, torch.Tensor) and type(saved) in (torch.Tensor, torch.nn.Parameter)
        if mode is not None and is_constant and proxy_tensor.get_proxy_slot(saved, mode.tracer, None) is None:
            return []
        return find(saved)

    with replaced(proxy_tensor, "_get_proxies", found):
        yield


def without_account() -> contextlib.AbstractContextManager[None]:
    """Leave out torch's warning of which call of forward a failed backward belongs to: another attempt may follow."""
    show = warnings.showwarning

    def show_others(message: Warning | str, *rest: Any) -> None:
        if not str(message).startswith("Error detected in "):
            show(message, *rest)

    return replaced(warnings, "showwarning", show_others)


def _ignored(name: str) -> contextlib.AbstractContextManager[None]:
    def ignore(hooks: saved_tensors_hooks, *error: Any) -> None:
        """Do nothing."""

    return replaced(saved_tensors_hooks, name, ignore)


def _value_of(tensor: torch.Tensor) -> torch.Tensor:
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    torch._sync(tensor)  # type: ignore[attr-defined]
    value: torch.Tensor = torch._from_functional_tensor(tensor.elem)
    return value


def _tensor_of(value: torch.Tensor) -> torch.Tensor:
    return value if isinstance(value, FunctionalTensor) else FunctionalTensor.to_functional(value)
