"""Long runs whose work stands elsewhere below ``tests``: each a function of a size that returns what it counted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.fuzz.batches import run_batches

WORKERS = 2
RECORDED = Path(__file__).parent / "recorded"
JUDGED = Path(__file__).parents[2] / "build" / "reliability"
"""Where results are kept as they come."""
FILES_OF_A_PIECE = 10_000
SPREAD = 10
"""Of the cases of faults every tenth comes first, then those beside them: some are spread over all kinds."""
_OF_TORCH = {"torchs": "of torch", "undecided": "of torch"}


def kills(size: int) -> dict[str, int]:
    """Kill writers of the compile cache so often."""
    from tests.cache.writers import rounds

    return rounds(size, 0)


def naive_kills(size: int) -> dict[str, int]:
    """Kill writers that write as nobody should: what the run above has to notice."""
    from tests.cache.writers import rounds

    return {f"naive {name}": count for name, count in rounds(size, 0, is_naive=True).items()}


def so_far_and_on(
    name: str, unit: str, recorded: Path, folder: Path, do: Callable[[int], Iterator[dict[str, Any]]],
    counted: Callable[[dict[str, Any]], dict[str, int]] = dict,
) -> Counter[str]:
    """Add up what is recorded of a run, what one that was broken off has left, and what is done now.

    Args:
        name: Of the run.
        unit: The count that tells how much there is.
        recorded: Where runs that came to their end have left what they found.
        folder: Where results are kept as they come, lines of JSON: a run that is broken off goes on there.
        do: Does what is left where there is so much; yields results.
        counted: What a result counts.
    """
    ended = recorded / f"{name}.json"
    counts = Counter[str](json.loads(ended.read_text(encoding="utf-8"))["found"] if ended.exists() else {})
    path = folder / f"{name}-from-{counts[unit]}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        counts.update(counted(json.loads(line)))
    with path.open("a", encoding="utf-8") as stream:
        for result in do(counts[unit]):
            stream.write(json.dumps(result) + "\n")
            stream.flush()
            counts.update(counted(result))
    return counts


def fuzz(kind: str, size: int, recorded: Path = RECORDED, folder: Path = JUDGED) -> dict[str, int]:
    """Hold programs to eager, each seed once: a run goes on behind the last one that is recorded.

    Args:
        kind: Which programs, a name of `tests.fuzz.__main__.KINDS`.
        size: How many are judged in all, by this run and those before it.
        recorded: Where runs that came to their end have left what they found.
        folder: Where results are kept as batches end.

    Returns:
        Counts of words over all seeds; each was judged by the version of its day.
    """
    words = so_far_and_on(
        kind, "programs", recorded, folder,
        lambda first: (asdict(result) for result in run_batches(kind, range(first, size), WORKERS)),
        lambda result: {"programs": 1, _OF_TORCH.get(result["word"], result["word"]): 1},
    )
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


def special(size: int) -> dict[str, int]:
    """Hold so many random programs on special values to eager."""
    return fuzz("special", size)


def networks(size: int) -> dict[str, int]:
    """Hold so many random convolution networks, which are trained, to eager."""
    return fuzz("networks", size)


def nnsmith(size: int) -> dict[str, int]:
    """Hold so many models of NNSmith to eager."""
    return fuzz("nnsmith", size)


def files(size: int, recorded: Path = RECORDED, folder: Path = JUDGED) -> dict[str, int]:
    """Read hostile files, those of earlier runs counted, each seed once."""
    readers: list[int] = []

    def counted(result: dict[str, int]) -> dict[str, int]:
        readers.append(result.pop("readers"))  # the same in each piece
        return result

    counts = so_far_and_on("files", "files", recorded, folder, lambda first: (
        _read_apart(start, min(FILES_OF_A_PIECE, size - start)) for start in range(first, size, FILES_OF_A_PIECE)
    ), counted)
    named = {name: counts[name] for name in ("files", "executed", "forbidden events", "wrong", "others changed")}
    return named | {"readers": readers[-1] if readers else counts["readers"]}


def _read_apart(seed: int, count: int) -> dict[str, int]:
    """Read hostile files in a process of its own; where a reader ends it, its file is kept."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.security.hostile", folder, str(count), str(seed)]
        command += ["changed"] if seed else []  # what is of other formats is the same each time
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            kept = shutil.copytree(folder, JUDGED / f"files-{seed}", dirs_exist_ok=True)
            raise RuntimeError(f"a reader ended its process, {done.returncode}: {kept}\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    for words in found["wrong"]:
        print(words, flush=True)
    return {
        "files": found["files"], "readers": found["readers"], "executed": int(found["ran"]),
        "forbidden events": sum(found["forbidden"].values()), "wrong": len(found["wrong"]),
        "others changed": int(found["others changed"]),
    }


def faults(size: int, recorded: Path = RECORDED, folder: Path = JUDGED) -> dict[str, int]:
    """Break so many trainings of several instances, those of earlier runs counted, each case once."""
    from tests.distributed.faults import CASES, run_each

    spread = [case for first in range(SPREAD) for case in CASES[first::SPREAD]]
    counts = so_far_and_on("faults", "cases", recorded, folder, lambda first: (
        {"case": str(result.case), "wrong": list(result.wrong)} for result in run_each(spread[first:size])
    ), lambda result: {"cases": 1, "wrong": bool(result["wrong"])})
    return {"cases": counts["cases"], "all cases": len(CASES), "wrong": counts["wrong"]}


def checked(size: int) -> dict[str, int]:
    """Run the tests of the kernels under AddressSanitizer and UndefinedBehaviorSanitizer; there is one size."""
    command = ["make", "checked", "PYTEST_ARGS=--thorough"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", said)}
    failed = counts.get("failed", 0) + counts.get("error", 0) + (not counts)
    return {"tests": counts.get("passed", 0) + failed, "failed": failed}
