"""The matrix of faults: every fault at every moment in the first and the last instance, of two and of four.

``make faults`` runs all 120 and prints what came of each; `run_each` runs some of them. Each case is a training under
``poprun``. It must end soon, with a status that is not 0, naming the instance and the cause; nothing it has started may
be left, and the last checkpoint must load.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import torchipu.poptorch as poptorch
from torchipu.poprun import launch  # noqa: F401 - imported once for all cases
from torchipu.poprun.command import main as poprun

ROOT = Path(__file__).parents[2]
FAULTS = ("KILL", "TERM", "STOP", "ABRT", "exception")
MOMENTS = ("start", "init", "compile", "first step", "mid epoch", "save")
SIZES = (2, 4)
CAUSES = {
    "KILL": "was ended by SIGKILL", "TERM": "was ended by SIGTERM", "STOP": "was stopped (SIGSTOP)",
    "ABRT": "was ended by SIGABRT", "exception": "ValueError: the fault of this test",
}
STATUSES = {"KILL": 137, "TERM": 143, "ABRT": 134, "exception": 1, "STOP": 137}
SECONDS, SECONDS_BEYOND_TIMEOUT = 10.0, 5.0
CHECKPOINT = "checkpoint.poptorch"


@dataclass(frozen=True)
class Case:
    """One training.

    Args:
        fault: A signal without SIG, or exception.
        moment: When.
        rank: In which instance.
        size: Of how many.
    """

    fault: str
    moment: str
    rank: int
    size: int

    def __str__(self) -> str:
        return f"{self.fault} at {self.moment} in {self.rank} of {self.size}"


@dataclass(frozen=True)
class Result:
    """What came of a case.

    Args:
        case: The case.
        seconds: From the fault to the end of the launcher.
        wrong: What is not as it must be.
        text: What the launcher has written.
    """

    case: Case
    seconds: float
    wrong: tuple[str, ...]
    text: str


CASES = tuple(
    Case(fault, moment, rank, size)
    for size in SIZES for fault, moment in itertools.product(FAULTS, MOMENTS) for rank in (0, size - 1)
)


def run_each(
    cases: Iterable[Case], *, at_once: int = 1, init_seconds: float = 15, exchange_seconds: float = 6,
    seconds: float = SECONDS,
) -> Iterator[Result]:
    """Run cases and yield what came of each.

    Args:
        cases: The cases.
        at_once: How many at the same time.
        init_seconds: How long instances wait for each other at the beginning.
        exchange_seconds: And later. Both must be longer than the difference of their speeds.
        seconds: How soon a training without a timeout must end.
    """
    waiting = deque(cases)
    running: dict[int, tuple[Case, Path]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_checkpoint(folder / CHECKPOINT)
        while waiting or running:
            while waiting and len(running) < at_once:
                case = waiting.popleft()
                place = folder / str(case).replace(" ", "_")
                place.mkdir()
                shutil.copy(folder / CHECKPOINT, place)
                process = os.fork()
                if process == 0:
                    _become_launcher(case, place, init_seconds, exchange_seconds)
                running[process] = case, place
            process, status = os.wait()
            case, place = running.pop(process)
            timeout = 0.0
            if case.fault == "STOP":
                timeout = init_seconds if case.moment in ("start", "init") else exchange_seconds
            result = _judge(case, place, os.waitstatus_to_exitcode(status), time.time(), timeout, seconds)
            _report(result)
            yield result


def _become_launcher(case: Case, place: Path, init_seconds: float, exchange_seconds: float) -> None:
    os.chdir(place)
    for number in (1, 2):
        os.dup2(os.open("said", os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    os.environ.update({
        "FAULT": case.fault, "FAULT_MOMENT": case.moment, "FAULT_RANK": str(case.rank), "FAULT_PLACE": str(place),
        "TORCHIPU_INIT_TIMEOUT": str(init_seconds), "TORCHIPU_COLLECTIVE_TIMEOUT": str(exchange_seconds),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "aliases"), os.environ.get("PYTHONPATH", "")]),
    })
    program = str(Path(__file__).with_name("faulty_training.py"))
    size = str(case.size)
    status = 99
    with contextlib.suppress(SystemExit):
        status = poprun(["--num-instances", size, "--num-replicas", size, sys.executable, program])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _judge(case: Case, place: Path, status: int, ended: float, timeout: float, soon: float) -> Result:
    text = (place / "said").read_text(errors="replace")
    struck = place / "struck"
    if not struck.exists():
        return Result(case, 0.0, (f"the fault did not happen, status {status}",), text)
    seconds = ended - float(struck.read_text())
    allowed = timeout + SECONDS_BEYOND_TIMEOUT if timeout else soon
    summary = text[text.rfind("poprun: instance") :]
    expected = f"poprun: instance {case.rank} of {case.size} (rank {case.rank}, pid "
    wrong = []
    if status != STATUSES[case.fault]:
        wrong.append(f"status {status}")
    if seconds > allowed:
        wrong.append(f"{seconds:.1f} s, allowed {allowed:g} s")
    if not summary.startswith(expected):
        wrong.append(f"the summary begins with {summary[:60]!r}")
    if CAUSES[case.fault] not in summary:
        wrong.append(f"the summary has no {CAUSES[case.fault]!r}")
    if left := _left_behind(place):
        wrong.append(f"left behind: {left}")
    try:
        loaded = poptorch.load(place / CHECKPOINT, lambda options: options.showCompilationProgressBar(False))
        weights = loaded.model.state_dict()
        if not all(torch.isfinite(value).all() for value in weights.values()):
            wrong.append("the checkpoint has other values than weights")
    except Exception as error:
        wrong.append(f"the checkpoint does not load: {error}")
    return Result(case, seconds, tuple(wrong), text)


def _left_behind(place: Path) -> list[str]:
    """Return the processes that have this case in their environment."""
    mark, found = f"FAULT_PLACE={place}\0".encode(), []
    for file in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in file.read_bytes() and (file.parent / "stat").read_text().rpartition(")")[2].split()[0] != "Z":
                found.append(f"{file.parent.name} {(file.parent / 'cmdline').read_text()}")
    return found


def _write_checkpoint(path: Path) -> None:
    """Write the checkpoint of an earlier run, which a training finds when it begins."""
    model = torch.nn.Linear(4, 2)
    executor = poptorch.inferenceModel(model, poptorch.Options().showCompilationProgressBar(False))
    executor.compile(torch.zeros(1, 4))
    executor.save(path)


def _report(result: Result) -> None:
    state = "; ".join(result.wrong) if result.wrong else "right"
    print(f"{result.case!s:<40}{result.seconds:6.1f} s  {state}", flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Run the matrix, or those cases whose names have all the given words."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", help="run only cases with these words, such as KILL 'mid epoch' 'of 2'")
    parser.add_argument("--case", action="append", default=[], help="run the case of this name; may be repeated")
    parser.add_argument("--at-once", type=int, default=1, help="cases at the same time")
    parser.add_argument("--init-seconds", type=float, default=15)
    parser.add_argument("--exchange-seconds", type=float, default=6)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for the end of those without a timeout")
    flags = parser.parse_args(words)
    chosen = [case for case in CASES if all(word in str(case) for word in flags.words)]
    if flags.case:
        chosen = [case for case in chosen if str(case) in flags.case]
    torch.set_num_threads(1)
    results = list(run_each(
        chosen, at_once=flags.at_once, init_seconds=flags.init_seconds, exchange_seconds=flags.exchange_seconds,
        seconds=flags.seconds,
    ))
    wrong = [result for result in results if result.wrong]
    for result in wrong:
        print(f"\n{result.case}: {'; '.join(result.wrong)}\n{result.text}")
    slowest = max((r.seconds for r in results if r.case.fault != "STOP"), default=0.0)
    print(f"\n{len(results) - len(wrong)} of {len(results)} as they must be; the slowest end without a timeout took "
          f"{slowest:.1f} s")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
