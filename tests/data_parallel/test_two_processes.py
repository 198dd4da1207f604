"""``torch.compile(backend="ipu")`` over two processes: DistributedDataParallel, FSDP2, collectives in graphs.

One pair of processes runs all cases, one after another: starting a process costs seconds.
"""

import pytest

from tests.data_parallel import collective_cases, ddp_cases, fsdp_cases
from tests.distributed.processes import run
from tests.releases import MESSAGES_IN_GRAPHS

MODULES = (fsdp_cases, collective_cases, ddp_cases)
CASES = [case.__name__ for module in MODULES for case in module.CASES]
OTHER_SETTINGS = frozenset([
    "the_whole_is_compiled_in_place", "weights_stay_whole_between_forward_and_backward", "checkpointed_blocks",
    "trainable_beside_frozen_parameters", "compile_in_place_within_ddp", "compile_ddp_in_place", "static_graph",
    "bucket_views", "frozen_parameters", "python_reducer", "communication_hooks",
])
"""Cases that compile what others do under another setting of torch's wrapper."""
SECONDS = 900  # they take about 50 where nothing else runs


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Run the cases whose tests run, and return what became of each."""
    folder = tmp_path_factory.mktemp("data_parallel")
    modules = [module.__name__ for module in MODULES]
    names = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]
    ((found, _),) = run("tests.data_parallel.worker:run_cases", [2], folder, [modules, names], timeout=SECONDS)
    return found


@pytest.mark.suffices(name=[name for name in CASES if name not in OTHER_SETTINGS])
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=MESSAGES_IN_GRAPHS) if name == "messages_between_two_processes" else name for name in CASES
])
def test_on_two_processes(name: str, reports: dict[str, dict[str, str]]) -> None:
    assert not reports[name]["wrong"], reports[name]["wrong"]
