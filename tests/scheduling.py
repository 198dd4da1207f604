"""How files of tests are handed to processes, so that one that dies costs a test and not the run.

pytest-xdist 3.8 hands the files of a process that has died on to others, those among them that it had finished, too: a
process that is given nothing to do is never asked again, and all wait for ever.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from contextlib import suppress

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

SECONDS_OF_A_TEST = 0.16
SECONDS = {
    "tests/cache/test_captures.py": 40, "tests/capture/test_checkpoint.py": 45,
    "tests/capture/test_flex_attention.py": 55, "tests/device/test_damage.py": 160,
    "tests/device/tiles/test_vertex_damage.py": 50, "tests/distributed/test_instances.py": 66,
    "tests/distributed/test_splits.py": 50, "tests/examples/test_mnist_pipelined.py": 26,
    "tests/examples/test_pipeline_over_processes.py": 30, "tests/lightning/test_manual_optimisation.py": 140,
    "tests/lightning/test_processes.py": 34, "tests/models/test_training.py": 150, "tests/ops/test_losses.py": 110,
    "tests/ops/test_recurrent.py": 60, "tests/parts/test_grid.py": 40, "tests/parts/test_over_processes.py": 65,
    "tests/poptorch/test_data_accessor.py": 100, "tests/poptorch/test_data_workers.py": 115,
    "tests/report/test_live.py": 40, "tests/test_any_size.py": 120, "tests/test_autopipeline.py": 200,
    "tests/test_backend.py": 55, "tests/test_calls_of_steps.py": 17, "tests/test_data_parallel.py": 67,
    "tests/test_distributed_checkpoint.py": 30, "tests/transformers/test_instances.py": 55,
    "tests/transformers/test_trainer.py": 190,
}
"""CPU time of files whose tests take long, and of a test of the others: estimated from every tenth test of all. They
say what begins first, and no more: a long file that begins late keeps one process busy while others are idle."""


def longest(files: Mapping[str, Sized]) -> str:
    """Return the file that takes longest, of files with their tests."""
    return max(files, key=lambda file: SECONDS.get(file, SECONDS_OF_A_TEST * len(files[file])))


class FileScheduling(LoadFileScheduling):
    """Hands files to processes, the longest first; what is left of those of a dead one goes to others."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(longest(self.workqueue), last=False)
        with suppress(OSError):  # it has died, and is taken out as soon as that is heard of: with what it is given here
            super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a process out.

        Returns:
            The test in which it died, which is not run again; None where it had none left.
        """
        files = self.assigned_work.pop(node)
        crashed = next((test for tests in files.values() for test, is_done in tests.items() if not is_done), None)
        for file, tests in files.items():
            left = {test: False for test, is_done in tests.items() if not is_done and test != crashed}
            if left:
                self.workqueue[file] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: WorkerController) -> None:
        # One that has just begun in the place of another does not know the tests yet: it is asked when it does.
        # A process begins a test when it knows of the next, or that there is none.
        while node in self.registered_collections and not node.shutting_down:
            before = len(self.workqueue)
            super()._reschedule(node)
            if len(self.workqueue) == before or self._pending_of(self.assigned_work[node]) > 1:
                return
