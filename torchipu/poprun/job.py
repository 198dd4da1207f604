"""What a command line of ``poprun`` means: hosts, instances, replicas, CPUs and variables."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass

from torchipu.errors import OptionsError
from torchipu.poprun import cpus, hosts
from torchipu.poprun.arguments import CommandLine
from torchipu.poprun.mpi_arguments import MpiArguments, read_mpi_arguments

DEFAULT_PORT = 29400
HOST_THREADS = "TORCHIPU_HOST_THREADS"
"""Variable that says how many threads a program of torchipu uses unless its options do."""


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be started.

    Attributes:
        program: The program and its arguments.
        num_instances: Processes on all hosts.
        num_replicas: Replicas of all instances.
        ipus_per_replica: IPUs of each.
        hosts: Names of the hosts, as far as they are known; one at least.
        node_rank: Which of them this one is.
        endpoint: Where hosts meet; an empty text for one host.
        job_id: Name of the job.
        max_restarts: How often instances are started again.
        cpus: CPUs of each instance of this host.
        is_bound: Whether instances may run on those only.
        environment: Variables of all instances.
        folder: Where instances run; an empty text for that of the launcher.
        tags_output: Whether lines are tagged.
        only_from: The one instance whose output is shown, or None.
        log_folder: Where output is kept, or an empty text.
    """

    program: tuple[str, ...]
    num_instances: int
    num_replicas: int
    ipus_per_replica: int
    hosts: tuple[str, ...]
    node_rank: int
    endpoint: str
    job_id: str
    max_restarts: int
    cpus: tuple[tuple[int, ...], ...]
    is_bound: bool
    environment: Mapping[str, str]
    folder: str
    tags_output: bool
    only_from: int | None
    log_folder: str

    @property
    def num_local_instances(self) -> int:
        """Processes of this host."""
        return self.num_instances // len(self.hosts)

    @property
    def num_local_replicas(self) -> int:
        """Replicas of an instance."""
        return self.num_replicas // self.num_instances

    @property
    def num_threads(self) -> int:
        """Threads of an instance, so that those of one host do not fight for its CPUs."""
        return min(len(share) for share in self.cpus)


def job_of(line: CommandLine) -> Job:
    """Return what a command line asks for.

    Args:
        line: What was written.

    Raises:
        OptionsError: Options contradict each other.
    """
    values = line.values
    if not line.program:
        raise OptionsError("there is no program to run", option="program", remedy="poprun [options] python3 train.py")
    names, node_rank = _hosts(values)
    _check_divisible(values, len(names))
    mpi = read_mpi_arguments((*values.mpi_global_args, *values.mpi_local_args))
    only_from = values.only_output_from_instance
    if only_from is not None and only_from >= values.num_instances:
        raise OptionsError(
            f"--only-output-from-instance {only_from} names none of {values.num_instances} instances: they are "
            f"numbered from 0 to {values.num_instances - 1}", option="only-output-from-instance",
        )
    num_local = values.num_instances // len(names)
    nodes = cpus.nodes_of_host()
    return Job(
        program=line.program, num_instances=values.num_instances, num_replicas=values.num_replicas,
        ipus_per_replica=values.ipus_per_replica, hosts=names, node_rank=node_rank,
        endpoint=_endpoint(values, names), job_id=values.rdzv_id, max_restarts=values.max_restarts,
        cpus=tuple(cpus.shares(num_local, nodes)), is_bound=values.numa_aware,
        environment=_environment(values, line.given, mpi), folder=mpi.folder,
        tags_output=values.tag_output or mpi.tags_output, only_from=only_from, log_folder=values.log_dir,
    )


