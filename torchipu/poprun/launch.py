"""Starts the instances of a job on this host, and waits for their end."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.api import RendezvousError as AgentRendezvousError
from torch.distributed.elastic.rendezvous.api import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from torchipu.distributed.meeting import why_nobody_answers
from torchipu.distributed.timeouts import COLLECTIVE_TIMEOUT, DEFAULT_SECONDS, INIT_TIMEOUT, seconds_of
from torchipu.errors import RendezvousError
from torchipu.poprun.agent import Guard, InstanceAgent
from torchipu.poprun.child import PLAN
from torchipu.poprun.job import HOST_THREADS, Job
from torchipu.poprun.output import Output
from torchipu.poprun.summary import cause_of, exit_status, summary

POLL_SECONDS = 0.05
STOPPED_SECONDS = 2.0
SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


class OneHost(StaticTCPRendezvous):
    """The meeting of an agent with nobody: a new store for each attempt, at a port that is free.

    Args:
        job_id: Name of the job.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__("localhost", 0, 0, 1, job_id, timeout=int(seconds_of(INIT_TIMEOUT)) or 1)

    def next_rendezvous(self) -> RendezvousInfo:
        """Return a store that nobody else has."""
        store = TCPStore("localhost", 0, is_master=True, timeout=self.timeout, wait_for_workers=False)
        self._store = store
        return RendezvousInfo(
            PrefixStore(self.run_id, store), 0, 1, RendezvousStoreInfo("localhost", store.port),
        )


def launch(job: Job) -> int:
    """Run a job, and return its status.

    Args:
        job: What to start.

    Raises:
        RendezvousError: Hosts do not come together.
    """
    environment = dict(os.environ)
    # What instances are told of waiting holds for those who wait for instances.
    os.environ.update({name: job.environment[name] for name in DEFAULT_SECONDS if name in job.environment})
    output = Output(tags=job.tags_output, only_from=job.only_from, folder=job.log_folder)
    guard = Guard()
    os.environ[PLAN] = _plan(job, guard)
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = SIGNALS
    for variable in ("OMP_NUM_THREADS", HOST_THREADS):
        os.environ.setdefault(variable, str(job.num_threads))
    status = 0

    def note_failure(agent: InstanceAgent) -> None:
        nonlocal status
        status = _tell(agent, output, job)

    agent: InstanceAgent | None = None
    try:
        handler = _rendezvous(job)
        spec = WorkerSpec(
            role="instance", local_world_size=job.num_local_instances, rdzv_handler=handler,
            entrypoint=sys.executable, args=("-I", "-S", str(Path(__file__).with_name("child.py"))),
            max_restarts=job.max_restarts, monitor_interval=POLL_SECONDS,
            local_addr=None if job.endpoint else "localhost",
        )
        # Those that wait for one that was stopped give up first, and say so.
        stopped_seconds = seconds_of(COLLECTIVE_TIMEOUT) + STOPPED_SECONDS
        agent = InstanceAgent(spec, output, guard, stopped_seconds, note_failure)
        result = agent.run()
        handler.shutdown()
        return status or 1 if result.is_failed() else 0
    except SignalException as signalled:
        sys.stderr.write(f"poprun: ended by {signalled.sigval.name}, and all instances with it\n")
        return 128 + int(signalled.sigval)
    except RendezvousError:
        raise
    except (AgentRendezvousError, RuntimeError, ValueError, TimeoutError) as error:
        if agent is not None and agent.deaths is not None:
            raise
        raise _absence(job, error) from error
    finally:
        guard.end()  # of all instances, also of those that the agent has not come to hear of
        output.close()
        os.environ.clear()
        os.environ.update(environment)


def _plan(job: Job, guard: Guard) -> str:
    """Return what an instance is told by its variable."""
    return json.dumps({
        "launcher": os.getpid(), "guard": guard.path, "program": job.program, "num_replicas": job.num_replicas,
        "ipus_per_replica": job.ipus_per_replica, "environment": dict(job.environment),
        "cpus": job.cpus if job.is_bound else None, "folder": job.folder,
    })


def _rendezvous(job: Job) -> RendezvousHandler:
    """Return where the agents of all hosts meet."""
    if not job.endpoint:
        return OneHost(f"poprun-{os.getpid()}")
    seconds = seconds_of(INIT_TIMEOUT)
    host, _, port = job.endpoint.rpartition(":")
    if job.node_rank and (reason := why_nobody_answers(host, int(port), time.monotonic() + seconds)) is not None:
        raise _absence(job, reason)
    num_hosts = len(job.hosts)
    return get_rendezvous_handler(RendezvousParameters(
        "static", job.endpoint, job.job_id, num_hosts, num_hosts, rank=job.node_rank, timeout=max(int(seconds), 1),
    ))


def _absence(job: Job, error: BaseException) -> RendezvousError:
    reason = str(error).partition("\n")[0].strip()
    if not job.endpoint:
        return RendezvousError(f"the instances could not be started: {reason}")
    others = [number for number in range(len(job.hosts)) if number != job.node_rank]
    # Only the first host, where the others come to, can have heard of all.
    absent = f"{'some of ' if len(others) > 1 else ''}{', '.join(job.hosts[number] for number in others)}"
    return RendezvousError(
        f"the {len(job.hosts)} hosts did not all come to {job.endpoint} within {seconds_of(INIT_TIMEOUT):g} s: "
        f"{reason}",
        detail=f"present {job.hosts[job.node_rank]} (--node-rank {job.node_rank})\n"
               f"absent  {job.hosts[0] if job.node_rank else absent}",
        remedy="start the same command on every host; the endpoint is a free port of the first one, which the others "
               f"can reach. {INIT_TIMEOUT} gives them more time",
    )


def _tell(agent: InstanceAgent, output: Output, job: Job) -> int:
    """Write the summary of an attempt that failed, and return its status."""
    assert agent.deaths is not None
    deaths = agent.deaths.in_order()
    output.drain()
    last = {rank: output.last_lines(rank) for rank in agent.deaths.pid_by_rank}
    text = summary(
        deaths, agent.states, agent.statuses, last, num_instances=job.num_instances, host=socket.gethostname(),
    )
    left = agent.attempts_left
    if left:
        text += f"\n  again   all instances are started again; {left - 1} of {job.max_restarts} restarts are left then"
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
    cause = cause_of(deaths, agent.states, agent.statuses)
    return exit_status(agent.statuses.get(cause) if cause is not None else None)
