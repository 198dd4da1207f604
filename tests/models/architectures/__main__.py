"""Compares all architectures, or those named, with eager.

    python -m tests.models.architectures                  # all; writes docs/models.md
    python -m tests.models.architectures bert resnet18    # these; prints what is beyond the limit
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track

from tests.models.architectures.catalogue import ALL, missing_libraries, named
from tests.models.architectures.comparison import Finding, compare, failed
from tests.models.architectures.table import page

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
LIMIT_S = 1800


def main(names: list[str]) -> int:
    """Compare, print, and write the page when all architectures were asked for; 1 when any fails."""
    if names[:1] == ["--json"]:  # one architecture in a process of its own
        print(json.dumps(asdict(_compared(names[1]))))
        return 0
    if missing_libraries():
        print(f'{", ".join(missing_libraries())}: not installed; pip install -e ".[models]"', file=sys.stderr)
        return 2
    console = Console(stderr=True)
    findings = []
    for name in track(names or [architecture.name for architecture in ALL], "comparing", console=console):
        finding = _apart(name)
        findings.append(finding)
        console.print(f"{'ok  ' if finding.passed else 'FAIL'} {name} {finding.failure}", highlight=False)
        for line in finding.beyond[:10]:
            console.print(f"     {line}", highlight=False)
    if names:
        print(page(findings))
    else:
        PAGE.write_text(page(findings), encoding="utf-8")
        console.print(f"wrote {PAGE}", highlight=False)
    return int(not all(finding.passed for finding in findings))


def _apart(name: str) -> Finding:
    """Compare in a fresh process: what Dynamo keeps for one model shall not count for the next."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name.removesuffix(".__main__"), "--json", name],
            capture_output=True, text=True, check=False, timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Finding(name, named(name).library, failure=f"took more than {LIMIT_S} s")
    if done.returncode:
        return Finding(name, named(name).library, failure=f"exit {done.returncode}: {done.stderr[-300:]}")
    return Finding(**json.loads(done.stdout.splitlines()[-1]))


def _compared(name: str) -> Finding:
    torch.set_num_threads(1)  # the tensors are too small for more
    try:
        return compare(named(name))
    except Exception as error:  # whatever a model raises is a finding
        return failed(named(name), error)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
