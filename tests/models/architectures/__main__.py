"""Compares all architectures, or those named, with eager, and writes ``docs/models.md``.

    python -m tests.models.architectures                  # all
    python -m tests.models.architectures bert resnet18    # these; the page keeps what was found of the others
    python -m tests.models.architectures --missing        # those that the page has nothing of
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import track

from tests.models.architectures import findings
from tests.models.architectures.apart import compared_apart
from tests.models.architectures.catalogue import ALL, missing_libraries


def main(names: list[str]) -> int:
    """Compare, print, and enter what was found; 1 when any fails."""
    if missing_libraries():
        print(f'{", ".join(missing_libraries())}: not installed; pip install -e ".[models]"', file=sys.stderr)
        return 2
    console = Console(stderr=True)
    wanted = names or [architecture.name for architecture in ALL]
    if names == ["--missing"]:
        known = {finding.name for finding in findings.read()}
        wanted = [architecture.name for architecture in ALL if architecture.name not in known]
    passed = True
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for finding in track(pool.map(compared_apart, wanted), "comparing", total=len(wanted), console=console):
            findings.enter(finding)  # one by one: a run that is broken off leaves what it has found
            passed = passed and finding.passed
            console.print(f"{'ok  ' if finding.passed else 'FAIL'} {finding.name} {finding.failure}", highlight=False)
            for line in finding.beyond[:10]:
                console.print(f"     {line}", highlight=False)
    console.print(f"wrote {findings.PAGE}", highlight=False)
    return int(not passed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
