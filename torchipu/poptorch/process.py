"""What the first use of PopTorch does to the process: how it ends with an error is logged, and crashes show where.

Importing it does none of this: a program that imports PopTorch and uses something else is left as it was.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import importlib
import os
import sys
from types import TracebackType

import torch

from torchipu.poptorch._logging import logger

FORK_SAFE_VARIABLE = "RDMAV_FORK_SAFE"
"""Lets the network's library work after a fork; PopTorch sets it for programs on several machines."""


@functools.cache
def prepare() -> None:
    """Log the exception that ends the program, have a crash of compiled code show the Python line, and the like.

    The first options, or the first use of `autocast`, call this; further calls do nothing.
    """
    os.environ.setdefault(FORK_SAFE_VARIABLE, "1")
    if not faulthandler.is_enabled():
        # Standard error may be no file: in a notebook, or under a test runner.
        with contextlib.suppress(OSError, ValueError, AttributeError, RuntimeError):
            faulthandler.enable()
    torch.nn.Module.autocast = _autocast_of_modules  # type: ignore[attr-defined]
    before = sys.excepthook

    def log_and_go_on(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        if not issubclass(kind, KeyboardInterrupt):
            logger.critical("%s: %s", kind.__name__, value)
        before(kind, value, trace)

    sys.excepthook = log_and_go_on


def _autocast_of_modules(module: torch.nn.Module, enabled: bool = True) -> torch.nn.Module:
    """Let the forward of a module be a region of `autocast`; a method of every module, as in PopTorch 2.1 to 3.0."""
    autocasting = importlib.import_module("torchipu.poptorch.operators.autocasting")  # loads the compiler
    cast: torch.nn.Module = autocasting.cast_module(module, enabled)
    return cast
