"""The long runs by name: what does each, in which size, and what it must give."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass

Found = dict[str, float | list[str]]
"""Counts, and names of what a count alone does not tell."""


@dataclass(frozen=True, slots=True)
class Run:
    """A long run.

    Attributes:
        module: Below ``tests``; its function ``run``, or one named behind a colon, takes a size and returns what it
            found.
        size: The full one.
        unit: What a size counts.
        zero: Counts that must be zero: all whose names are one of these words or end with them.
    """

    module: str
    size: int
    unit: str
    zero: tuple[str, ...]

    def function(self) -> Callable[[int], Found]:
        """Import the module and return its function."""
        module, _, name = self.module.partition(":")
        function: Callable[[int], Found] = getattr(importlib.import_module(f"tests.{module}"), name or "run")
        return function

    def failures(self, found: Found) -> list[str]:
        """Return the counts that must be zero and are not."""
        return [f"{name}: {count:,}" for name, count in counts(found).items() if name.endswith(self.zero) and count]


def counts(found: Found) -> dict[str, float]:
    """Return what a run found in numbers: of names, how many."""
    return {name: len(value) if isinstance(value, list) else value for name, value in found.items()}


RUNS = {
    "callers": Run("reliability.callers", 1000, "calls in each of 8 threads", ("wrong", "failed", "eager")),
    "interrupts": Run(
        "reliability.interrupts", 50, "times of each kind", ("too slow", "state changed", "not usable after"),
    ),
    "memory": Run("reliability.memory", 100_000, "calls through each door", ("grown",)),
    "forks": Run("reliability.forks", 100, "loaders", ("hangs", "wrong")),
    "determinism": Run("reliability.determinism", 200, "models", ("differ",)),
    "mutants": Run("reliability.mutants.runner", 300, "faults in the code", ("unsound",)),
    "opinfo": Run("reliability.databases:opinfo", 18_762, "float32 samples", ("wrong", "error", "crash", "hang")),
    "error_inputs": Run("reliability.databases:error_inputs", 696, "wrong arguments", ()),
    "modules": Run("reliability.databases:modules", 10, "samples of each at most", ()),
    "races": Run("reliability.races", 20_000, "programs on the pool of threads", ("races", "wrong")),
    "checked": Run("reliability.elsewhere:checked", 1, "all tests of kernels under sanitizers", ("failed",)),
    "memcheck": Run("reliability.memcheck", 100, "files of tests of kernels at most", ("findings", "failed")),
    "kills": Run("reliability.elsewhere:kills", 1000, "kills", ("corrupt", "lost")),
    "naive_kills": Run("reliability.elsewhere:naive_kills", 100, "kills of writers that overwrite", ()),
    "files": Run(
        "reliability.elsewhere:files", 100_000, "hostile files",
        ("executed", "forbidden events", "wrong", "others changed"),
    ),
    "faults": Run("reliability.elsewhere:faults", 120, "trainings of several instances", ("wrong",)),
    "graphs": Run("reliability.elsewhere:graphs", 50_000, "random programs", ("wrong", "error", "crash", "hang")),
    "wide": Run(
        "reliability.elsewhere:wide", 20_000, "random programs of rarer operators", ("wrong", "error", "crash", "hang"),
    ),
    "large": Run(
        "reliability.elsewhere:large", 10_000, "random programs of large sizes", ("wrong", "error", "crash", "hang"),
    ),
    "special": Run(
        "reliability.elsewhere:special", 10_000, "random programs on special values",
        ("wrong", "error", "crash", "hang"),
    ),
    "networks": Run(
        "reliability.elsewhere:networks", 5_000, "random convolution networks in training",
        ("wrong", "error", "crash", "hang"),
    ),
    "nnsmith": Run("reliability.elsewhere:nnsmith", 10_000, "models of NNSmith", ("wrong", "error", "crash", "hang")),
    "reached": Run("repeats.share", 1, "all tests that are not thorough", ()),
}
