"""Worker processes, so that a crash or a hang costs one sample and not the run."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tests.opinfo.samples import Case

LISTING_SECONDS = 120.0
"""Time for the first sample of a case: importing, listing the samples and telling whether the operator counts."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How samples are run.

    Attributes:
        most: Samples of each case, evenly spread; None for all.
        dynamo: Fraction that goes through torch.compile.
        seconds: Time limit of a sample.
        samples: Only these numbers; None for all.
        classify: Whether to tell if the operator counts; it is noted as not counting otherwise.
    """

    most: int | None = None
    dynamo: float = 0.03
    seconds: float = 30.0
    samples: tuple[int, ...] | None = None
    classify: bool = True


@dataclass(slots=True)
class _Worker:
    process: Any
    pipe: Connection
    case: Case | None = None
    index: int | None = None
    core: bool = False
    deadline: float = float("inf")


Work = Callable[[Connection, Settings, dict[str, str]], None]


def run_cases(
    cases: Sequence[Case], settings: Settings, num_workers: int, work: Work | None = None,
) -> Iterator[dict[str, Any]]:
    """Run all samples of the cases and yield a result for each, in the order in which they end.

    Args:
        cases: What to run.
        settings: How.
        num_workers: Processes.
        work: What a worker process does; None for `worker.work`.
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
                    worker.index, worker.deadline = None, time.monotonic() + LISTING_SECONDS
                    worker.pipe.send((worker.case, first))
            ready = wait([worker.pipe for worker in workers if worker.case is not None], timeout=1.0)
            for worker in list(workers):
                if worker.case is None:
                    continue
                if worker.pipe in ready:
                    lost = yield from _listen(worker, settings)
                else:
                    lost = "hang" if time.monotonic() > worker.deadline else ""
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
            worker.deadline = time.monotonic() + settings.seconds
        case "end":
            yield content
        case "done":
            worker.case, worker.index, worker.deadline = None, None, float("inf")
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
