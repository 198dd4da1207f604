"""Programs of several processes for tests: torch is imported once, and every process is a fork of that one.

``python -m tests.distributed.forked MODULE`` runs all scenarios of a module at the same time, each in a folder of its
own, and prints what its processes returned or raised as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
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
        error: Name of the class and text of what it raised.
        seconds: How long it took.
    """

    value: Any
    error: tuple[str, str] | None
    seconds: float


def outcomes(module: str, *, seconds: float = 300) -> dict[str, list[Outcome]]:
    """Run the scenarios of a module in a process of their own.

    Args:
        module: Its name; ``SCENARIOS`` in it has them by name.
        seconds: After which it is ended.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.distributed.forked", module], cwd=ROOT, capture_output=True, text=True,
        timeout=seconds, check=False, env=os.environ | {"PYTHONPATH": str(ROOT / "examples")},
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    return {name: [Outcome(**values) for values in ranks] for name, ranks in found.items()}


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def main(module: str) -> None:
    scenarios: Mapping[str, Scenario] = importlib.import_module(module).SCENARIOS
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for name, scenario in scenarios.items():
            place = Path(folder) / name
            place.mkdir()
            port = str(free_port())
            environment = {name: value.format(port=port) for name, value in scenario.environment.items()}
            for number, rank in enumerate(scenario.ranks):
                process = os.fork()
                if process == 0:
                    _run(scenario.body, rank, place, place / f"{number}.json", environment)
                started.append((name, process, place / f"{number}.json"))
        found: dict[str, list[Any]] = {name: [] for name in scenarios}
        for name, process, file in started:
            os.waitpid(process, 0)
            found[name].append(json.loads(file.read_text()))
    print(json.dumps(found))


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
    main(sys.argv[1])
