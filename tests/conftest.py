"""What holds for all tests: the IR is verified after every pass, also in the processes that tests start."""

import os
import signal
from collections.abc import Iterator

import pytest

from torchipu.compiler import VERIFY_VARIABLE

os.environ[VERIFY_VARIABLE] = "1"


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; a shell makes what it starts in the background ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
