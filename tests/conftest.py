"""What holds for all tests: the IR is verified after every pass, also in the processes that tests start."""

import gc
import os
import signal
import zlib
from collections.abc import Iterator
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # eager PyTorch's threads wait for each other where tests run side by side
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch._logging._internal import trace_log

from tests.spared import spare
from tests.thorough import (  # noqa: F401
    is_thorough,
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_report_header,
)
from torchipu.compiler import VERIFY_VARIABLE

spare()
os.environ[VERIFY_VARIABLE] = "1"
os.environ.setdefault("TORCHIPU_CACHE", "0")  # tests capture; those in tests/cache turn it on, and 1 does so for all


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which a run in one process needs not
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files so that a process that dies does not end the run."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import FileScheduling

    return FileScheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Import all files of tests without looking for garbage, which they do not leave; then leave all of it out."""
    gc.disable()
    try:
        result = yield
    finally:
        gc.enable()
    spare()  # Dynamo has been imported meanwhile
    gc.collect()
    gc.freeze()  # the collector would go through a million objects, again and again
    return result


@pytest.hookimpl(wrapper=True, trylast=True)  # within pytest's own wrapper, which adds its handlers
def pytest_runtest_call() -> Iterator[None]:
    """Keep pytest's handlers from the log of ``TORCH_TRACE``: torch would make all its artifacts for them."""
    for handler in list(trace_log.handlers):
        if type(handler).__module__.startswith("_pytest."):
            trace_log.removeHandler(handler)
    return (yield)


@pytest.fixture(autouse=True)
def _seed_of_its_own(request: pytest.FixtureRequest) -> None:
    """Draw the same weights and inputs for a test in every run, whichever tests ran before it."""
    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; a shell makes what it starts in the background ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
