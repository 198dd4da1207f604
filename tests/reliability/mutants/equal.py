"""Faults that make nothing wrong, by name, and why; they count as not caught all the same."""

from __future__ import annotations

EQUAL: dict[str, str] = {
    "device/lower/collectives.py: `for given, made in zip(operands, results, strict=True)`: True -> False":
        "The copies that follow are refused where there are not as many results as operands.",
    "device/memory/addresses.py: `replace(life, begin=0, end=trace.time) for life in lasting if life.variable in "
    "trace.interleaved`: 0 -> 1":
        "The first superstep is number 1.",
    "device/memory/always.py: `same.add(by_identity)`: left out: same.add(by_identity)":
        "It spares looking the same set up again by its sizes, which finds it too.",
    "device/memory/peaks.py: `for time in range(1, liveness.trace.time + 1):`: 1 -> 2 (2)":
        "Nothing runs, begins or ends in the superstep behind the last.",
    "host/groups.py: `MAX_OPS_PAST_OPEN_CHAIN = 4`: 4 -> 5":
        "A constant of tuning: results are the same for any number.",
    "ir/sizes.py: `values = [*given, *[0] * len(self._steps)]`: 0 -> 1":
        "Each of these places is written before it is read.",
    "passes/precision.py: `for tensor, wide in zip(op.outputs, outputs, strict=True):`: True -> False":
        "The second list is made from the first a few lines above.",
    "passes/recompute.py: `last = max((place.stage for _, place in placed), default=0)`: 0 -> 1":
        "It is the last stage where no op is placed, and then there is none that could lie before it.",
}
