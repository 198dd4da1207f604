"""Long runs whose work stands elsewhere below ``tests``: each a function of a size that returns what it counted."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.batches import Result, run_batches
from tests.security import hostile

WORKERS = 2
RECORDED = Path(__file__).parent / "recorded"
JUDGED = Path(__file__).parents[2] / "build" / "reliability"
"""Where results of random programs are kept."""
_OF_TORCH = {"torchs": "of torch", "undecided": "of torch"}


def kills(size: int) -> dict[str, int]:
    """Kill writers of the compile cache so often."""
    from tests.cache.writers import rounds

    return rounds(size, 0)


def naive_kills(size: int) -> dict[str, int]:
    """Kill writers that write as nobody should: what the run above has to notice."""
    from tests.cache.writers import rounds

    return {f"naive {name}": count for name, count in rounds(size, 0, is_naive=True).items()}


def fuzz(kind: str, size: int, recorded: Path = RECORDED, folder: Path = JUDGED) -> dict[str, int]:
    """Hold programs to eager, each seed once: a run goes on behind the last one that is recorded.

    Args:
        kind: Which programs, a name of `tests.fuzz.__main__.KINDS`.
        size: How many are judged in all, by this run and those before it.
        recorded: Where runs that came to their end have left what they found.
        folder: Where results are kept as batches end, lines of JSON: a run that is broken off goes on there.

    Returns:
        Counts of words over all seeds; each was judged by the version of its day.
    """
    ended = recorded / f"{kind}.json"
    words = Counter[str](json.loads(ended.read_text(encoding="utf-8"))["found"] if ended.exists() else {})
    first = words["programs"]
    path = folder / f"{kind}-from-{first}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    results = [Result(**json.loads(line)) for line in lines]
    with path.open("a", encoding="utf-8") as stream:
        for result in run_batches(kind, range(first + len(results), size), WORKERS):
            stream.write(json.dumps(asdict(result)) + "\n")
            stream.flush()
            results.append(result)
    words += Counter(_OF_TORCH.get(result.word, result.word) for result in results)
    words["programs"] = first + len(results)
    return {word: words[word] for word in ("programs", "ok", "wrong", "error", "crash", "hang", "refused", "of torch")}


def graphs(size: int) -> dict[str, int]:
    """Hold so many random programs to eager."""
    return fuzz("graphs", size)


def wide(size: int) -> dict[str, int]:
    """Hold so many random programs of a wide vocabulary to eager."""
    return fuzz("wide", size)


def large(size: int) -> dict[str, int]:
    """Hold so many random programs of large sizes to eager."""
    return fuzz("large", size)


def nnsmith(size: int) -> dict[str, int]:
    """Hold so many models of NNSmith to eager."""
    return fuzz("nnsmith", size)


def files(size: int) -> dict[str, int]:
    """Read so many hostile files."""
    with tempfile.TemporaryDirectory() as folder:
        found = hostile.read_all(Path(folder), size, 2)
    return {"files": found["files"], "readers": found["readers"], "executed": int(found["ran"]),
            "forbidden events": sum(found["forbidden"].values()), "wrong": len(found["wrong"])}


def faults(size: int) -> dict[str, int]:
    """Break so many trainings of several instances, spread over all kinds of faults."""
    from tests.distributed.faults import CASES, run

    results = run(CASES[:: -(-len(CASES) // size)])
    return {"cases": len(results), "all cases": len(CASES), "wrong": sum(bool(result.wrong) for result in results)}


def checked(size: int) -> dict[str, int]:
    """Run the tests of the kernels under AddressSanitizer and UndefinedBehaviorSanitizer; there is one size."""
    command = ["make", "checked", "PYTEST_ARGS=--thorough"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", said)}
    failed = counts.get("failed", 0) + counts.get("error", 0) + (not counts)
    return {"tests": counts.get("passed", 0) + failed, "failed": failed}
