"""While torch traces, a signal's handler runs where Python code drives it, and not where torch asks Python something.

Torch calls Python from C++ in the middle of an operator, in some places through functions that let no exception pass:
what a handler raises there, as that of Ctrl-C does, ends the process, or is taken for another error, or is lost.
"""

from __future__ import annotations

import contextlib
import inspect
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch._dynamo.convert_frame import ConvertFrame, ConvertFrameAssert
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

Handler = Callable[[int, FrameType | None], object]

CONVERTING: frozenset[CodeType] = frozenset((ConvertFrame.__call__.__code__, ConvertFrameAssert.__call__.__code__))
"""What Dynamo captures a function in, for torch.compile."""
_RECORDING = inspect.unwrap(ProxyTorchDispatchMode.__torch_dispatch__)
DRIVERS = CONVERTING | {
    InstructionTranslatorBase.step.__code__, torch.fx.Interpreter.run.__code__, _RECORDING.__code__,
}
"""These, loops of torch's over instructions of a forward and nodes of a graph, and what records an op: while autograd
goes through a backward nothing else is Python. To raise in one ends the tracing, as an op that fails does."""
_OURS = f"{Path(__file__).parents[1]}/"
UNDOING = {str(Path(__file__).with_name(name)) for name in (Path(__file__).name, "process_wide.py")}
"""Files of ours whose functions must come to their end, so that what they or their callers have changed is undone."""


def drives(code: CodeType) -> bool:
    """Whether a handler may raise in a function: one of `DRIVERS`, or of ours.

    Generators are context managers for the most part: what one has changed it undoes.
    """
    if not code.co_filename.startswith(_OURS):
        return code in DRIVERS
    return not (
        code.co_filename in UNDOING or code.co_name == "__del__" or code.co_flags & inspect.CO_GENERATOR
    )


class HeldSignals:
    """Signals whose handlers wait for a frame that drives the tracing."""

    def __init__(self) -> None:
        self.is_holding = False
        self._handlers: dict[int, Handler] = {}
        self._came: list[int] = []
        self._raised: BaseException | None = None
        self._late: BaseException | None = None  # what a handler has raised where nothing may be raised
        self._place: FrameType | None = None  # where a trace function of ours is; it has had another one before
        self._traced: tuple[Any, Any] | None = None  # the trace functions of the thread and of the place before

    def hold(self) -> None:
        """Let handlers wait from now on: those that are functions of Python's."""
        self.is_holding, self._raised = True, None
        self._handlers.clear()
        try:
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:  # of a handler that is not held yet
            self.release()
            raise

    def release(self) -> None:
        """Put the handlers back; those of signals that have come have not run yet."""
        with contextlib.ExitStack() as stack:  # one that raises at once keeps the others from being put back else
            for number, handler in self._handlers.items():
                if signal.getsignal(number) == self._note:  # and not one that was set meanwhile
                    stack.callback(signal.signal, number, handler)
            self.is_holding = False

    def handle(self, frame: FrameType | None) -> None:
        """Run the handlers of what has come."""
        self._leave()
        if (late := self._late) is not None:
            self._late, self._raised = None, late
            raise late
        while self._came:
            number = self._came.pop(0)
            try:
                self._handlers[number](number, frame)
            except BaseException as error:
                self._raised = error
                raise

    def handle_from(self, frame: FrameType | None, late: BaseException | None = None) -> None:
        """Run the handlers of what has come once a frame that drives, this one or a caller, goes on.

        Args:
            frame: Where to begin to look for it.
            late: What one has raised already, to be raised there.
        """
        self._leave()
        self._late = late
        while frame is not None and not drives(frame.f_code):
            frame = frame.f_back
        if (self._came or late is not None) and frame is not None:
            self._place, self._traced = frame, (sys.gettrace(), frame.f_trace)
            frame.f_trace = self._trace
            sys.settrace(self._trace)

    def lost(self, error: BaseException | None) -> BaseException | None:
        """Return what a handler has raised, if it did not come through.

        Args:
            error: What came instead; None where nothing did.
        """
        if self._raised is None or error is self._raised or not isinstance(error, Exception | None):
            return None
        became = error is not None and any(one is self._raised for one in _history(error))
        return self._raised if became or not isinstance(self._raised, Exception) else None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append(number)
        if frame is not None and drives(frame.f_code):  # also where it waits for a lock, which it would go on to do
            self.handle(frame)
        elif self._traced is None:
            self.handle_from(frame)

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        """Run the handlers where the frame goes on in which they may, or where one of that kind is entered."""
        if frame is self._place or (self.is_holding and drives(frame.f_code)):
            self.handle(frame)

    def _leave(self) -> None:
        """Put back the trace functions, of a debugger or what measures coverage."""
        if self._traced is not None:
            of_thread, of_place = self._traced
            sys.settrace(of_thread)
            if self._place is not None:
                self._place.f_trace = of_place
            self._place = self._traced = None


def _history(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and those that it was raised from or beside."""
    left, met = [error], set[int]()
    while left:
        one = left.pop()
        if id(one) not in met:
            met.add(id(one))
            yield one
            left += [other for other in (one.__cause__, one.__context__) if other is not None]


_held = HeldSignals()
"""Of the main thread, in which Python runs handlers."""


def hold() -> bool:
    """Let handlers wait in this thread, until `release`; return False where they do already, or never run."""
    if threading.current_thread() is not threading.main_thread() or _held.is_holding:
        return False
    _held.hold()
    return True


def release(frame: FrameType | None) -> None:
    """Let handlers run as signals come; those of what has come run once the first caller that drives goes on.

    Args:
        frame: Where to begin to look for it.
    """
    try:
        _held.release()
        _held.handle_from(frame)
    except BaseException as late:  # of a signal that comes as its handler has been put back
        _held.handle_from(frame, late)


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let handlers of signals wait for a place in which they may raise, or for the end of this.

    What a handler raises comes through where torch has made another error of it, and where torch has lost it too, if it
    is one that ends the process, as that of Ctrl-C.
    """
    if not hold():
        yield
        return
    traced = sys.gettrace()
    error: BaseException | None = None
    try:
        yield
    except BaseException as raised:
        error = raised
        raise
    finally:
        try:
            _held.release()
        finally:
            if sys.gettrace() is not traced:  # Python leaves tracing when a trace function raises
                sys.settrace(traced)
            _held.handle(sys._getframe())
        if (lost := _held.lost(error)) is not None:
            raise lost
