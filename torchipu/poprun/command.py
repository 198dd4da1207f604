"""The entry point of ``poprun``."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from torchipu import __version__
from torchipu.errors import IpuError, OptionsError
from torchipu.poprun import arguments
from torchipu.poprun.job import Job, job_of, remarks


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status: that of the job, or 2 for a command line that cannot be.

    Args:
        words: What follows its name; None takes them from ``sys.argv``.
    """
    try:
        line = arguments.parse(sys.argv[1:] if words is None else words)
        if line.wants:
            text = arguments.help_text() if line.wants == "help" else _version(line.values.version_format)
            with contextlib.suppress(BrokenPipeError):  # a reader of a pipe may leave early, as head does
                sys.stdout.write(text)
                sys.stdout.flush()
            return 0
        if line.values.export_config:
            arguments.export(line, Path(line.values.export_config))
            if not line.program:
                return 0
        job = job_of(line)
    except IpuError as error:
        sys.stderr.write(f"poprun: {error}\n")
        return 2
    for remark in remarks(line):
        sys.stderr.write(f"poprun: {remark}\n")
    if line.verbosity:
        _describe(job)
    if line.values.print_topology:
        from torchipu.poprun.topology import print_topology

        print_topology(job)
        sys.stdout.flush()
    try:
        return _launch(job, line.verbosity)
    except IpuError as error:
        sys.stderr.write(f"poprun: {error}\n")
        return 1
    except KeyboardInterrupt:  # before the agent takes signals
        return 128 + signal.SIGINT


def _version(form: str) -> str:
    if form not in ("text", "json"):
        raise OptionsError(f"--version-format must be text or json, got {form!r}", option="version-format", value=form)
    return f'{{"version": "{__version__}"}}\n' if form == "json" else f"poprun {__version__} (torchipu)\n"


def _launch(job: Job, verbosity: int) -> int:
    # The agent's own words of failures are those of torchrun; ours name the instance and the cause.
    logging.getLogger("torch.distributed.elastic").setLevel(_level(verbosity))
    from torchipu.poprun.launch import launch  # imports torch, which sets the level

    logging.getLogger("torch.distributed.elastic").setLevel(_level(verbosity))
    return launch(job)


def _level(verbosity: int) -> int:
    return logging.INFO if verbosity > 1 else logging.CRITICAL


def _describe(job: Job) -> None:
    bound = "bound to CPUs of its own" if job.is_bound else f"with {job.num_threads} threads"
    sys.stderr.write(
        f"poprun: {job.num_local_instances} of {job.num_instances} instances on this host, each {bound}; "
        f"{job.num_local_replicas} replicas of {job.ipus_per_replica} IPUs in each: {' '.join(job.program)}\n"
    )
