"""While Dynamo captures for torch.compile: signals that come, Python's collector of garbage, and a log of torch's.

Dynamo tells that it begins before it calls any backend.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from torch._dynamo.callback import callback_handler

from torchipu.capture import held_signals
from torchipu.capture.capture_errors import without_torchs_log
from torchipu.ir.garbage import seldom_collected

held_signals.UNDOING.add(__file__)  # torch counts what it has called; an exception in between keeps that from its end


class DynamoSignals:
    """Lets handlers of signals wait while Dynamo captures for a backend, and garbage be collected less often.

    Of sizes that do not fit Dynamo's error tells, without the stack in torch's log before it.

    Args:
        backend: Captures for others go on as they do.
    """

    def __init__(self, backend: Callable[..., Any]) -> None:
        self._backend = backend
        self._is_holding = False
        self._capture = contextlib.ExitStack()

    def watch(self) -> None:
        """Be told of compilations from now on, if not yet: ``torch._dynamo.reset`` forgets who is."""
        if self.begin not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self.begin)
            callback_handler.register_end_callback(self.end)

    def begin(self, *_: object) -> None:
        """Hold them; Dynamo calls this."""
        if self._is_for_backend():
            self._is_holding = held_signals.hold()
            self._capture.enter_context(seldom_collected())
            self._capture.enter_context(without_torchs_log())

    def end(self, *_: object) -> None:
        """Release them; what has come is handled once Dynamo, which holds a lock as it calls this, has let that go."""
        self._capture.close()
        if self._is_holding:
            self._is_holding = False
            held_signals.release(sys._getframe(1))

    def _is_for_backend(self) -> bool:
        frame = sys._getframe(1)
        while frame.f_back is not None:
            if frame.f_code in held_signals.CONVERTING:
                found: Any = frame.f_locals["self"]
                while hasattr(found, "_torchdynamo_orig_backend"):
                    found = found._torchdynamo_orig_backend
                return getattr(found, "compiler_fn", found) is self._backend  # within what torch.compile puts around it
            frame = frame.f_back
        return False
