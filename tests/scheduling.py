"""How files of tests are handed to processes, so that one that dies costs a test and not the run.

pytest-xdist 3.8 hands the files of a process that has died on to others, those among them that it had finished, too: a
process that is given nothing to do is never asked again, and all wait for ever.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


class FileScheduling(LoadFileScheduling):
    """Hands files to processes, those with most tests first; what is left of those of a dead one goes to others."""

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
        # A process begins a test when it knows of the next, or that there is none.
        while not node.shutting_down:
            before = len(self.workqueue)
            super()._reschedule(node)
            if len(self.workqueue) == before or self._pending_of(self.assigned_work[node]) > 1:
                return
