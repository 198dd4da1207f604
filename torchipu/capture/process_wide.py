"""What a capture changes for the whole process: under one lock, for the capturing thread alone, undone on every path.

Some of what a model does can be seen in no other way than by a function of ours in the place of one of torch's. This
module alone puts one there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.fx._symbolic_trace import is_fx_symbolic_tracing
from torch.nn.modules import module as torch_module

from torchipu.capture import waiting_forks  # noqa: F401 - forks wait from now on
from torchipu.capture.held_signals import signals_held


@contextlib.contextmanager
def capturing() -> Iterator[None]:
    """Let no other thread capture meanwhile, and handlers of signals raise between two nodes, not within one.

    The lock is the one that torch.compile holds while it calls a backend: with one of our own, a thread that captures
    through Dynamo and one that Dynamo calls us from would wait for each other. A fork waits for it too.
    """
    _begin_autograd()
    with compile_lock, signals_held(), contextlib.ExitStack() as stack:
        for question in (is_fx_symbolic_tracing, torch.compiler.is_exporting, torch.compiler.is_compiling):
            stack.enter_context(_denied_elsewhere(question))
        yield


@functools.cache
def _begin_autograd() -> None:
    """Let autograd count devices before a capture pretends that there are some.

    A build of torch for CUDA takes eight where none can be used, from its first tensor without values on. Autograd, if
    it begins then, has a thread for each, and refuses every backward of a process that is forked later.
    """
    if torch.backends.cuda.is_built() and not torch.cuda.is_available():
        with torch.inference_mode(False), torch.enable_grad():
            torch.ones((), device="cpu", requires_grad=True).backward()


@contextlib.contextmanager
def _denied_elsewhere(question: Any) -> Iterator[None]:
    """Let a function of torch answer False in other threads, which it else refuses, or leaves uncompiled.

    The answers stand in flags of the process. The function gets another body and stays the same object: torch.compile
    holds it, and knows it by its identity.

    Args:
        question: A function without arguments.
    """
    mine, body, name = threading.get_ident(), question.__code__, f"_torchipu_{question.__name__}"
    if name in body.co_names:  # within another capture of this thread
        yield
        return
    plain = types.FunctionType(body, question.__globals__)
    question.__globals__[name] = lambda: threading.get_ident() == mine and plain()
    made: dict[str, Any] = {}
    exec(f"def {question.__name__}():\n    return {name}()", question.__globals__, made)
    question.__code__ = made[question.__name__].__code__
    try:
        yield
    finally:
        question.__code__ = body
        question.__globals__[name] = plain  # for a thread that has called it and has not yet got there


@contextlib.contextmanager
def replaced(owner: Any, name: str, stand_in: Callable[..., Any]) -> Iterator[None]:
    """Let calls of a function by this thread go to another one; those of other threads go where they always went.

    Args:
        owner: Class or module that has it.
        name: Its name there.
        stand_in: Called with the same arguments.
    """
    with capturing():
        original = inspect.getattr_static(owner, name)
        is_own = name in vars(owner)
        plain, mine = getattr(owner, name), threading.get_ident()

        def function(*args: Any, **kwargs: Any) -> Any:
            return (stand_in if threading.get_ident() == mine else plain)(*args, **kwargs)

        # A static method stays one: looked up on an instance it is given no self.
        setattr(owner, name, staticmethod(function) if isinstance(original, (staticmethod, classmethod)) else function)
        try:
            yield
        finally:
            if is_own:
                setattr(owner, name, original)
            else:
                delattr(owner, name)


@contextlib.contextmanager
def switched(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give a setting another value for a while; all threads see it.

    Args:
        owner: Class or module that has it.
        name: Its name there.
        value: What it is meanwhile.
    """
    with capturing():
        before = getattr(owner, name)
        setattr(owner, name, value)
        try:
            yield
        finally:
            setattr(owner, name, before)


@contextlib.contextmanager
def implemented(
    by: Mapping[Any, Callable[..., Any] | None], keys: Collection[torch._C.DispatchKey],
) -> Iterator[None]:
    """Give operators other implementations in Python, which tracing alone asks, under the same lock.

    Args:
        by: For each overload, such as ``torch.ops.aten.upsample_bilinear2d.vec``, what implements it; None to leave it
            to torch's implementation in C++.
        keys: For which it does.
    """
    with capturing():
        before = {overload: dict(overload.py_kernels) for overload in by}
        try:
            for overload, function in by.items():
                others = {key: kernel for key, kernel in before[overload].items() if key not in keys}
                _implement(overload, others if function is None else {**others, **dict.fromkeys(keys, function)})
            yield
        finally:
            for overload, kernels in before.items():
                _implement(overload, kernels)


def _implement(overload: Any, kernels: Mapping[torch._C.DispatchKey, Any]) -> None:
    """Put implementations in place, and let the operator forget which ones it has taken."""
    overload.py_kernels.clear()
    overload.py_kernels.update(kernels)
    overload._dispatch_cache.clear()


@contextlib.contextmanager
def watching_modules(enter: Callable[[Any], None], leave: Callable[[Any], None]) -> Iterator[None]:
    """Call functions before and after the forward of every module that this thread calls.

    Args:
        enter: Called with the module before.
        leave: Called with it after, also where forward raises.
    """
    mine = threading.get_ident()

    def before(module: Any, args: Any) -> None:
        if threading.get_ident() == mine:
            enter(module)

    def after(module: Any, args: Any, result: Any) -> None:
        if threading.get_ident() == mine:
            leave(module)

    with capturing():
        begin = torch_module.register_module_forward_pre_hook(before)
        end = torch_module.register_module_forward_hook(after, always_call=True)
        try:
            yield
        finally:
            begin.remove()
            end.remove()
