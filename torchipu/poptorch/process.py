"""What importing PopTorch does to the process: how it ends with an error is logged, and crashes show where."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
from types import TracebackType

from torchipu.poptorch._logging import logger

FORK_SAFE_VARIABLE = "RDMAV_FORK_SAFE"
"""Lets the network's library work after a fork; PopTorch sets it for programs on several machines."""


def prepare() -> None:
    """Log the exception that ends the program, and have a crash of compiled code show the Python line."""
    os.environ.setdefault(FORK_SAFE_VARIABLE, "1")
    if not faulthandler.is_enabled():
        # Standard error may be no file: in a notebook, or under a test runner.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            faulthandler.enable()
    before = sys.excepthook

    def log_and_go_on(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            logger.critical("%s: %s", kind.__name__, value)
        before(kind, value, trace)

    sys.excepthook = log_and_go_on
