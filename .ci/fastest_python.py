"""Print the fastest of the interpreters on PATH that can stand for this one, which is printed if none is faster.

Tests take processor time in Python above all, and one of two interpreters of the same version may take a fifth less: it
depends on how each was compiled.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

ROUNDS = 3
GAIN = 0.9
"""Of the time that this one takes: another that takes less is faster by more than accident."""
# Same release, so that tests run on what was asked for; with what a virtual environment and kernels are made by.
SUITABLE = f"""
import sys, sysconfig, ensurepip, venv
from pathlib import Path
assert sys.version_info[:2] == {sys.version_info[:2]} and sys.implementation.name == {sys.implementation.name!r}
assert (Path(sysconfig.get_path("include")) / "Python.h").exists()
"""
# What tracing is made of: calls, attributes, tuples, dictionaries.
TIMED = """
import time
class Value:
    def __init__(self, place): self.place = place
    def next(self): return Value(self.place + 1)
def run():
    seen, value = {}, Value(0)
    for _ in range(60_000):
        value = value.next()
        seen[value.place & 1023] = (value, str(value.place))
        isinstance(seen.get(value.place & 511), tuple)
def timed():
    begun = time.process_time()
    run()
    return time.process_time() - begun
print(min(timed() for _ in range(5)))
"""


def run(interpreter: str, code: str) -> str | None:
    """Run code; return what it prints, or None where it fails."""
    try:
        done = subprocess.run([interpreter, "-I", "-c", code], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def others() -> list[str]:
    """Return the other interpreters on PATH that can stand for this one."""
    found = [str(Path(folder) / "python3") for folder in os.get_exec_path()]
    by_file = {os.path.realpath(path): path for path in reversed(found) if os.access(path, os.X_OK)}
    by_file.pop(os.path.realpath(sys.executable), None)
    return [path for path in by_file.values() if run(path, SUITABLE) is not None]


def main() -> None:
    """Time each in turn, so that what else the machine does disturbs all alike."""
    least = dict.fromkeys([sys.executable, *others()], math.inf)
    for _ in range(ROUNDS if len(least) > 1 else 0):
        for path, before in least.items():
            least[path] = min(before, float(run(path, TIMED) or "inf"))
    fastest = min(least, key=lambda path: least[path])
    print(fastest if least[fastest] < GAIN * least[sys.executable] else sys.executable)


main()
