"""Programs of several processes for tests: torch is imported once, and every process is a fork of that one.

``python -m tests.distributed.forked MODULE FOLDER AT_ONCE`` runs the scenarios of a module, each in a folder of its
own, and prints what its processes returned or raised as JSON.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


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
    with tempfile.TemporaryDirectory() as temporary:
        done = subprocess.run(
            [sys.executable, "-m", "tests.distributed.forked", module, str(folder or temporary), str(int(at_once))],
            cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT / "examples")},
        )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: [Outcome(**values) for values in ranks] for name, ranks in found.items()}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main(module: str, folder: Path, *, at_once: bool) -> None:
    scenarios: Mapping[str, Scenario] = importlib.import_module(module).SCENARIOS
    if "torch._dynamo" in sys.modules:  # some scenarios do without torch
        importlib.import_module("tests.spared").spare()
    gc.collect()
    gc.freeze()  # no process looks through what all of them have imported
    found: dict[str, list[Any]] = {}
    running: dict[str, list[tuple[int, Path]]] = {}
    for name, scenario in scenarios.items():
        running[name] = _start(scenario, folder / name)
        if not at_once:
            found[name] = _results(running.pop(name))
    found |= {name: _results(processes) for name, processes in running.items()}
    print(json.dumps(found))


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


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), at_once=sys.argv[3] == "1")
