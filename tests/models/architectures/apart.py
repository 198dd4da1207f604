"""Compares an architecture in a process of its own: what Dynamo keeps for one must not count for the next."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection

import torch

from tests.models.architectures.catalogue import named
from tests.models.architectures.comparison import Finding, compare, failed

LIMIT_S = 7200
PROCESSES = multiprocessing.get_context("forkserver")
"""A server that has imported the libraries forks a process for each model.

It cannot find what a ``__main__`` of a package holds, so this module is not that one.
"""
PROCESSES.set_forkserver_preload(["tests.models.architectures.packages"])


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
