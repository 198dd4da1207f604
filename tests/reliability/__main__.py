"""``python -m tests.reliability``: do the long runs, print one table, and keep what each found as JSON.

Each run is a process of its own. Without names, all of them. A size that is not the full one is kept with what it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

from tests.reliability.runs import RUNS, Found, counts

RECORDED = Path(__file__).parent / "recorded"
LOGS = Path(__file__).parents[2] / "build" / "reliability"
"""What each run has said."""


def main(given: list[str] | None = None) -> int:
    """Do the runs; return 1 where one of them found what must not be."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(RUNS)}")
    parser.add_argument("--size", type=int, help="of each run; left out, the full ones")
    parser.add_argument("--part", type=float, default=1.0, help="this part of the full size of each run")
    parser.add_argument("--record", type=Path, default=RECORDED, help="folder for what each run found")
    parser.add_argument("--document", type=Path, help="file for the page of all figures, of this and earlier runs")
    parser.add_argument("--here", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(given)
    if unknown := [name for name in options.names if name not in RUNS]:
        parser.error(f"no run is called {unknown[0]!r}; there are {', '.join(RUNS)}")
    if options.here is not None:
        _run_here(options.names[0], options.size, options.here)
        return 0
    failed, lines = [], []
    for name in options.names or RUNS:
        size = options.size or max(1, round(RUNS[name].size * options.part))
        begun = time.monotonic()
        found = _run_apart(name, size, options.record)
        wrong = [f"ended without a result: {LOGS / name}.txt"] if found is None else RUNS[name].failures(found)
        failed += [name] if wrong else []
        lines.append(_line(name, size, time.monotonic() - begun, found or {}, wrong))
        print(lines[-1], flush=True)
    if options.document is not None:
        from tests.reliability.page import page  # which asks this module where records lie

        options.document.write_text(page(options.record), encoding="utf-8")
    if len(lines) > 1:
        print("\n" + "\n".join(lines))
    return 1 if failed else 0


def _run_here(name: str, size: int, path: Path) -> None:
    os.environ.setdefault("TORCHIPU_CACHE", "0")  # that of the user stays as it is
    warnings.simplefilter("ignore")
    found = RUNS[name].function()(size)
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = {"run": name, "day": datetime.date.today().isoformat(), "size": size, "found": found}
    path.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def _run_apart(name: str, size: int, folder: Path) -> Found | None:
    """Do a run in a process of its own; return what it found, None where it did not come to its end."""
    path = folder / f"{name}.json"
    command = [sys.executable, "-m", "tests.reliability", name, "--size", str(size), "--here", str(path)]
    LOGS.mkdir(parents=True, exist_ok=True)
    with (LOGS / f"{name}.txt").open("w") as said:
        status = subprocess.run(command, check=False, stdout=said, stderr=subprocess.STDOUT).returncode
    if status:
        return None
    found: Found = json.loads(path.read_text(encoding="utf-8"))["found"]
    return found


def _line(name: str, size: int, seconds: float, found: Found, wrong: list[str]) -> str:
    state = "NOT AS IT MUST BE: " + "; ".join(wrong) if wrong else "ok"
    figures = ", ".join(f"{key} {count:,}" for key, count in counts(found).items())
    return f"{name:12}{size:>9,} {RUNS[name].unit}, {seconds:,.0f} s: {state}\n{'':12}{figures}"


if __name__ == "__main__":
    sys.exit(main())
