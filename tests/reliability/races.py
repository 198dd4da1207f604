"""Data races in the engine's pool of threads: random programs on it, compiled with ThreadSanitizer.

``python -m tests.reliability races --size 20000`` runs so many, with several numbers of threads. The pool is C, and is
compiled by itself: torch and the interpreter are not instrumented, and would hide or invent races.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from kernel_build.source import KERNELS

SOURCE = Path(__file__).with_name("races.c")
THREADS = (2, 3, 7)


def build(folder: Path) -> Path:
    """Compile the programs into a folder; return the executable."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC"))[0]
    made = folder / "races"
    command = [
        compiler, "-std=gnu11", "-O1", "-g", "-mavx2", "-fsanitize=thread", "-pthread", "-Wno-tsan", f"-I{KERNELS}",
        "-o", str(made), str(SOURCE), "-ldl",
    ]
    subprocess.run(command, check=True)
    return made


def races_of(program: Path, programs: int, threads: int, seed: int = 0, *words: str) -> tuple[int, int, int]:
    """Run programs.

    Returns:
        How many races were reported, how many programs gave wrong values or did not end, and how many chunks workers
        computed: without any, nothing was tried.
    """
    environment = os.environ | {"TSAN_OPTIONS": "halt_on_error=0:exitcode=0"}
    command = [str(program), str(programs), str(threads), str(seed), *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=3600)
    wrong, away = (int(word) for word in done.stdout.split()) if done.returncode == 0 else (programs, 0)
    return done.stderr.count("WARNING: ThreadSanitizer"), wrong, away


def run(size: int) -> dict[str, int]:
    """Run so many programs with each number of threads.

    Returns:
        programs: With each, ``most threads`` at most.
        away: Chunks that workers computed.
        races: Reports of ThreadSanitizer.
        wrong: Programs with wrong values.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))
        found = [races_of(program, size, threads, threads) for threads in THREADS]
    races, wrong, away = (sum(counts) for counts in zip(*found, strict=True))
    return {"programs": size, "most threads": max(THREADS), "away": away, "races": races, "wrong": wrong}
