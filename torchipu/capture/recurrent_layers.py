"""Recurrent layers are traced for our backend, whole and of any length, and left to eager PyTorch for every other.

Dynamo leaves them to eager unless a setting says otherwise, which it reads whatever backend it traces for. Others would
then be handed one op after another for each time step: Inductor compiled a GRU of 60 steps for three minutes, and AOT
autograd cannot train what torch makes of an LSTM. And Dynamo remembers of code that it has left it to eager, whatever
backend traces that next; of code with recurrent layers we remember it instead, for other backends alone.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch._C import DispatchKey
from torch._C._dynamo.eval_frame import _FrameAction as FrameAction
from torch._C._dynamo.eval_frame import _FrameExecStrategy as FrameExecStrategy
from torch._C._dynamo.eval_frame import set_code_exec_strategy
from torch._dynamo import convert_frame
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables.builder import VariableBuilder

from torchipu.capture import recurrence
from torchipu.capture.backends import is_ours
from torchipu.capture.left_code import LeftCode, is_left

LAYERS = (torch.nn.RNN, torch.nn.GRU, torch.nn.LSTM)
"""What Dynamo leaves to eager."""
IMPLEMENTED: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.lstm.input: recurrence.lstm, torch.ops.aten.gru.input: recurrence.gru,
    torch.ops.aten.rnn_tanh.input: recurrence.rnn_tanh, torch.ops.aten.rnn_relu.input: recurrence.rnn_relu,
}
_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)

_left: LeftCode[bool] = LeftCode()
"""Code that holds recurrent layers, and that Dynamo has left to eager for another backend."""


class _Thread(threading.local):
    """What a thread is about: whether it traces layers whole, and whether it has met one that it leaves to eager."""

    traces_whole = False
    met = False


_thread = _Thread()


def register() -> None:
    """Have Dynamo ask for which backend it traces."""
    if VariableBuilder.wrap_module.__module__ == __name__:
        return
    VariableBuilder.wrap_module = _wrapping(VariableBuilder.wrap_module)  # type: ignore[method-assign]
    for converter, ours in ((convert_frame.ConvertFrameAssert, _tracing), (convert_frame.ConvertFrame, _remembering)):
        converter.__call__ = ours(converter.__call__)  # type: ignore[method-assign]
    for operator, function in IMPLEMENTED.items():
        for key in _KEYS:
            operator.py_kernels[key] = _implementing(function, operator.py_kernels[key])
        operator._dispatch_cache.clear()
    _forget_what_was_left()


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Let this thread trace each layer and direction as one op, of whatever length, where torch unrolls time steps.

    Not as a capture does it, which holds other threads off: Dynamo is tracing, and guards on what is changed then.
    """
    before = _thread.traces_whole
    _thread.traces_whole = True
    try:
        with torch._dynamo.config.patch(allow_rnn=True):
            yield
    finally:
        _thread.traces_whole = before


def _implementing(ours: Callable[..., Any], plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's implementation in Python of an operator, for other backends, and ours where we trace."""

    def run(*args: Any) -> Any:
        return (ours if _thread.traces_whole else plain)(*args)

    return run


def _wrapping(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return Dynamo's way to take a module in, which notes recurrent layers that it refuses."""

    def wrap_module(self: Any, value: torch.nn.Module) -> Any:
        if isinstance(value, LAYERS) and not torch._dynamo.config.allow_rnn:
            _thread.met = True
        return plain(self, value)

    return wrap_module


def _tracing(plain: Callable[..., ConvertFrameReturn]) -> Callable[..., ConvertFrameReturn]:
    """Return Dynamo's way to trace a frame, which takes recurrent layers in where it is for our backend."""

    def call(self: Any, *args: Any, **kwargs: Any) -> ConvertFrameReturn:
        with whole() if is_ours(self._torchdynamo_orig_backend) else contextlib.nullcontext():
            return plain(self, *args, **kwargs)

    return call


def _remembering(plain: Callable[..., ConvertFrameReturn]) -> Callable[..., ConvertFrameReturn]:
    """Return Dynamo's way to trace a frame or to leave it to eager, the latter for the backend alone that it is for."""

    def call(self: Any, frame: Any, *args: Any, **kwargs: Any) -> ConvertFrameReturn:
        if is_ours(self._torchdynamo_orig_backend):
            return plain(self, frame, *args, **kwargs)
        if _left.reason(frame.f_code):
            return _left.again("it holds a recurrent layer")
        _thread.met = False
        found = plain(self, frame, *args, **kwargs)
        return _left.add(frame.f_code, True, found) if _thread.met and is_left(found) else found

    return call


def _forget_what_was_left() -> None:
    """Let Dynamo look again at code that it has seen: it may have left some to eager for the sake of a layer."""
    for reference in convert_frame.input_codes.seen:
        code = reference()
        if code is not None:
            set_code_exec_strategy(code, FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT))
