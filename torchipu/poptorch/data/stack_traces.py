"""Where a process is, asked from outside: it writes its stack to a pipe, whatever holds it up."""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing.process
import os
import signal
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path

TRACE_SIGNAL = signal.SIGRTMIN + 11
"""Asks for the stack; one that programs hardly use."""
ANSWER_SECONDS = 0.5
"""How long to wait for an answer, or for more of it."""
PROCESS_BEGINS = f'  File "{multiprocessing.process.__file__}"'
STOPPED = ("T", "t")


def offer(pipe: Connection) -> None:
    """Let this process, and those that it forks, write where they are when they are asked.

    Args:
        pipe: What they write to; held open.
    """
    os.set_blocking(pipe.fileno(), False)
    faulthandler.register(TRACE_SIGNAL, file=pipe.fileno(), all_threads=False)


def ask(process: int, pipe: Connection) -> str:
    """Return where a process and its children are.

    Args:
        process: Its id.
        pipe: What they write to.

    Returns:
        A few lines for each.
    """
    os.set_blocking(pipe.fileno(), False)
    lines = []
    for each in (process, *_children(process)):
        state, catches = _status(each)
        if state in STOPPED:
            lines.append(f"process {each} is stopped (by SIGSTOP or a debugger)")
        elif not catches:
            lines.append(f"process {each} has ended, or cannot be asked where it is")
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, TRACE_SIGNAL)
            lines.append(f"process {each} is at: {_read(pipe).strip() or 'no answer, it does not come back to Python'}")
    return "\n".join(lines)


def _read(pipe: Connection) -> str:
    """Return what there is to be read, waiting for it for a while."""
    found = b""
    with contextlib.suppress(OSError):
        while connection.wait([pipe], ANSWER_SECONDS) and (more := os.read(pipe.fileno(), 65536)):
            found += more
    # Further frames are those of the program at the time of the fork.
    return found.decode(errors="replace").split(PROCESS_BEGINS, 1)[0]


def _children(process: int) -> list[int]:
    """Return the ids of a process's children; none where the system does not say."""
    try:
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def _status(process: int) -> tuple[str, bool]:
    """Return the state of a process, as a letter, and whether it catches our signal: else that would end it."""
    try:
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return "", False
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return fields["State"].split()[0], bool(int(fields["SigCgt"], 16) >> (TRACE_SIGNAL - 1) & 1)
