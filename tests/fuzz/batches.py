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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from tests.spared import spare

BATCH = 200
SECONDS = 120.0
"""Of one program; a compilation takes a tenth of one."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a seed: the word of its verdict, or ``"crash"`` or ``"hang"``."""

    seed: int
    door: str
    word: str
    detail: str


def run_batches(kind: str, seeds: range, workers: int) -> Iterator[Result]:
    """Run seeds; yield results as batches end.

    Args:
        kind: Which programs, a name of `tests.fuzz.__main__.KINDS`.
        seeds: Of the programs.
        workers: Processes at a time.
    """
    pieces = [seeds[start:start + BATCH] for start in range(0, len(seeds), BATCH)]
    with ThreadPoolExecutor(workers) as pool:
        for results in pool.map(lambda piece: list(_run_batch(kind, piece)), pieces):
            yield from results


def _run_batch(kind: str, seeds: range) -> Iterator[Result]:
    """Run a batch, and go on behind a seed that ends its process."""
    while seeds:
        with tempfile.TemporaryDirectory(prefix="torchipu-fuzz-") as folder:
            lines = Path(folder) / "results.jsonl"
            how = _run_process(kind, seeds, lines, Path(folder) / "output")
            results = [Result(**json.loads(line)) for line in lines.read_text().splitlines()] if lines.exists() else []
            output = (Path(folder) / "output").read_text(errors="replace").strip().splitlines()
        yield from results
        if len(results) == len(seeds):
            return
        yield Result(seeds[len(results)], "", how, output[-1][:300] if output else "")
        seeds = seeds[len(results) + 1:]


def _run_process(kind: str, seeds: range, lines: Path, output: Path) -> str:
    """Run a process until it ends or one seed takes too long; return what to call the seed that it did not finish."""
    command = [sys.executable, "-m", "tests.fuzz", "batch", kind, f"{seeds.start}:{seeds.stop}", str(lines)]
    with output.open("w") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        size, since = -1, time.monotonic()
        while process.poll() is None:
            time.sleep(0.2)
            now = lines.stat().st_size if lines.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > SECONDS:
                process.kill()
                return "hang"
    return "crash"


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
