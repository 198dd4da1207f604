"""What happens around a compilation: functions that users have called before and after, and a progress bar."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.hooks import RemovableHandle

from torchipu.poptorch.options import Options
from torchipu.step import Progress

_PRE: OrderedDict[int, Callable[[], Any]] = OrderedDict()
_POST: OrderedDict[int, Callable[[], Any]] = OrderedDict()


def _register(hooks: OrderedDict[int, Callable[[], Any]], hook: Callable[[], Any]) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"A compile hook must be callable, got {type(hook).__name__}")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def registerPreCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Have a function called without arguments before any model is captured; return what removes it."""
    return _register(_PRE, hook)


def registerPostCompileHook(hook: Callable[[], Any]) -> RemovableHandle:
    """Have a function called after any model is captured, also where that failed; return what removes it."""
    return _register(_POST, hook)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Call the functions around a compilation."""
    for hook in list(_PRE.values()):
        hook()
    try:
        yield
    finally:
        for hook in list(_POST.values()):
            hook()


@contextlib.contextmanager
def compilation_bar(options: Options) -> Iterator[Progress | None]:
    """Show how far a compilation is, on standard error wherever that leads, as PopTorch does."""
    if not options._show_compilation_progress_bar:
        yield None
        return
    from tqdm import tqdm

    with tqdm(total=100, desc="Graph compilation") as bar:
        def progress(done: int, total: int) -> None:
            bar.update(100 * done // total - bar.n)

        yield progress
