"""The table of ``--print-topology``: which host, instance, replicas, IPUs and CPUs go together."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from torchipu.poprun.cpus import spelled
from torchipu.poprun.job import Job


def print_topology(job: Job) -> None:
    """Print where everything of a job is.

    Args:
        job: The job.
    """
    table = Table(title=f"{job.num_replicas} replicas of {job.ipus_per_replica} IPUs in {job.num_instances} instances")
    for name in ("host", "instance", "replicas", "IPUs", "CPUs" if job.is_bound else "threads"):
        table.add_column(name, justify="left" if name == "host" else "right")
    per_host, replicas = job.num_local_instances, job.num_local_replicas
    ipus = replicas * job.ipus_per_replica
    for instance in range(job.num_instances):
        place, local = divmod(instance, per_host)
        # Of another host nobody here knows the CPUs.
        share = job.cpus[local] if place == job.node_rank else ()
        shown = (spelled(share) if job.is_bound else str(job.num_threads)) if share else "?"
        table.add_row(
            job.hosts[place], str(instance), _range(instance * replicas, replicas),
            _range(local * ipus, ipus), shown,
        )
    Console().print(table)


def _range(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"
