"""Programs of several processes for tests: what they import is imported once, and each is a fork of that one."""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from tests.forks import ROOT, fork

# Examples are imported by name, also by interpreters that scenarios start.
ABLE_TO_IMPORT: dict[str, Any] = {"environment": {"PYTHONPATH": str(ROOT / "examples")}, "path": [ROOT / "examples"]}


@dataclass(frozen=True)
class Scenario:
    """Some processes.

    Args:
        body: Called in each with its number; what it returns is kept as JSON.
        ranks: Numbers of the processes.
        environment: Variables; ``{port}`` stands for a free port.
    """

    body: Callable[[int], Any]
    ranks: tuple[int, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What became of a process.

    Args:
        value: What it returned.
        error: Name of the class and text of what it raised, or name of the signal that ended it.
        seconds: How long it took.
    """

    value: Any
    error: tuple[str, str] | None
    seconds: float


def outcomes(
    module: str, *, seconds: float = 300, folder: Path | None = None, at_once: bool = True,
) -> dict[str, list[Outcome]]:
    """Run the scenarios of a module in a process of their own.

    Args:
        module: Its name; ``SCENARIOS`` in it has them by name.
        seconds: After which it is ended.
        folder: Has the folders of the scenarios, by name; a temporary one if None.
        at_once: Whether all scenarios run at the same time, and not one after another.
    """
    with tempfile.TemporaryDirectory(prefix="torchipu-scenarios-") as temporary:
        results = Path(temporary, "results.json")
        process = fork(
            f"{__name__}:run", module, str(folder or temporary), str(results), at_once,
            output=Path(temporary, "printed.txt"), **ABLE_TO_IMPORT,
        )
        process.wait(seconds)
        found = json.loads(results.read_text(encoding="utf-8"))
    return {name: [Outcome(**values) for values in ranks] for name, ranks in found.items()}


class OnDemand(Mapping[str, list[Outcome]]):
    """What became of scenarios, each of which runs when it is asked for first: those of tests left out do not run.

    Args:
        questions: Where the process that runs them reads names.
        answers: Its answers, a line each.
        names: Of the scenarios.
    """

    def __init__(self, questions: TextIO, answers: TextIO, names: Iterable[str]) -> None:
        self._questions, self._answers, self._names = questions, answers, tuple(names)
        self._found: dict[str, list[Outcome]] = {}

    def __getitem__(self, name: str) -> list[Outcome]:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._found:
            print(name, file=self._questions, flush=True)
            answer = self._answers.readline()
            assert answer, f"the process that runs {name!r} has ended"
            self._found[name] = [Outcome(**values) for values in json.loads(answer)]
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@contextmanager
def on_demand(module: str, names: Iterable[str], folder: Path) -> Iterator[OnDemand]:
    """Start a process that imports a module and runs its scenarios as they are asked for.

    Args:
        module: Its name; ``SCENARIOS`` in it has them by name.
        names: Of the scenarios.
        folder: Has the folders of the scenarios, by name.
    """
    (asked, asking), (answered, answering) = os.pipe(), os.pipe()
    process = fork(
        f"{__name__}:answer", module, str(folder), output=folder / "printed.txt", streams=[asked, answering],
        **ABLE_TO_IMPORT,
    )
    os.close(asked)
    os.close(answering)
    with os.fdopen(asking, "w") as questions, os.fdopen(answered) as answers:
        try:
            yield OnDemand(questions, answers, names)
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def prepared(module: str) -> Mapping[str, Scenario]:
    """Import a module, with what its ``warm_up`` imports, for all forks of this process; return its scenarios."""
    imported = importlib.import_module(module)
    if hasattr(imported, "warm_up"):
        imported.warm_up()
    scenarios: Mapping[str, Scenario] = imported.SCENARIOS
    if "torch._dynamo" in sys.modules:  # some scenarios do without torch
        importlib.import_module("tests.spared").spare()
    gc.collect()
    gc.freeze()  # no process looks through what all of them have imported
    return scenarios


def answer(module: str, folder: str, questions: int, answers: int) -> None:
    """Run the scenarios whose names come in, until no more do."""
    scenarios = prepared(module)
    with os.fdopen(questions) as names, os.fdopen(answers, "w") as file:
        for line in names:
            name = line.strip()
            found = _results(_start(scenarios[name], Path(folder, name)))
            print(json.dumps(found), file=file, flush=True)


def run(module: str, folder: str, file: str, at_once: bool) -> None:
    """Run all scenarios, and write what became of them into a file."""
    scenarios = prepared(module)
    found: dict[str, list[Any]] = {}
    running: dict[str, list[tuple[int, Path]]] = {}
    for name, scenario in scenarios.items():
        running[name] = _start(scenario, Path(folder, name))
        if not at_once:
            found[name] = _results(running.pop(name))
    found |= {name: _results(processes) for name, processes in running.items()}
    Path(file).write_text(json.dumps(found), encoding="utf-8")


def _start(scenario: Scenario, place: Path) -> list[tuple[int, Path]]:
    """Fork the processes of a scenario; return their numbers, and the files of their results."""
    place.mkdir(exist_ok=True)
    port = str(free_port())
    environment = {name: value.format(port=port) for name, value in scenario.environment.items()}
    processes = []
    for number, rank in enumerate(scenario.ranks):
        file = place / f"{number}.json"
        process = os.fork()
        if process == 0:
            _run(scenario.body, rank, place, file, environment)
        processes.append((process, file))
    return processes


def _results(processes: list[tuple[int, Path]]) -> list[Any]:
    """Wait for processes; return what became of each."""
    found = []
    for process, file in processes:
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if status < 0:
            found.append({"value": None, "error": (signal.Signals(-status).name, ""), "seconds": 0.0})
        else:
            found.append(json.loads(file.read_text()))
    return found


def _run(body: Callable[[int], Any], rank: int, place: Path, file: Path, environment: Mapping[str, str]) -> None:
    os.chdir(place)
    os.environ.update(environment)
    start = time.monotonic()
    value, error = None, None
    try:
        value = body(rank)
    except BaseException as raised:
        traceback.print_exc()
        error = (type(raised).__name__, str(raised))
    file.write_text(json.dumps({"value": value, "error": error, "seconds": time.monotonic() - start}))
    sys.stderr.flush()
    os._exit(0)
