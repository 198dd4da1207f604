"""Times several callables in turns, so that a busy machine disturbs all of them alike, and prints their ratios."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

PAUSE_S = 0.1
"""Rest before each sample. Workers of torch's, Inductor's and ONNX Runtime's pools go on spinning for tens of
milliseconds after a call, and would take a core from whoever is timed next."""


@dataclass(frozen=True)
class Timing:
    """Samples of one callable, seconds a call.

    Attributes:
        samples: One for each round.
    """

    samples: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """Median over the rounds."""
        return statistics.median(self.samples)

    @property
    def least_s(self) -> float:
        """Least over the rounds."""
        return min(self.samples)


def interleave(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 15, target_s: float = 0.1,
    pause_s: float = PAUSE_S, clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Time all contenders in every round, in an order that rotates, with a rest before each sample.

    Args:
        contenders: Callables by name.
        rounds: Samples of each.
        target_s: About how long a sample takes; quick calls are repeated within it.
        pause_s: How long nothing runs before a sample.
        clock: Seconds; ``time.process_time`` for those that the process has had, of all its threads together.
    """
    repeats = {}
    for name, call in contenders.items():
        call()  # warm: compilation, caches, threads
        time.sleep(pause_s)
        began = clock()
        call()
        repeats[name] = max(1, min(1000, int(target_s / max(clock() - began, 1e-6))))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    collecting = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                call, count = contenders[name], repeats[name]
                time.sleep(pause_s)
                call()  # the contender before it has filled the caches
                began = clock()
                for _ in range(count):
                    call()
                samples[name].append((clock() - began) / count)
            gc.collect()
    finally:
        if collecting:
            gc.enable()
    return {name: Timing(tuple(found)) for name, found in samples.items()}


def speed_ups(timings: Mapping[str, Timing], of: str = "torchipu") -> dict[str, float]:
    """Return by how much one contender is faster than each other one: the median of the ratios of each round."""
    ours = timings[of].samples
    return {
        name: statistics.median(theirs / mine for theirs, mine in zip(timing.samples, ours, strict=True))
        for name, timing in timings.items()
        if name != of
    }


def print_table(title: str, timings: Mapping[str, Timing], of: str = "torchipu") -> None:
    """Print medians, minima and the speed-ups of one contender."""
    ratios = speed_ups(timings, of)
    table = Table(title=title, title_justify="left")
    for heading in ("contender", "median ms", "least ms", f"{of} is faster by"):
        table.add_column(heading, justify="left" if heading == "contender" else "right")
    for name, timing in timings.items():
        ratio = f"{ratios[name]:.2f}x" if name in ratios else ""
        table.add_row(name, f"{timing.median_s * 1e3:.3f}", f"{timing.least_s * 1e3:.3f}", ratio)
    Console().print(table)
