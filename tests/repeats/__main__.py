"""Choose the tests that repeat others from what they reach: ``python -m tests.repeats``, behind ``make repeats``.

Tests are taken that bring most lines for their time, until each line is reached by so many (``--times``), or what is
left takes more than ``--price`` for each line that nobody else reaches. The others are written into
``tests/repeats/left.json`` and run where all tests are asked for. It prints which lines only those reach.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path

from tests.repeats import LEFT, SHORT_SECONDS
from tests.repeats.recording import REACHED

TIMES = 1
PRICE_SECONDS = 0.2

def read(folder: Path) -> tuple[dict[str, set[str]], dict[str, float], set[str]]:
    """Return lines and seconds by test, all its cases together, and those that run whatever they reach."""
    lines, seconds = defaultdict[str, set[str]](set), defaultdict[str, float](float)
    for file in folder.glob("lines-*.json"):
        for case, reached in json.loads(file.read_text(encoding="utf-8")).items():
            lines[case.partition("[")[0]].update(reached)
    for file in folder.glob("seconds-*.json"):
        for case, taken in json.loads(file.read_text(encoding="utf-8")).items():
            seconds[case.partition("[")[0]] += taken
    files = folder.glob("staying-*.json")
    staying = {test for file in files for test in json.loads(file.read_text(encoding="utf-8"))}
    return {test: lines.get(test, set()) for test in seconds}, dict(seconds), staying


def chosen(
    lines: Mapping[str, Collection[str]], seconds: Mapping[str, float], times: int, kept: Collection[str] = (),
    price: float = math.inf,
) -> set[str]:
    """Return tests so that each line is reached by so many, or by all that reach it, unless that takes too long.

    Args:
        lines: That each test reaches.
        seconds: That each takes.
        times: How many tests are to reach a line.
        kept: Are among them in any case.
        price: What a line may take, in seconds.
    """
    reaching = Counter(line for reached in lines.values() for line in reached)
    missing = Counter({line: min(times, count) for line, count in reaching.items()})
    found = set[str]()

    def take(test: str) -> None:
        found.add(test)
        missing.subtract(lines[test])

    def worth(test: str) -> float:
        return sum(missing[line] > 0 for line in lines[test]) / max(seconds[test], 1e-3)

    for test in sorted(kept):
        take(test)
    # What a test is worth only falls as others are taken: who is first with what it is worth now is the best of all.
    waiting = [(-worth(test), test) for test in lines if test not in found]
    heapq.heapify(waiting)
    while waiting:
        _, test = heapq.heappop(waiting)
        now = worth(test)
        if not now or now * price < 1:
            continue
        if waiting and now < -waiting[0][0]:
            heapq.heappush(waiting, (-now, test))
        else:
            take(test)
    return found


def main() -> None:
    """Choose, say what it saves, and write."""
    parser = argparse.ArgumentParser(prog="python -m tests.repeats", description=__doc__)
    parser.add_argument("--times", type=int, default=TIMES, help="tests that are to reach a line")
    parser.add_argument("--price", type=float, default=PRICE_SECONDS, help="seconds that a line may take")
    parser.add_argument("--dry", action="store_true", help="write nothing")
    arguments = parser.parse_args()
    lines, seconds, staying = read(REACHED)
    kept = staying | {test for test in lines if seconds[test] < SHORT_SECONDS}
    running = chosen(lines, seconds, arguments.times, kept, arguments.price)
    left = defaultdict[str, list[str]](list)
    for test in sorted(lines.keys() - running):
        file, _, name = test.partition("::")
        left[file].append(name)
    reached = {line for test in running for line in lines[test]}
    alone = sorted({line for test in lines for line in lines[test]} - reached)
    print(
        f"{len(running)} of {len(lines)} tests run, {sum(seconds[test] for test in running):.0f} of "
        f"{sum(seconds.values()):.0f} seconds; those that stay in any case {sum(seconds[test] for test in kept):.0f}; "
        f"{len(reached)} lines are reached, {len(alone)} are not:", *alone, sep="\n",
    )
    if not arguments.dry:
        LEFT.write_text(json.dumps(left, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
