"""Performance counters of an executor: when inputs and outputs of a run were asked for, ready and there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchipu.poptorch.enums import OutputMode

KINDS = ("input", "input_complete", "output", "output_complete")


class Counters:
    """Times of the last run.

    The program takes a whole call's inputs at once and returns all outputs at once; the times of single micro-batches
    are spread evenly over the call.
    """

    def __init__(self) -> None:
        self.run: tuple[Any, int, int, tuple[float, float, float, float]] | None = None

    def note(self, options: Any, num_inputs: int, num_outputs: int, times: tuple[float, float, float, float]) -> None:
        """Note a run.

        Args:
            options: The executor's.
            num_inputs: Tensors taken.
            num_outputs: Tensors returned.
            times: Seconds when the call began, had its inputs, had its results, and ended.
        """
        self.run = (options, num_inputs, num_outputs, times)

    def lists(self) -> dict[str, list[list[float]]]:
        """Return the times by kind, then tensor, then micro-batch."""
        if self.run is None or _is_synthetic(self.run[0]):
            return {kind: [[]] for kind in KINDS}
        options, num_inputs, num_outputs, (began, received, computed, ended) = self.run
        steps = options.device_iterations * options.replication_factor * options.Training.gradient_accumulation
        returned = _returned(options)
        return {
            "input": [_spread(began, received, steps) for _ in range(num_inputs)],
            "input_complete": [_spread(began, received, steps, ends=True) for _ in range(num_inputs)],
            "output": [_spread(computed, ended, returned) for _ in range(num_outputs)],
            "output_complete": [_spread(computed, ended, returned, ends=True) for _ in range(num_outputs)],
        }

    def latency(self, begin: str, end: str) -> tuple[float, float, float]:
        """Return least, greatest and mean seconds between two kinds of events of a returned micro-batch."""
        lists = self.lists()
        begins, ends = _columns(lists[begin]), _columns(lists[end])
        if not begins or not ends:
            return (0.0, 0.0, 0.0)
        groups = max(1, len(ends)) if len(begins) >= len(ends) else len(begins)
        size, other = max(1, len(begins) // groups), max(1, len(ends) // groups)
        spans = []
        for group in range(groups):
            # From the first input of a group on; where the span begins with inputs being there, from the last one.
            pick = min if begin != "input_complete" else max
            first = pick(pick(column) for column in begins[group * size : (group + 1) * size])
            last = max(max(column) for column in ends[group * other : (group + 1) * other])
            spans.append(max(0.0, last - first))
        return (min(spans), max(spans), sum(spans) / len(spans))


def _is_synthetic(options: Any) -> bool:
    return bool(options._popart.options.get("syntheticDataMode"))


def _returned(options: Any) -> int:
    """Return how many micro-batches' results a call returns."""
    replicas = options.replication_factor
    everything = options.device_iterations * options.Training.gradient_accumulation * replicas
    match OutputMode(options.output_mode):
        case OutputMode.All:
            return int(everything)
        case OutputMode.EveryN:
            return int(everything // options.output_return_period)
        case _:
            return int(replicas)


def _spread(begin: float, end: float, count: int, *, ends: bool = False) -> list[float]:
    step = (end - begin) / count
    return [begin + step * (index + (1 if ends else 0)) for index in range(count)]


def _columns(lists: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    return list(zip(*lists, strict=True))
