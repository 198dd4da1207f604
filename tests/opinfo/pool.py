"""Worker processes, so that a crash or a hang costs one sample and not the run."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tests.opinfo.samples import Case

LISTING_SECONDS = 120.0
"""Time for the first sample of a case: importing, listing the samples and telling whether the operator counts."""

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Settings:
    """How samples are run.

    Attributes:
        most: Samples of each case, evenly spread; None for all.
        dynamo: Fraction that goes through torch.compile.
        seconds: Time limit of a sample, in processor time where the system tells it.
        patience: How many times that limit may pass on the clock: a machine that is shared gives less than all of it.
        samples: Only these numbers; None for all.
        classify: Whether to tell if the operator counts; it is noted as not counting otherwise.
    """

    most: int | None = None
    dynamo: float = 0.03
    seconds: float = 30.0
    patience: float = 20.0
    samples: tuple[int, ...] | None = None
    classify: bool = True


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    case: Case | None = None
    index: int | None = None
    core: bool = False
    limit: float = 0.0
    began: float = 0.0
    used: float = 0.0

    def begin(self, limit: float) -> None:
        """Start to count a sample's time."""
        self.limit, self.began, self.used = limit, time.monotonic(), _processor_seconds(self.process.pid) or 0.0

    def is_over(self, patience: float) -> bool:
        """Whether the sample has used up its time; one that waits for something uses none, and is over in the end."""
        passed = time.monotonic() - self.began
        if passed < self.limit or passed > self.limit * patience:
            return passed >= self.limit
        now = _processor_seconds(self.process.pid)
        return now is None or now - self.used > self.limit


def _processor_seconds(pid: int) -> float | None:
    """Return the processor time of a process, or None where the system has no ``/proc``."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    user, system = fields[11:13]
    return (int(user) + int(system)) / TICKS


Work = Callable[[Connection, Settings, dict[str, str]], None]


def run_cases(
    cases: Sequence[Case], settings: Settings, num_workers: int, work: Work | None = None,
    ran: Mapping[Case, Set[int]] = MappingProxyType({}),
) -> Iterator[dict[str, Any]]:
    """Run all samples of the cases and yield a result for each, in the order in which they end.

    Args:
        cases: What to run.
        settings: How.
        num_workers: Processes.
        work: What a worker process does; None for `worker.work`.
        ran: Numbers of the samples of a case that ran before, and are left out.
    """
    if work is None:
        from tests.opinfo.worker import work
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.opinfo.worker"])
    due: deque[tuple[Case, int]] = deque((case, 0) for case in cases)
    workers: list[_Worker] = []
    try:
        while due or any(worker.case is not None for worker in workers):
            while due and len(workers) < num_workers:
                workers.append(_start(context, settings, work))
            for worker in workers:
                if worker.case is None and due:
                    worker.case, first = due.popleft()
                    worker.index = None
                    worker.begin(max(LISTING_SECONDS, settings.seconds))
                    worker.pipe.send((worker.case, first, ran.get(worker.case, frozenset())))
            ready = wait([worker.pipe for worker in workers if worker.case is not None], timeout=1.0)
            for worker in list(workers):
                if worker.case is None:
                    continue
                if worker.pipe in ready:
                    lost = yield from _listen(worker, settings)
                else:
                    lost = "hang" if worker.is_over(settings.patience) else ""
                if lost:
                    yield from _bury(worker, lost, due)
                    workers.remove(worker)
    finally:
        for worker in workers:
            worker.pipe.close()
            worker.process.join(0.0 if worker.case is not None else 5.0)
            worker.process.kill()
            worker.process.join()


def _start(context: Any, settings: Settings, work: Work) -> _Worker:
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, settings, dict(os.environ)), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _listen(worker: _Worker, settings: Settings) -> Iterator[dict[str, Any]]:
    """Take one message; return ``crash`` where the process is gone."""
    try:
        kind, content = worker.pipe.recv()
    except (EOFError, OSError):
        return "crash"
    match kind:
        case "begin":
            worker.index, worker.core = content
            worker.begin(settings.seconds)
        case "end":
            yield content
        case "done":
            worker.case, worker.index = None, None
    return ""


def _bury(worker: _Worker, verdict: str, due: deque[tuple[Case, int]]) -> Iterator[dict[str, Any]]:
    """End a lost process, report its sample, and put what remains of the case back."""
    worker.process.kill()
    worker.process.join()
    assert worker.case is not None
    line = f"exit code {worker.process.exitcode}" if verdict == "crash" else "over the time limit"
    index = -1 if worker.index is None else worker.index
    yield {
        "op": worker.case.name, "dtype": worker.case.dtype, "index": index, "verdict": verdict, "line": line,
        "generic": [], "core": worker.core, "seconds": 0.0, "sample": "", "door": "",
    }
    if index >= 0:
        due.appendleft((worker.case, index + 1))
