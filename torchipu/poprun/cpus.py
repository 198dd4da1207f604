"""How instances of one host share its CPUs."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def shares(num_instances: int, nodes: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return the CPUs of each instance: as many for each as possible, of one NUMA node where that can be.

    Args:
        num_instances: Instances of this host.
        nodes: The CPUs of each NUMA node.
    """
    cpus = [cpu for node in nodes for cpu in node]
    if len(cpus) <= num_instances:
        return [(cpus[instance % len(cpus)],) for instance in range(num_instances)]
    if num_instances >= len(nodes):
        # Whole instances to each node, blocks of neighbours.
        least, more = divmod(num_instances, len(nodes))
        found: list[tuple[int, ...]] = []
        for number, node in enumerate(nodes):
            found += _cut(node, least + (number < more))
        return found
    least, more = divmod(len(nodes), num_instances)
    found, begin = [], 0
    for instance in range(num_instances):
        end = begin + least + (instance < more)
        found.append(tuple(cpu for node in nodes[begin:end] for cpu in node))
        begin = end
    return found


def nodes_of_host() -> list[list[int]]:
    """Return the CPUs of each NUMA node that this process may run on; one node where the system names none."""
    allowed = os.sched_getaffinity(0)
    found = []
    for file in sorted(NODES.glob("node[0-9]*/cpulist"), key=lambda file: int(file.parent.name.removeprefix("node"))):
        node = sorted(allowed & _numbers(file.read_text()))
        if node:
            found.append(node)
    rest = sorted(allowed - {cpu for node in found for cpu in node})
    return [*found, rest] if rest else found


def spelled(cpus: Sequence[int]) -> str:
    """Return numbers of CPUs as ``0-3,8``."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _numbers(text: str) -> set[int]:
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _cut(cpus: Sequence[int], num_parts: int) -> list[tuple[int, ...]]:
    """Cut CPUs into parts of as equal a size as can be, of one each where there are too few."""
    if num_parts > len(cpus):
        return [(cpus[part % len(cpus)],) for part in range(num_parts)]
    ends = [len(cpus) * part // num_parts for part in range(num_parts + 1)] if num_parts else []
    return [tuple(cpus[begin:end]) for begin, end in itertools.pairwise(ends)]
