"""What ``poprun`` says of a job that has failed: which instance was the cause, how it ended, what it said last."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence

from torchipu.poprun.deaths import STATES, STOPPED, Death

SHOWN_LINES = 8
REASONS = {
    signal.SIGKILL: "somebody's kill -9, or the system for want of memory",
    signal.SIGTERM: "somebody asked it to end",
    signal.SIGABRT: "it gave up by itself: an assertion or an uncaught exception of C++",
    signal.SIGSEGV: "it used memory that is not its own",
    signal.SIGBUS: "it used memory that is not there, or shared memory is full",
    signal.SIGILL: "it was built for another processor",
    signal.SIGFPE: "an integer was divided by zero",
    signal.SIGINT: "Ctrl-C",
}
NOT_EXECUTABLE, NOT_FOUND = 126, 127
EXCEPTION = re.compile(r"(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)(?::|$)")
"""The line of a traceback that names the exception; torch puts the rank before it."""


def cause_of(deaths: Sequence[Death], states: Mapping[int, str], statuses: Mapping[int, int]) -> int | None:
    """Return which instance made a job fail: one that was stopped, else the one that failed first.

    Args:
        deaths: The ends of instances, in their order.
        states: States of those that had not ended when the first one failed.
        statuses: How each ended.
    """
    stopped = [rank for rank, state in states.items() if state == STOPPED]
    if stopped:
        return min(stopped)
    # Those that were alive then were ended by the launcher.
    return next((death.rank for death in deaths if statuses.get(death.rank) and death.rank not in states), None)


def exit_status(status: int | None) -> int:
    """Return the status of a job whose cause ended with a status as `subprocess` has it."""
    if status is None or status == 0:
        return 1
    return 128 - status if status < 0 else status


def summary(
    deaths: Sequence[Death], states: Mapping[int, str], statuses: Mapping[int, int],
    last_lines: Mapping[int, Sequence[str]], *, num_instances: int, host: str,
) -> str:
    """Return the text.

    Args:
        deaths: The ends of instances of this host, in their order.
        states: States of those that had not ended when the first one failed.
        statuses: How each ended, as `subprocess` has it.
        last_lines: What each wrote to stderr at last.
        num_instances: Instances of the job.
        host: This host.
    """
    cause = cause_of(deaths, states, statuses)
    if cause is None:
        return f"poprun: the instances on {host} failed"
    death = next((death for death in deaths if death.rank == cause), None)
    after = "" if death is None else f", {death.seconds:.1f} s after its start"
    status, said = statuses.get(cause), list(last_lines.get(cause, ()))
    who = f"instance {cause} of {num_instances} (rank {cause}, pid {death.pid if death else '?'} on {host})"
    if states.get(cause) == STOPPED:
        lines = [f"poprun: {who} was stopped (SIGSTOP) and did not go on"]
        lines.append("  cause   a signal has stopped it; the others have waited for it in vain")
    else:
        lines = [f"poprun: {who} {_ending(status)}{after}", f"  cause   {_reason(status, said)}"]
    lines += [f"  {'stderr' if number == 0 else '':<8}{line}" for number, line in enumerate(said[-SHOWN_LINES:])]
    others = [_other(death, states, statuses, last_lines) for death in deaths if death.rank != cause]
    lines += [f"  {'others' if number == 0 else '':<8}{line}" for number, line in enumerate(others)]
    return "\n".join(lines)


def _ending(status: int | None) -> str:
    if status is None:
        return "ended"
    if status < 0:
        return f"was ended by {_signal_name(-status)}"
    return f"ended with status {status}"


def _reason(status: int | None, last_lines: Sequence[str]) -> str:
    if status is not None and status < 0:
        reason = next((text for number, text in REASONS.items() if number == -status), "a signal")
        return f"{_signal_name(-status)}: {reason}"
    if status == NOT_FOUND:
        return "there is no such program"
    if status == NOT_EXECUTABLE:
        return "the program may not be run"
    # What an interpreter says after its traceback, such as of things left open, is not the cause.
    raised = next((line for line in reversed(last_lines) if EXCEPTION.match(line)), None)
    return (raised or last_lines[-1]).strip() if last_lines else "it said nothing"


def _other(
    death: Death, states: Mapping[int, str], statuses: Mapping[int, int], last_lines: Mapping[int, Sequence[str]],
) -> str:
    """Say what became of an instance that was not the cause."""
    said, status = last_lines.get(death.rank, ()), statuses.get(death.rank)
    last = f": {said[-1].strip()}" if said and status else ""
    if death.rank in states:
        return f"instance {death.rank} was {STATES.get(states[death.rank], 'alive')} when poprun ended it{last}"
    return f"instance {death.rank} {_ending(status)} {death.seconds:.1f} s after its start{last}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
