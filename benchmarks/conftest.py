"""Options of the benchmarks, and the machine's state while they run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from library_workloads import missing
from workloads import WORKLOADS

CONTENDERS = ("eager", "inductor", "torchipu")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--workload``, ``--contender``, ``--threads`` and ``--rounds``."""
    group = parser.getgroup("torchipu")
    group.addoption("--workload", action="append", help=f"measure only this one; of {', '.join(WORKLOADS)}, demo-step")
    group.addoption("--contender", action="append", choices=CONTENDERS, help="time only this one besides torchipu")
    group.addoption("--threads", type=int, default=os.cpu_count() or 1, help="host threads of every contender")
    group.addoption("--rounds", type=int, default=15, help="samples of every contender")


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
def chosen(request: pytest.FixtureRequest) -> None:
    """Skip a workload that ``--workload`` does not name, or whose model is in a library that is not installed."""
    names, name = request.config.getoption("--workload"), request.node.callspec.params["name"]
    if names and name not in names:
        pytest.skip("not chosen by --workload")
    absent = missing(WORKLOADS[name].libraries) if name in WORKLOADS else []
    if absent:
        pytest.skip(f'{", ".join(absent)} not installed: pip install -e ".[models]"')