def remarks(line: CommandLine) -> list[str]:
    """Return what to tell the user of options without effect.

    Args:
        line: What was written.
    """
    from torchipu.poprun.arguments import BY_NAME

    found = []
    mpi = read_mpi_arguments((*line.values.mpi_global_args, *line.values.mpi_local_args))
    if mpi.ignored:
        found.append(f"arguments of mpirun without effect here: {', '.join(mpi.ignored)}")
    without = sorted(f"--{name}" for name in line.given if not BY_NAME[name].has_effect)
    if line.verbosity and without:
        found.append(f"options without effect on an emulated machine: {', '.join(without)}")
    return found


def _hosts(values: argparse.Namespace) -> tuple[tuple[str, ...], int]:
    """Return the hosts and which of them this one is."""
    names = hosts.expand(values.host) if values.host else ()
    if names and values.nnodes not in (1, len(names)):
        raise OptionsError(f"--nnodes {values.nnodes} and {len(names)} hosts of --host disagree", option="nnodes")
    if not names:
        names = tuple(f"host {number}" for number in range(values.nnodes)) if values.nnodes > 1 else ("localhost",)
        place = 0 if values.nnodes == 1 else None
    else:
        place = hosts.own_place(names)
    place = place if values.node_rank is None else values.node_rank
    if place is None:
        what = f"--host {values.host} does not name this host ({', '.join(sorted(hosts.own_names()))})"
        raise OptionsError(
            what if values.host else f"--nnodes {values.nnodes} needs --node-rank", option="node-rank",
            remedy="start the same command on every host, each with its --node-rank where --host does not tell it",
        )
    if place >= len(names):
        raise OptionsError(
            f"--node-rank {place} is none of {len(names)} hosts: they are numbered from 0 to {len(names) - 1}",
            option="node-rank",
        )
    return names, place


def _endpoint(values: argparse.Namespace, names: tuple[str, ...]) -> str:
    if len(names) == 1:
        return ""
    endpoint = str(values.rdzv_endpoint)
    if not endpoint and not values.host:
        raise OptionsError(
            f"--nnodes {values.nnodes} needs --rdzv-endpoint", option="rdzv-endpoint",
            remedy="name the first host and a free port of it, the same on all hosts: --rdzv-endpoint h0:29400",
        )
    host, colon, port = (endpoint or names[0]).rpartition(":") if ":" in endpoint else (endpoint or names[0], "", "")
    if colon and (not port.isdecimal() or not 0 < int(port) < 1 << 16):
        raise OptionsError(f"--rdzv-endpoint {endpoint!r} has no port from 1 to 65535", option="rdzv-endpoint")
    return f"{host}:{port or DEFAULT_PORT}"


def _check_divisible(values: argparse.Namespace, num_hosts: int) -> None:
    instances, replicas = values.num_instances, values.num_replicas
    if replicas % instances:
        raise OptionsError(
            f"--num-replicas {replicas} cannot be shared out among --num-instances {instances}: --num-replicas counts "
            "those of all instances, and each has the same number per process", option="num-replicas", value=replicas,
            remedy=f"--num-replicas {-(-replicas // instances) * instances} makes {-(-replicas // instances)} per "
                   "process",
        )
    if instances % num_hosts:
        raise OptionsError(
            f"--num-instances {instances} cannot be shared out among {num_hosts} hosts", option="num-instances",
            remedy=f"--num-instances {-(-instances // num_hosts) * num_hosts}",
        )


def _environment(values: argparse.Namespace, given: frozenset[str], mpi: MpiArguments) -> dict[str, str]:
    found = {}
    if values.executable_cache_path:
        found["POPTORCH_CACHE_DIR"] = os.path.abspath(values.executable_cache_path)
    partition = {
        "vipu-server-host": "IPUOF_VIPU_API_HOST", "vipu-server-port": "IPUOF_VIPU_API_PORT",
        "vipu-partition": "IPUOF_VIPU_API_PARTITION_ID", "vipu-server-timeout": "IPUOF_VIPU_API_TIMEOUT",
    }
    for name, variable in partition.items():
        if name in given:
            found[variable] = str(getattr(values, name.replace("-", "_")))
    return {**found, **mpi.environment}
