"""Options of the benchmarks, and the machine's state while they run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from contenders import CONTENDERS, OURS
from library_workloads import missing
from speed_page import Measured, page
from workloads import WORKLOADS

os.environ.setdefault("TORCHIPU_CACHE", "0")  # a cold compilation is one without entries of the run before

MEASURED = pytest.StashKey[dict[str, Measured]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--workload``, ``--contender``, ``--speed-page``, ``--threads``, ``--rounds`` and ``--cpu-time``."""
    group = parser.getgroup("torchipu")
    group.addoption("--workload", action="append", help=f"measure only this one; of {', '.join(WORKLOADS)}, demo-step")
    group.addoption(
        "--contender", action="append", choices=list(CONTENDERS), help="time only this one besides torchipu"
    )
    group.addoption("--speed-page", metavar="PATH", help="write what was measured there, as a page")
    group.addoption("--threads", type=int, default=os.cpu_count() or 1, help="host threads of every contender")
    group.addoption("--rounds", type=int, default=15, help="samples of every contender")
    group.addoption(
        "--cpu-time", action="store_true", help="count the time on the CPU, not that of the clock: on a busy machine"
    )


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> dict[str, Measured]:
    """What was measured, by workload; the means are printed at the end."""
    return request.config.stash.setdefault(MEASURED, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the page of what was measured, and write it where ``--speed-page`` says."""
    measured = config.stash.get(MEASURED, {})
    if not measured:
        return
    text = page(measured, config.getoption("--threads"), config.getoption("--rounds"))
    terminalreporter.write_line(text)
    if config.getoption("--speed-page"):
        Path(config.getoption("--speed-page")).write_text(text, encoding="utf-8")


@pytest.fixture
def contenders(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Return who is measured: torchipu, and those that were chosen."""
    chosen = request.config.getoption("--contender")
    return tuple(name for name in CONTENDERS if not chosen or name in chosen or name == OURS)


@pytest.fixture
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Give every contender the same number of threads."""
    before = torch.get_num_threads()
    num: int = request.config.getoption("--threads")
    torch.set_num_threads(num)
    torch._dynamo.reset()
    yield num
    torch.set_num_threads(before)
    torch._dynamo.reset()


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--rounds"))


@pytest.fixture
def clock(request: pytest.FixtureRequest) -> Callable[[], float]:
    """Return the clock, or the seconds that the process has had on CPUs."""
    return time.process_time if request.config.getoption("--cpu-time") else time.perf_counter


@pytest.fixture
def chosen(request: pytest.FixtureRequest) -> None:
    """Skip a workload that ``--workload`` does not name, or whose model is in a library that is not installed."""
    names, name = request.config.getoption("--workload"), request.node.callspec.params["name"]
    if names and name not in names:
        pytest.skip("not chosen by --workload")
    absent = missing(WORKLOADS[name].libraries) if name in WORKLOADS else []
    if absent:
        pytest.skip(f'{", ".join(absent)} not installed: pip install -e ".[models]"')
