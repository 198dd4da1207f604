"""torchrun's elastic agent, which ends all instances soon after one has failed and knows which one that was."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from torchipu.poprun.deaths import STOPPED, Deaths
from torchipu.poprun.output import Output

GRACE_SECONDS = 5
"""Between SIGTERM and SIGKILL, for what instances do at their end."""


class Guard:
    """A small process that ends what instances have started, however the launcher ends."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py"))], stdin=subprocess.PIPE, text=True,
            start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    @property
    def path(self) -> str:
        """Where other processes write to it, as long as this one lives."""
        assert self._process.stdin is not None
        return f"/proc/{os.getpid()}/fd/{self._process.stdin.fileno()}"

    def watch(self, pids: list[int]) -> None:
        """Let it end the groups of these processes, and no others.

        Args:
            pids: The processes.
        """
        self._write(" ".join(map(str, pids)))

    def end(self) -> None:
        """Let it end the groups, and those of processes of which it alone has heard, and wait for that.

        A signal may end the launcher while it starts an instance, before it knows of it.
        """
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):  # something has been handed the other end of its input
            self._process.wait(GRACE_SECONDS)

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()


class InstanceAgent(LocalElasticAgent):
    """Starts and watches the instances of this host.

    Args:
        spec: What to run; torch's own.
        output: Takes what they write.
        guard: Is told of their processes.
        stopped_seconds: How long an instance may be stopped: no exchange waits longer for it.
        on_failure: Called when an attempt has failed, before the next one begins.

    Attributes:
        deaths: The ends of the instances of the last attempt.
        states: States of those that had not ended when the first one failed.
        statuses: How each ended, as `subprocess` has it, once the attempt has failed.
    """

    def __init__(
        self, spec: WorkerSpec, output: Output, guard: Guard, stopped_seconds: float,
        on_failure: Callable[[InstanceAgent], None],
    ) -> None:
        super().__init__(spec, output, exit_barrier_timeout=stopped_seconds)
        self.deaths: Deaths | None = None
        self.states: dict[int, str] = {}
        self.statuses: dict[int, int] = {}
        self._guard = guard
        self._stopped_seconds = stopped_seconds
        self._on_failure = on_failure

    @property
    def attempts_left(self) -> int:
        """How often the instances may be started again."""
        return int(self._remaining_restarts)

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        pids: dict[int, Any] = super()._start_workers(worker_group)
        deaths = Deaths({worker.global_rank: pids[worker.local_rank] for worker in worker_group.workers})
        self.deaths, self.states = deaths, {}
        self._guard.watch(list(pids.values()))
        context: Any = self._pcontext
        end = context.close

        def close(death_sig: signal.Signals | None = None, timeout: int = GRACE_SECONDS) -> None:
            """End what runs, sooner than the agent would; one that is stopped does not hear SIGTERM."""
            self.states = self.states or deaths.states()
            for rank, state in self.states.items():
                if state == STOPPED:
                    _kill(deaths.pid_by_rank[rank])
            end(death_sig, min(timeout, GRACE_SECONDS))

        context.close = close
        return pids

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        assert self.deaths is not None and self._pcontext is not None
        if any(seconds > self._stopped_seconds for seconds in self.deaths.stopped().values()):
            self._pcontext.close()
        result = super()._monitor_workers(worker_group)
        if result.is_failed():
            handlers: Mapping[int, Any] = getattr(self._pcontext, "subprocess_handlers", {})
            self.statuses = {
                worker.global_rank: int(handlers[worker.local_rank].proc.returncode or 0)
                for worker in worker_group.workers if worker.local_rank in handlers
            }
            self.deaths.settle()
            self.end_groups()
            self._on_failure(self)
        return result

    def end_groups(self) -> None:
        """End what instances have started and left behind."""
        for pid in self.deaths.pid_by_rank.values() if self.deaths is not None else ():
            _kill(pid)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
