"""What holds for all tests: the IR is verified after every pass, also in the processes that tests start.

A process that hands tests out to others runs none: what imports torch is imported where it is used.
"""

import gc
import logging
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:  # eager PyTorch's threads wait for each other where tests run side by side
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from _pytest.logging import catching_logs

from tests import thorough
from tests.costs import RECORDED, Recorder
from tests.thorough import is_thorough, pytest_collection_modifyitems, pytest_report_header  # noqa: F401

os.environ.setdefault("TORCHIPU_CACHE", "0")  # tests capture; those in tests/cache turn it on, and 1 does so for all


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let tests be chosen, and what they take be written down."""
    thorough.pytest_addoption(parser)
    parser.addoption("--record-costs", action="store_true", help=f"write what each test takes into {RECORDED.name}")


@pytest.hookimpl(optionalhook=True)  # of pytest-xdist, which a run in one process needs not
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files so that a process that dies does not end the run."""
    if config.getoption("dist") != "loadfile":
        return None
    from tests.scheduling import FileScheduling

    return FileScheduling(config, log)


def pytest_configure(config: pytest.Config) -> None:
    """Prepare a process that runs tests for all of them."""
    if config.getoption("numprocesses", None) and not hasattr(config, "workerinput"):
        return
    from tests.spared import spare
    from torchipu.compiler import VERIFY_VARIABLE

    spare()
    os.environ[VERIFY_VARIABLE] = "1"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[object]:
    """Import all files of tests without looking for garbage, which they do not leave; then leave all of it out."""
    gc.disable()
    try:
        return (yield)
    finally:
        if "torch" in sys.modules:
            from tests.spared import spare

            spare()  # Dynamo has been imported meanwhile
        gc.freeze()  # the collector would go through a million objects, now and again and again
        gc.enable()


def _listen(logs: catching_logs[logging.Handler]) -> logging.Handler:
    """Hear what reaches the root logger, and what ours keep to themselves.

    pytest puts two handlers on each of torch's many loggers that keep to themselves, before and after each part of a
    test, for which torch would make all artifacts of ``TORCH_TRACE``.
    """
    root = logging.getLogger()
    if logs.level is not None:  # one that was asked for: --log-level, --log-cli-level
        logs.handler.setLevel(logs.level)
        logs.orig_level = root.level
        root.setLevel(min(root.level, logs.level))
    kept = [one for one in map(logging.getLogger, ("torchipu", "poptorch::python")) if not one.propagate]
    for logger in (root, *kept):
        logger.addHandler(logs.handler)
        logs.attached_loggers.append(logger)
    return logs.handler


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let logs begin at warnings, torch's at level DEBUG too, without a level of the root logger for each test."""
    catching_logs.__enter__ = _listen  # type: ignore[method-assign]
    if session.config.getoption("record_costs"):
        session.config.pluginmanager.register(Recorder())
    plugin: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    for handler in (plugin.caplog_handler, plugin.report_handler):
        handler.setLevel(logging.WARNING)


def pytest_sessionfinish() -> None:
    """Leave the garbage of the last tests where it is: pytest would go through all that there is, five times."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed_of_its_own(request: pytest.FixtureRequest) -> None:
    """Draw the same weights and inputs for a test in every run, whichever tests ran before it."""
    import torch

    torch.manual_seed(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def captures_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test's captures be kept for it: its steps have the same graph, and differ in how the host runs it."""
    from torchipu.cache import settings

    monkeypatch.setenv(settings.SWITCH, "1")
    monkeypatch.setenv(settings.DIRECTORY, str(tmp_path / "captures"))


@pytest.fixture
def ctrl_c_interrupts() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt; a shell makes what it starts in the background ignore it."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)
