"""How files of tests are handed to processes, so that one that dies costs a test and not the run.

pytest-xdist 3.8 hands the files of a process that has died on to others, those among them that it had finished, too: a
process that is given nothing to do is never asked again, and all wait for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.costs import seconds_of

SECONDS_OF_A_SHORT_TEST = 0.02
SECONDS_OF_FIXTURES = {
    "tests/distributed/test_group.py": 10, "tests/distributed/test_handshake.py": 12,
    "tests/distributed/test_instances.py": 15, "tests/distributed/test_poprun.py": 7,
    "tests/distributed/test_splits.py": 25, "tests/examples/test_tutorial.py": 21,
    "tests/kernels/test_vector_math.py": 5, "tests/lightning/test_processes.py": 26, "tests/parts/test_grid.py": 35,
    "tests/parts/test_over_processes.py": 35, "tests/data_parallel/test_two_processes.py": 50, "tests/test_wheel.py": 6,
    "tests/transformers/test_instances.py": 37,
}
"""What processes take that fixtures of a file start, which ``tests/costs.json`` does not say of any test. Both say what
begins first, and no more: a long file that begins late keeps one process busy while others are idle."""


def longest(files: Mapping[str, Iterable[str]]) -> str:
    """Return the file that takes longest, of files with their tests."""
    return max(files, key=lambda file: SECONDS_OF_FIXTURES.get(file, 0.0) + sum(
        max(seconds_of(test), SECONDS_OF_A_SHORT_TEST) for test in files[file]
    ))


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
