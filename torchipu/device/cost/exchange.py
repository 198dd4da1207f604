"""Cycles of moving data: between tiles, between IPUs, from and to the host and Streaming Memory."""

from __future__ import annotations

import math

from torchipu.target import Target

CYCLES_PER_FRAGMENT = 3  # source select, neutral, pointer; measured on silicon, ipu_hardware.md 1.4
REGULAR_FACTOR = 1.05  # schedules of block-regular patterns against the ideal; ipu_hardware.md 3.5
SCATTERED_FACTOR = 1.4  # the same of transposes of tiled matrices, 1.3 to 1.5
SMALL_FRAGMENT_BYTES = 64  # estimate: below, a pattern counts as scattered


def exchange_cycles(target: Target, max_tile_bytes: int, fragments: int = 1) -> int:
    """Return the cycles of an exchange, without its sync, from what the busiest tile receives.

    ``max(bytes / 4, 3 x fragments)``, times a factor for conflicts in the schedule.

    Args:
        target: The machine.
        max_tile_bytes: Bytes received by the busiest tile.
        fragments: Contiguous pieces among them.

    Source: measurements on C600 silicon, ``ipu_hardware.md`` 1.4 and 3.5.
    """
    if max_tile_bytes <= 0:
        return 0
    payload = -(-max_tile_bytes // target.exchange_bytes_per_cycle)
    scattered = fragments > 1 and max_tile_bytes < SMALL_FRAGMENT_BYTES * fragments
    factor = SCATTERED_FACTOR if scattered else REGULAR_FACTOR
    return math.ceil(max(payload, CYCLES_PER_FRAGMENT * fragments) * factor)


def link_cycles(target: Target, total_bytes: float) -> int:
    """Return the cycles of a copy from one IPU to another."""
    return math.ceil(total_bytes / target.link_bytes_per_cycle)


def all_reduce_cycles(target: Target, total_bytes: int, replicas: int, ipus_per_replica: int = 1) -> int:
    """Return the cycles of adding up ``total_bytes`` of one IPU over replicas.

    Among the IPUs that links join this is a ring; a system, whose machines are known, takes the faster one of a ring
    and of `hierarchy_cycles`. Replicas beyond these IPUs (``Target.linked_ipus``) are in other pods: the first half of
    each pod's all-reduce leaves every IPU a share of the sums, the twins of each share make rings through the gateways,
    and the second half gathers them.

    Args:
        target: The machine.
        total_bytes: What each replica has on this IPU.
        replicas: Replicas, of all processes.
        ipus_per_replica: IPUs of each.

    Source: ``ipu_hardware.md`` 4.3 for the bytes; the sync of every step is an estimate.
    """
    if replicas == 1 or total_bytes == 0:
        return 0
    linked = min(replicas, max(1, linked_ipus(target) // ipus_per_replica))
    cycles = ring_cycles(target, total_bytes, linked, ipus_per_replica)
    if target.is_system:
        cycles = min(cycles, hierarchy_cycles(target, total_bytes, linked, ipus_per_replica))
    pods = -(-replicas // linked)
    if pods == 1:
        return cycles
    steps = 2 * (pods - 1)
    through_gateways = total_bytes / linked * steps / pods * target.clock_hz / target.gateway_bytes_per_s
    return cycles + math.ceil(through_gateways) + steps * target.ipu_sync_cycles


def linked_ipus(target: Target) -> int:
    """Return how many IPUs links join: no more than there are."""
    return min(target.linked_ipus, target.num_ipus)


def ring_cycles(target: Target, total_bytes: float, replicas: int, ipus_per_replica: int = 1) -> int:
    """Return the cycles of an all-reduce in one ring over IPU-Links.

    Each IPU sends, and receives, ``(R - 1) / R`` of the bytes to reduce them and as much again to gather the sums, in
    ``2 (R - 1)`` steps with a sync each. In a system the IPUs of a replica have a ring each, and all of these share the
    links that lead from a machine to the next.

    Args:
        target: The machine.
        total_bytes: What each replica has on this IPU.
        replicas: Replicas that take part, all of them joined by links.
        ipus_per_replica: IPUs of each.

    Source: ``ipu_hardware.md`` 4.3 for the bytes, 1.5 for the links; the sync of every step is an estimate.
    """
    steps = 2 * (replicas - 1)
    if target.is_system and replicas * ipus_per_replica > target.ipus_per_machine:
        bytes_per_cycle = _between_machines(target, ipus_per_replica)
    else:
        bytes_per_cycle = target.link_bytes_per_cycle
    return math.ceil(total_bytes * steps / replicas / bytes_per_cycle) + steps * target.ipu_sync_cycles


def hierarchy_cycles(target: Target, total_bytes: float, replicas: int, ipus_per_replica: int = 1) -> int:
    """Return the cycles of an all-reduce in rings within machines, and then in rings between them.

    The ring of a machine leaves each replica there a share of the sums; the twins of each share make a ring over the
    machines; the machine's own ring gathers them. That is ``2 (a - 1) + 2 (m - 1)`` steps for ``m`` machines of ``a``
    replicas, fewer than the ``2 (a m - 1)`` of one ring, but all IPUs of a machine share its links to the next.

    Args:
        target: The machine.
        total_bytes: What each replica has on this IPU.
        replicas: Replicas that take part, all of them joined by links.
        ipus_per_replica: IPUs of each.

    Source: as of `ring_cycles`; that the twins' rings share the links to the next machine evenly is an estimate.
    """
    within = min(replicas, max(1, target.ipus_per_machine // ipus_per_replica))
    machines = -(-replicas // within)
    steps = 2 * (within - 1)
    cycles = link_cycles(target, total_bytes * steps / within) + steps * target.ipu_sync_cycles
    if machines == 1:
        return cycles
    steps = 2 * (machines - 1)
    share = total_bytes / within * steps / machines
    between = share / _between_machines(target, within * ipus_per_replica)
    return cycles + math.ceil(between) + steps * target.ipu_sync_cycles


def _between_machines(target: Target, rings: int) -> float:
    """Return what a ring sends from one machine to the next in a cycle, beside others that do so at the same time."""
    return min(target.link_bytes_per_cycle, target.machine_link_bytes_per_s / target.clock_hz / rings)


def collective_cycles(
    target: Target, kind: str, total_bytes: int, replicas: int, ipus_per_replica: int = 1,
) -> int:
    """Return the cycles of a collective over replicas.

    Reducing to shares, gathering shares and exchanging them each move as many bytes as one half of an all-reduce, in
    as many steps. A broadcast goes round a ring in pieces: every IPU passes on all bytes, at the speed of the slowest
    link between two of them.

    Args:
        target: The machine.
        kind: One of ``AllReduce.kind``.
        total_bytes: Of the whole on one IPU: of what is reduced, gathered, broadcast, exchanged or sent.
        replicas: How many take part, of all processes.
        ipus_per_replica: IPUs of each.

    Source: as of ``all_reduce_cycles``; those of a broadcast, an exchange and a send are estimates.
    """
    if kind == "all_reduce":
        return all_reduce_cycles(target, total_bytes, replicas, ipus_per_replica)
    if kind not in ("broadcast", "point_to_point"):
        return -(-all_reduce_cycles(target, total_bytes, replicas, ipus_per_replica) // 2)
    if replicas == 1 or total_bytes == 0:
        return 0
    cycles = link_cycles(target, total_bytes)
    if replicas * ipus_per_replica > linked_ipus(target):
        cycles = max(cycles, math.ceil(total_bytes * target.clock_hz / target.gateway_bytes_per_s))
    return cycles + (replicas - 1) * target.ipu_sync_cycles


def host_cycles(target: Target, total_bytes: int) -> int:
    """Return the cycles of a stream between the host and one IPU."""
    return math.ceil(total_bytes * target.clock_hz / target.host_bytes_per_s)


def streaming_cycles(target: Target, total_bytes: int) -> int:
    """Return the cycles of a transfer between Streaming Memory and one IPU."""
    return math.ceil(total_bytes * target.clock_hz / target.streaming_bytes_per_s)
