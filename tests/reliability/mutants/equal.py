"""Faults that make nothing wrong, by name, and why; they count as not caught all the same."""

from __future__ import annotations

EQUAL: dict[str, str] = {
    "backend/symbolic.py: `MOST_PLACED = 16`: 16 -> 17":
        "A constant of tuning: results are the same for any number.",
    "device/lower/collectives.py: `for given, made in zip(operands, results, strict=True)`: True -> False":
        "The copies that follow are refused where there are not as many results as operands.",
    "device/memory/addresses.py: `replace(life, begin=0, end=trace.time) for life in lasting if life.variable in "
    "trace.interleaved`: 0 -> 1":
        "The first superstep is number 1.",
    "device/memory/always.py: `same.add(by_identity)`: left out: same.add(by_identity)":
        "It spares looking the same set up again by its sizes, which finds it too.",
    "device/memory/peaks.py: `for time in range(1, liveness.trace.time + 1):`: 1 -> 2 (2)":
        "Nothing runs, begins or ends in the superstep behind the last.",
    "host/emit/depthwise_blocked.py: `while rows > 1 and (_laid_out(s, rows) > LAID_OUT_FLOATS or s.n * blocks * "
    "-(-s.oh // rows) < LEAST_ITEMS):`: Gt -> GtE (2)":
        "It chooses how many rows an item has; each result is summed by itself.",
    "host/emit/batch_norm_blocked.py: `BATCH_STATISTICS, statistics, [*running, partials], ints=ints, scalars=scalars, "
    "items=channels, grain=64,`: 64 -> 65":
        "A constant of tuning: results are the same for any number.",
    "backend/fitting.py: `for size, limit in zip(given, most, strict=True)`: True -> False":
        "The same two are gone through a few lines above, which refuses them.",
    "host/groups.py: `MAX_OPS_PAST_OPEN_CHAIN = 4`: 4 -> 5":
        "A constant of tuning: results are the same for any number.",
    "host/concatenation.py: `if 2 * sum(pieces[number][0].num_elements for number in fitting) >= "
    "op.outputs[0].num_elements:`: 0 -> 1":
        "A piece has as many elements as the place where it goes.",
    "optable/emission.py: `offset = offsets[slot.register] if slot.register >= 0 else 0`: 0 -> 1 (2)":
        "A slot without a register has its values elsewhere: no kernel reads its offset.",
    "host/groups.py: `passed: int = 0`: 0 -> 1":
        "A chain is made for an op that joins it at once, which sets it.",
    "ir/formulas.py: `if isinstance(left, int) and operation == \"*\" and left == 0:`: 0 -> 1":
        "A product of a number and a size is turned round, and is 0 then.",
    "ir/formulas.py: `return 0`: 0 -> 1":
        "It stands for what no number is; whoever reads it has set other sizes before.",
    "ir/sizes.py: `values = [*given, *[0] * len(self._steps)]`: 0 -> 1":
        "Each of these places is written before it is read.",
    "optable/pieces.py: `if not _are_known(size, *(number for number in given if number is not None)) or "
    "op.integer(\"step\", 1) != 1:`: 1 -> 2":
        "Captured ops name their step, and those of a pass that do not are looked at no more.",
    "ops/fusions/distances.py: `if first is None or second is None or len(shape) < 3 or difference.number(\"alpha\", 1)"
    " != 1:`: 1 -> 2":
        "Captured ops name their alpha; one without it would be stored, and give the same.",
    "passes/padded_sums.py: `while graph is not before and any(op.target in PADS for op in graph.ops):`: In -> NotIn":
        "The loop ends where nothing changes, which without such ops is at once.",
    "passes/precision.py: `for tensor, wide in zip(op.outputs, outputs, strict=True):`: True -> False":
        "The second list is made from the first a few lines above.",
    "passes/recompute.py: `last = max((place.stage for _, place in placed), default=0)`: 0 -> 1":
        "It is the last stage where no op is placed, and then there is none that could lie before it.",
}
