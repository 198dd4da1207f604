"""Long runs whose work stands elsewhere below ``tests``: each a function of a size that returns what it counted."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from tests.fuzz.batches import run_batches
from tests.security import hostile

WORKERS = 2


def kills(size: int) -> dict[str, int]:
    """Kill writers of the compile cache so often."""
    from tests.cache.writers import rounds

    return rounds(size, 0)


def naive_kills(size: int) -> dict[str, int]:
    """Kill writers that write as nobody should: what the run above has to notice."""
    from tests.cache.writers import rounds

    return {f"naive {name}": count for name, count in rounds(size, 0, is_naive=True).items()}


def _fuzz(kind: str, size: int) -> dict[str, int]:
    words = Counter(result.word for result in run_batches(kind, range(size), WORKERS))
    return {"programs": size, **{word: words[word] for word in ("ok", "wrong", "error", "crash", "hang")},
            "refused": words["refused"], "of torch": words["torchs"] + words["undecided"]}


def graphs(size: int) -> dict[str, int]:
    """Hold so many random programs to eager."""
    return _fuzz("graphs", size)


def nnsmith(size: int) -> dict[str, int]:
    """Hold so many models of NNSmith to eager."""
    return _fuzz("nnsmith", size)


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
    said = subprocess.run(["make", "checked"], capture_output=True, text=True, check=False).stdout
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", said)}
    failed = counts.get("failed", 0) + counts.get("error", 0) + (not counts)
    return {"tests": counts.get("passed", 0) + failed, "failed": failed}
