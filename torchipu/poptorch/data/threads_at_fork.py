"""Which threads of this process a forked child would miss: it has the thread that forks, and no other.

Idle threads of a pool are no loss where its library makes them anew in the child, or does without. Any other thread may
hold a lock that nobody lets go of in the child, or be the one that somebody there waits for.
"""

from __future__ import annotations

import bisect
import ctypes
import functools
import os
import struct
import sys
import threading
import time
from typing import NamedTuple

import torch
from tqdm import TMonitor

from torchipu.distributed.exchange import THREAD_NAME

PATIENCE_SECONDS = 0.1
"""How long a thread may go on: those of OpenMP spin for a while after their work, others are about to end."""
STACK_BYTES = 65536
"""How far up a waiting thread's stack it is looked for who made it."""
DESCRIPTOR_WORDS = 288
"""Of what the C library notes of a thread, above its stack: at its beginning, where it is, and in it, what it began
with."""
TRANSPARENT = ("libc.", "libc-", "libpthread", "libstdc++", "libgcc_s", "libm.", "ld-linux", "[vdso]")
"""Begins the names of libraries that make threads, and wait, on behalf of others."""


class _Code(NamedTuple):
    """Where the code of a library lies."""

    begin: int
    end: int
    path: str


def missed_by_a_fork() -> list[str]:
    """Say which threads a forked child would miss.

    Those that wait in torch or in its OpenMP are not counted: a child that leaves torch one thread starts none of
    them, and so torch's own loaders do. OpenBLAS and the engine have their own provisions for a fork.

    Returns:
        What each is called; nothing if a child loses nothing.
    """
    current = threading.current_thread()
    # The monitor of progress bars, which every model that was compiled has started, waits for seconds on end; what
    # adds gradients up over processes does until the next call.
    known = [
        thread for thread in threading.enumerate()
        if thread is current or isinstance(thread, TMonitor) or thread.name == THREAD_NAME
    ]
    found = [thread.name for thread in threading.enumerate() if thread not in known]
    # Threads that were not made through threading, as some extensions make them.
    idents = {thread.ident for thread in threading.enumerate()}
    found += [f"thread {ident}" for ident in sys._current_frames() if ident not in idents]
    return found or _native({thread.native_id for thread in known})


def _native(known: set[int | None]) -> list[str]:
    """Say which threads without Python code a forked child would miss.

    Args:
        known: Numbers of those that it would not, or that are none.
    """
    waiting = {int(name) for name in os.listdir("/proc/self/task")} - known
    if not waiting:
        return []
    code, missed = _mapped_code(), []
    until = time.monotonic() + PATIENCE_SECONDS
    for thread in sorted(waiting):
        owner = _owner(thread, code)
        while owner is not None and not _survives(owner) and time.monotonic() < until:
            time.sleep(0.001)
            owner = _owner(thread, code)
        if owner is not None and not _survives(owner):
            missed.append(f"thread {thread} of {os.path.basename(owner) or 'a library that does not show'}")
    return missed


def _owner(thread: int, code: list[_Code]) -> str | None:
    """Return the path of the library that made a thread, which now waits.

    Args:
        thread: Its number.
        code: Of all libraries, by address.

    Returns:
        The path; "" if the thread runs or nothing was found, and None if it has ended.
    """
    try:
        with open(f"/proc/self/task/{thread}/syscall", encoding="ascii") as file:
            fields = file.read().split()  # number of the call, arguments, stack pointer, program counter
        if fields[0] == "running":
            return ""
        at = int(fields[-2], 16)
        with open("/proc/self/mem", "rb", buffering=0) as memory:
            stack = os.pread(memory.fileno(), STACK_BYTES, at)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except OSError:  # not to be seen, as in some containers
        return ""
    words = [word for (word,) in struct.iter_unpack("N", stack[:len(stack) // 8 * 8])]
    for place, word in enumerate(words[:-2]):
        if word == at + 8 * place == words[place + 2]:  # the descriptor, which points to itself twice
            begun_with = _first_in(words[place:place + DESCRIPTOR_WORDS], code)
            # One of C++ does not show there whose it is. Where it is, and where it will return to, does; above that
            # there may be remains of a thread that had the same stack before.
            return begun_with or _first_in([int(fields[-1], 16), *words[:place]], code)
    return ""


def _first_in(addresses: list[int], code: list[_Code]) -> str:
    """Return the path of the first library that one of the addresses is in, leaving out those that serve others."""
    begins = [region.begin for region in code]
    for address in addresses:
        place = bisect.bisect_right(begins, address) - 1
        if place >= 0 and address < code[place].end and not _is_transparent(code[place].path):
            return code[place].path
    return ""


def _survives(path: str) -> bool:
    """Return whether idle threads of a library are no loss to a child."""
    folders = (os.path.dirname(torch.__file__), os.path.dirname(os.path.dirname(__file__)))
    return path.startswith(tuple(folder + os.sep for folder in folders)) or (
        "openblas" in os.path.basename(path) or path == _openmp_of_torch()
    )


def _is_transparent(path: str) -> bool:
    return os.path.basename(path).startswith(TRANSPARENT)


def _mapped_code() -> list[_Code]:
    """Return where the code of each library lies, by address."""
    found = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            place, rights, _, _, _, *path = line.split(None, 5)
            if "x" in rights and path:
                begin, end = (int(address, 16) for address in place.split("-"))
                found.append(_Code(begin, end, path[0].rstrip("\n")))
    return sorted(found)


@functools.cache
def _openmp_of_torch() -> str:
    """Return the path of the OpenMP that torch's kernels call; "" if there is none."""
    folder = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so")
    try:
        function = ctypes.CDLL(folder).omp_get_max_threads
    except (OSError, AttributeError):
        return ""
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    return next((region.path for region in _mapped_code() if region.begin <= address < region.end), "")
