"""Options of the benchmarks, and the machine's state while they run."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from library_workloads import missing
from workloads import WORKLOADS

CONTENDERS = ("eager", "inductor", "torchipu")
SPEED_UPS = pytest.StashKey[dict[str, dict[str, float]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--workload``, ``--contender``, ``--threads``, ``--rounds`` and ``--cpu-time``."""
    group = parser.getgroup("torchipu")
    group.addoption("--workload", action="append", help=f"measure only this one; of {', '.join(WORKLOADS)}, demo-step")
    group.addoption("--contender", action="append", choices=CONTENDERS, help="time only this one besides torchipu")
    group.addoption("--threads", type=int, default=os.cpu_count() or 1, help="host threads of every contender")
    group.addoption("--rounds", type=int, default=15, help="samples of every contender")
    group.addoption(
        "--cpu-time", action="store_true", help="count the time on the CPU, not that of the clock: on a busy machine"
    )


@pytest.fixture
def speed_ups_by_workload(request: pytest.FixtureRequest) -> dict[str, dict[str, float]]:
    """By workload and contender, how much faster torchipu was; the means are printed at the end."""
    return request.config.stash.setdefault(SPEED_UPS, {})


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print the geometric means over what was measured, with the weights frozen and otherwise."""
    measured = config.stash.get(SPEED_UPS, {})
    for title, is_frozen in (("with frozen weights", True), ("training and inference", False)):
        found = [ratios for name, ratios in measured.items() if name.endswith("-frozen") is is_frozen]
        for contender in sorted({who for ratios in found for who in ratios}):
            values = [ratios[contender] for ratios in found if contender in ratios]
            terminalreporter.write_line(
                f"{title}: {statistics.geometric_mean(values):.2f}x {contender}, geometric mean of {len(values)} "
                f"workloads, {min(values):.2f}x the least"
            )


@pytest.fixture
def contenders(request: pytest.FixtureRequest) -> tuple[str, ...]:
    chosen = request.config.getoption("--contender")
    return tuple(name for name in CONTENDERS if not chosen or name in chosen or name == "torchipu")


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
