"""Runs seeds in processes of their own, so that one that crashes or hangs costs itself and nothing else."""

from __future__ import annotations

import gc
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

import torch

from tests.spared import spare

BATCH = 1000
"""Programs of a process: to start takes as long as twenty of them, and what torch keeps of one spares others work."""
SECONDS = 120.0
"""Of one program; a compilation takes a tenth of one."""
STARTS = 4
"""So many times that may pass before the first program of a process: on a busy machine it imports as long as that."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a seed: the word of its verdict, or ``"crash"`` or ``"hang"``."""

    seed: int
    door: str
    word: str
    detail: str


def run_batches(kind: str, seeds: range, workers: int) -> Iterator[Result]:
    """Run seeds; yield results in the order of the seeds, each once it and those before it are known.

    Args:
        kind: Which programs, a name of `tests.fuzz.__main__.KINDS`.
        seeds: Of the programs.
        workers: Processes at a time.
    """
    pieces = [seeds[start:start + BATCH] for start in range(0, len(seeds), BATCH)]
    known: list[SimpleQueue[Result]] = [SimpleQueue() for _ in pieces]
    with ThreadPoolExecutor(workers) as pool:
        batches = [pool.submit(_run_batch, kind, *batch) for batch in zip(pieces, known, strict=True)]
        try:
            for piece, queue, batch in zip(pieces, known, batches, strict=True):
                for _ in piece:
                    yield _next(queue, batch)
        finally:
            for batch in batches:
                batch.cancel()


def _next(known: SimpleQueue[Result], batch: Future[None]) -> Result:
    """Wait for a result of a batch; raise what ended it before it knew one."""
    while True:
        try:
            return known.get(timeout=1.0)
        except Empty:
            if batch.done() and known.empty():
                batch.result()
                raise RuntimeError("a batch ended before its last seed") from None


def _run_batch(kind: str, seeds: range, known: SimpleQueue[Result]) -> None:
    """Run a batch, and go on behind a seed that ends its process."""
    while seeds:
        with tempfile.TemporaryDirectory(prefix="torchipu-fuzz-") as folder:
            lines, output = Path(folder) / "results.jsonl", Path(folder) / "output"
            done, how = _run_process(kind, seeds, lines, output, known)
            last = output.read_text(errors="replace").strip().splitlines()[-1:]
        if done == len(seeds):
            return
        known.put(Result(seeds[done], "", how, last[0][:300] if last else ""))
        seeds = seeds[done + 1:]


def _run_process(
    kind: str, seeds: range, lines: Path, output: Path, known: SimpleQueue[Result],
) -> tuple[int, str]:
    """Run a process until it ends or one seed takes too long.

    Returns:
        How many seeds it did, and what to call the one that it did not finish.
    """
    command = [sys.executable, "-m", "tests.fuzz", "batch", kind, f"{seeds.start}:{seeds.stop}", str(lines)]
    lines.touch()
    with (
        output.open("w") as stream, lines.open("rb") as results,
        subprocess.Popen(command, stdout=stream, stderr=stream) as process,
    ):
        done, rest, since, how = 0, b"", time.monotonic(), "crash"
        while True:
            has_ended = process.poll() is not None  # before the last look at what it has written
            *whole, rest = (rest + results.read()).split(b"\n")
            for line in whole:
                known.put(Result(**json.loads(line)))
            done, since = done + len(whole), time.monotonic() if whole else since
            if has_ended:
                return done, how
            if time.monotonic() - since > SECONDS * (1 if done else STARTS):
                process.kill()
                process.wait()
                how = "hang"
            else:
                time.sleep(0.2)


def run_here(seeds: range, lines: Path, judge_seed: Callable[[int], Result]) -> None:
    """Run a batch in this process; each result is on disk before the next seed begins.

    On one thread: programs are small, and what eager shares out among threads takes longer so.
    """
    importlib.import_module("torch._dynamo")
    spare()
    gc.collect()
    gc.freeze()  # nobody looks through what has been imported
    torch.set_num_threads(1)
    with lines.open("a", encoding="utf-8") as stream:
        for seed in seeds:
            stream.write(json.dumps(asdict(judge_seed(seed))) + "\n")
            stream.flush()
