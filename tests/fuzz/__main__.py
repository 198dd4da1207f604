"""``python -m tests.fuzz``: run seeds, cut down what fails, write it as scripts, print one table."""

from __future__ import annotations

import argparse
import functools
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import generate, large, networks, nnsmith_models, special
from tests.fuzz.batches import Result, run_batches, run_here
from tests.fuzz.doors import OF_NETWORKS, door_of
from tests.fuzz.judge import judge
from tests.fuzz.minimise import minimise
from tests.fuzz.program import Program
from tests.fuzz.script import script
from tests.fuzz.wide_operators import ALL

FAILURES = ("wrong", "error", "crash", "hang")


KINDS: dict[str, Callable[[int], Program]] = {
    "graphs": generate.generate, "wide": functools.partial(generate.generate, draws=ALL), "large": large.generate,
    "networks": networks.generate, "nnsmith": nnsmith_models.generate, "special": special.generate,
}
"""Where programs come from."""


def judge_seed(kind: str, seed: int) -> Result:
    """Judge the program of a seed."""
    program = KINDS[kind](seed)
    door = door_of(seed, program, OF_NETWORKS if kind == "networks" else None)
    verdict = judge(program, door)
    return Result(seed, door, verdict.word, verdict.detail)


def main(given: list[str] | None = None) -> int:
    """Run; return 1 where a program fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("kind", choices=[*KINDS, "batch"])
    parser.add_argument("batch", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--seeds", default="0:200", help="first:last, the last one left out")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes at a time")
    parser.add_argument("--write", type=Path, default=Path("build/fuzz"), help="folder for scripts of what fails")
    options = parser.parse_args(given)
    os.environ.setdefault("TORCHIPU_CACHE", "0")  # that of the user stays as it is
    warnings.simplefilter("ignore")
    if options.kind == "batch":
        kind, seeds, lines = options.batch
        run_here(_range(seeds), Path(lines), functools.partial(judge_seed, kind))
        return 0
    begun, words, failed = time.monotonic(), Counter[tuple[str, str]](), []
    for result in run_batches(options.kind, _range(options.seeds), options.workers):
        words[result.door, result.word] += 1
        if result.word in FAILURES:
            failed.append(result)
            print(f"seed {result.seed} {result.door}: {result.word}: {result.detail}", flush=True)
    for result in failed:
        if result.word in ("wrong", "error"):
            write_smallest(options.kind, result, options.write)
    print(_table(words, time.monotonic() - begun))
    return 1 if failed else 0


def _range(text: str) -> range:
    first, last = (int(part) for part in text.split(":"))
    return range(first, last)


def write_smallest(kind: str, result: Result, folder: Path) -> Program:
    """Cut a failing program down, and write it as a script and as data beside it."""
    program = KINDS[kind](result.seed)
    smallest = minimise(program, lambda one: judge(one, result.door).word == result.word)
    verdict = judge(smallest, result.door)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{kind}_{result.seed}_{result.door}"
    path.with_suffix(".py").write_text(script(smallest, result.door, verdict.detail or result.detail), encoding="utf-8")
    path.with_suffix(".json").write_text(smallest.to_json(), encoding="utf-8")
    print(f"seed {result.seed}: {len(smallest.nodes)} of {len(program.nodes)} lines fail: {path}.py", flush=True)
    return smallest


def _table(words: Counter[tuple[str, str]], seconds: float) -> str:
    doors = sorted({door for door, _ in words})
    names = [name for name in ("ok", "refused", "torchs", "undecided", *FAILURES) if any(w == name for _, w in words)]
    rows = [f"{'door':10}" + "".join(f"{name:>11}" for name in names)]
    rows += [f"{door:10}" + "".join(f"{words[door, name]:11,}" for name in names) for door in doors]
    rows.append(f"{'all':10}" + "".join(f"{sum(words[door, name] for door in doors):11,}" for name in names))
    return "\n".join([*rows, f"{sum(words.values()):,} programs in {seconds:,.0f} s"])


if __name__ == "__main__":
    sys.exit(main())
