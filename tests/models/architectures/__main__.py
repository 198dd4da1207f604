"""Compares all architectures, or those named, with eager, and writes ``docs/models.md``.

    python -m tests.models.architectures                  # all
    python -m tests.models.architectures bert resnet18    # these; the page keeps what was found of the others
    python -m tests.models.architectures --missing        # those that the page has nothing of
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import torch
from rich.console import Console
from rich.progress import track

from tests.models.architectures import findings
from tests.models.architectures.catalogue import ALL, missing_libraries, named
from tests.models.architectures.comparison import Finding, compare, failed

LIMIT_S = 7200
# A server that has imported the libraries forks a fresh process for each model: what Dynamo keeps for one must not
# count for the next.
PROCESSES = multiprocessing.get_context("forkserver")


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
    PROCESSES.set_forkserver_preload(["tests.models.architectures.packages"])
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for finding in track(pool.map(compared_apart, wanted), "comparing", total=len(wanted), console=console):
            findings.enter(finding)  # one by one: a run that is broken off leaves what it has found
            passed = passed and finding.passed
            console.print(f"{'ok  ' if finding.passed else 'FAIL'} {finding.name} {finding.failure}", highlight=False)
            for line in finding.beyond[:10]:
                console.print(f"     {line}", highlight=False)
    console.print(f"wrote {findings.PAGE}", highlight=False)
    return int(not passed)


def compared_apart(name: str) -> Finding:
    """Compare one architecture in a process of its own."""
    receiver, sender = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=_send_finding, args=(name, sender))
    process.start()
    sender.close()
    try:
        if receiver.poll(LIMIT_S):
            finding: Finding = receiver.recv()
            return finding
        return Finding(name, named(name).package, failure=f"took more than {LIMIT_S} s")
    except EOFError:
        process.join()
        return Finding(name, named(name).package, failure=f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _send_finding(name: str, sender: Connection) -> None:
    torch.set_num_threads(1)  # the tensors are too small for more
    architecture = named(name)
    try:
        finding = compare(architecture)
    except Exception as error:  # whatever a model raises is a finding
        finding = failed(architecture, error)
    sender.send(finding)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
