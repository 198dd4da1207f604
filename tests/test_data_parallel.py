"""``torch.compile(backend="ipu")`` over two processes: DistributedDataParallel, FSDP2, collectives in graphs.

One pair of processes runs all cases, one after another: starting a process costs seconds.
"""

import pytest

from tests.data_parallel import collective_cases, ddp_cases, fsdp_cases
from tests.distributed.processes import run

MODULES = (fsdp_cases, collective_cases, ddp_cases)
CASES = [case.__name__ for module in MODULES for case in module.CASES]
SECONDS = 900  # they take about 50 where nothing else runs


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Run all cases and return what became of each."""
    folder = tmp_path_factory.mktemp("data_parallel")
    modules = [module.__name__ for module in MODULES]
    ((found, _),) = run("tests.data_parallel.worker:run_cases", [2], folder, modules, timeout=SECONDS)
    return found


@pytest.mark.parametrize("name", CASES)
def test_on_two_processes(name: str, reports: dict[str, dict[str, str]]) -> None:
    assert not reports[name]["wrong"], reports[name]["wrong"]
