"""The rules of the advice: what each looks for, and what it then tries."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping

from torchipu.advice import nearby
from torchipu.advice.changes import Change, is_training
from torchipu.advice.remedies import memory_changes
from torchipu.advice.situation import Found, Situation, lines_of_tensors
from torchipu.advice.trials import Tried
from torchipu.report.facts import rows

NOTABLE = 0.01
"""Less is no gain to speak of: the model is not that exact."""
UNBALANCED = 1.15
"""A stage that takes so many times the mean of all holds up a pipeline."""
BUBBLE = 0.10
"""Share of the time that the IPUs of a pipeline wait for each other, from which on more micro-batches are tried."""
EXCHANGED, OF_THE_TIME = 0.5, 0.05
"""An op that exchanges for half of its cycles, and takes this share of all, is bound by it."""
ROOM = 0.6
"""A fullest tile filled less than that has room for larger micro-batches."""
NEARLY_FULL = 0.9
"""A fullest tile filled more than that is nearly too full."""
LARGE_FLOATS = 0.25
"""Share of the memory in use that floats take, from which on halves are tried."""
MOST_OPS = 3
"""Ops of which a rule tells, at most."""

Rule = Callable[[Situation], Iterator[Found]]


def out_of_memory(situation: Situation) -> Iterator[Found]:
    """A tile holds less than the program needs."""
    base = situation.base
    if base.fits:
        return
    fullest = base.fullest
    best, tried = situation.best(memory_changes(situation.subject, base), situation.freed)
    lines, place = lines_of_tensors(situation), ("", 0)
    named = []
    for name, count in fullest.largest:
        source = lines.get(name)
        named.append(f"%{name} {count:,} B")
        if source is not None and not place[1]:
            place = (source.file, source.line)
    finding = (
        f"tile {fullest.tile} of ipu {fullest.ipu} lacks {base.lacking_bytes:,} B; it holds {', '.join(named)}"
    )
    if best is None:
        yield Found(finding, _in_vain(tried), worth=3.0, file=place[0], line=place[1])
        return
    yield _of(situation, finding, best, 3.0, *place)


def unbalanced_stages(situation: Situation) -> Iterator[Found]:
    """One stage takes much longer than the others."""
    stages = situation.table("stages", rows.StageRow)
    times = [one.forward + one.backward for one in stages]
    if len(stages) < 2 or not sum(times) or max(times) * len(times) / sum(times) < UNBALANCED:
        return
    longest = stages[times.index(max(times))]
    finding = (
        f"stage {longest.number} ({longest.blocks}) on ipu {longest.ipu} takes {max(times):,} cycles for a "
        f"micro-batch, {max(times) * len(times) / sum(times) - 1:.0%} above the mean"
    )
    yield from _if_faster(
        situation, finding, nearby.moves(situation.subject, situation.base), *_line_of_stage(situation, longest.number),
    )


def bubble(situation: Situation) -> Iterator[Found]:
    """The IPUs of a pipeline wait for each other while it fills and empties."""
    if len(situation.base.memory) < 2:
        return
    share = situation.facts.figure("pipeline_bubble")
    if share < BUBBLE:
        return
    finding = (
        f"the IPUs of the pipeline wait for {share:.0%} of the time; "
        f"{situation.facts.figure('micro_batches')} micro-batches fill it to "
        f"{situation.facts.figure('pipeline_fill'):.0%}"
    )
    place = _line_of_stage(situation, _critical(situation))
    yield from _if_faster(situation, finding, nearby.more_micro_batches(situation.subject, situation.base), *place)


def recomputation(situation: Situation) -> Iterator[Found]:
    """Forward ops are computed again although there is room, or are not where there is none."""
    base = situation.base
    again = [one for one in situation.operations() if one.is_recomputed]
    changes = nearby.recomputations(situation.subject, base)
    if again and base.fits:
        cycles = sum(one.cycles for one in again)
        share = cycles / max(1, sum(one.cycles for one in situation.operations()))
        finding = f"{len(again)} forward ops are computed again in the backward, {share:.0%} of the cycles of all ops"
        yield from _if_faster(situation, finding, changes, again[0].file, again[0].line)
    elif not again and base.fits and is_training(situation.subject.graph):
        filled = base.fullest_bytes / situation.subject.target.tile_memory_bytes
        if filled < NEARLY_FULL:
            return
        best, _ = situation.best(changes, lambda tried: float(base.fullest_bytes - tried.fullest_bytes))
        if best is not None:
            finding = f"the fullest tile is filled to {filled:.0%}, and nothing is recomputed"
            yield _of(situation, finding, best, 0.0, *_line_of_stage(situation, _critical(situation)))


def exchange_bound(situation: Situation) -> Iterator[Found]:
    """An op moves its operands for longer than it computes."""
    operations = situation.operations()
    total = sum(one.cycles for one in operations) or 1
    bound = sorted(
        (one for one in operations if one.exchange > EXCHANGED * one.cycles and one.cycles > OF_THE_TIME * total),
        key=lambda one: -one.cycles,
    )[:MOST_OPS]
    for one in bound:
        finding = (
            f"{one.kind} %{one.name} exchanges for {one.exchange:,} of its {one.cycles:,} cycles, "
            f"{one.exchanged_bytes:,} B an iteration; it takes {one.cycles / total:.0%} of the cycles of all ops"
        )
        changes = (*nearby.proportions(situation.subject, situation.base), *nearby.in_halves(situation.subject))
        best, tried = situation.best(changes, situation.faster, NOTABLE)
        if best is not None:
            yield _of(situation, finding, best, situation.faster(best), one.file, one.line)
        else:
            yield Found(finding, _in_vain(tried), file=one.file, line=one.line)


def recompilations(situation: Situation) -> Iterator[Found]:
    """The model was compiled more than once."""
    events = [one for one in situation.table("compile", rows.CompileEvent) if one.kind == "recompilation"]
    if not events:
        return
    spent = sum(one.milliseconds for one in events)
    finding = f"compiled again {len(events)} time{'s' * (len(events) > 1)}: {events[-1].name}: {events[-1].detail}"
    yield Found(
        finding, "keep shapes and Python values the same from call to call: drop or pad the last batch, and keep "
        "numbers that change in tensors", "drop_last=True of the DataLoader, or torch.compile(..., dynamic=True)",
        f"{spent:,.0f} ms of compilation, as measured" if spent else "", 0.005,
    )


def half_overflow(situation: Situation) -> Iterator[Found]:
    """Halves became infinite, or gradients are too small for them."""
    numerics = situation.table("numerics", rows.TensorNumerics)
    halves = _halves(situation)
    bad = [one for one in numerics if (one.overflows or one.nans) and one.tensor in halves]
    if not bad:
        return
    worst = max(bad, key=lambda one: one.overflows + one.nans)
    lines = {one.number: (one.file, one.line) for one in situation.operations()}
    finding = (
        f"%{worst.tensor} has {worst.overflows:,} infinities and {worst.nans:,} NaN among {worst.elements:,} halves"
        + (f", and {len(bad) - 1} more tensors have some" if len(bad) > 1 else "")
    )
    advice = _fact(situation, "loss_scale_advice", {})
    place = lines.get(worst.operation, ("", 0))
    if not isinstance(advice, dict) or advice.get("suggested") == advice.get("current"):
        yield Found(finding, "compute this line in float32: call .float() on its operands", worth=2.0, file=place[0],
                    line=place[1])
        return
    yield Found(
        finding, f"change the loss scale from {advice['current']:g} to {advice['suggested']:g}, or let it follow the "
        "gradients",
        f"loss_scaling={advice['suggested']:g}, or automatic_loss_scaling=True",
        f"{advice['lost']:.1%} of the gradients' elements lack bits of a half now, {advice['lost_then']:.1%} then, by "
        "the exponents counted", 2.0, *place,
    )


def small_batches(situation: Situation) -> Iterator[Found]:
    """Tiles have room for larger micro-batches."""
    base = situation.base
    filled = base.fullest_bytes / situation.subject.target.tile_memory_bytes
    if filled > ROOM:
        return
    size = nearby.samples_of(situation.subject.graph)
    finding = f"micro-batches have {size} sample{'s' * (size != 1)}, and the fullest tile is filled to {filled:.0%}"
    place = _line_of_stage(situation, _critical(situation))
    yield from _if_faster(situation, finding, nearby.other_sizes(situation.subject, base, halves=False), *place)


def large_floats(situation: Situation) -> Iterator[Found]:
    """Floats take much of the memory, and could be halves."""
    variables = [one for one in situation.table("variables", rows.Variable) if not one.off_chip]
    total = sum(one.bytes for one in variables) or 1
    floats = sorted((one for one in variables if one.dtype == "float"), key=lambda one: -one.bytes)
    share = sum(one.bytes for one in floats) / total
    if share < LARGE_FLOATS or not floats:
        return
    base, limit = situation.base, situation.subject.target.tile_memory_bytes
    changes = (*nearby.in_halves(situation.subject), *nearby.smaller_states(situation.subject, base))

    def better(tried: Tried) -> float:
        return max((base.fullest_bytes - tried.fullest_bytes) / limit, situation.faster(tried))

    best, _ = situation.best(changes, better, NOTABLE)
    if best is None:
        return
    largest = floats[0]
    source = lines_of_tensors(situation).get(largest.name)
    finding = f"floats take {share:.0%} of the variables' bytes; the largest is %{largest.name}, {largest.bytes:,} B"
    yield _of(
        situation, finding, best, max(0.0, situation.faster(best)), "" if source is None else source.file,
        0 if source is None else source.line,
    )


def without_record(situation: Situation) -> Iterator[Found]:
    """Ops have no record, and cycles that are no more than estimates."""
    generic = [one for one in situation.operations() if one.kind == "generic"]
    if not generic:
        return
    first = max(generic, key=lambda one: one.cycles)
    total = sum(one.cycles for one in situation.operations()) or 1
    yield Found(
        f"{len(generic)} ops have no record, {first.target} among them; their cycles, "
        f"{sum(one.cycles for one in generic) / total:.0%} of all, are estimates",
        "write the line with operators that `torchipu operators` lists, or add a record (CONTRIBUTING.md)",
        file=first.file, line=first.line, worth=0.001,
    )


RULES: Mapping[str, Rule] = {
    "out of memory": out_of_memory, "half overflow": half_overflow, "unbalanced stages": unbalanced_stages,
    "pipeline bubble": bubble, "recomputation": recomputation, "exchange-bound op": exchange_bound,
    "large floats": large_floats, "small micro-batches": small_batches, "recompilations": recompilations,
    "ops without a record": without_record,
}
"""Rules by the name under which the report tells them, in the order in which they may try changes."""


# --------------------------------------------------------------------------- words
def _if_faster(
    situation: Situation, finding: str, changes: Iterable[Change], file: str = "", line: int = 0,
) -> Iterator[Found]:
    """Yield the finding if any of the changes makes the program faster."""
    best, _ = situation.best(changes, situation.faster, NOTABLE)
    if best is not None:
        yield _of(situation, finding, best, situation.faster(best), file, line)


def _of(
    situation: Situation, finding: str, tried: Tried, worth: float, file: str = "", line: int = 0,
) -> Found:
    return Found(finding, tried.change.words, tried.change.option, situation.gain(tried), worth, file, line)


def _in_vain(tried: Iterable[Tried]) -> str:
    """Return what was tried and helped nothing."""
    words = [f"{one.change.words} ({one.refusal})" if one.refusal else one.change.words for one in tried]
    return f"tried without gain: {'; '.join(words)}" if words else "there was no time to try anything"


def _critical(situation: Situation) -> int:
    """Return the stage that all others wait for."""
    return int(situation.facts.figure("critical_stage"))


def _line_of_stage(situation: Situation, stage: int) -> tuple[str, int]:
    """Return the line of the op that takes most cycles in a stage."""
    mine = [one for one in situation.operations() if one.stage == stage and one.line]
    slowest = max(mine, key=lambda one: one.cycles, default=None)
    return ("", 0) if slowest is None else (slowest.file, slowest.line)


def _halves(situation: Situation) -> frozenset[str]:
    """Return the names of results that are halves."""
    compiled = situation.base.compiled
    if compiled is None:
        return frozenset()
    return frozenset(
        tensor.name for op in compiled.graph.ops for tensor in op.outputs if tensor.dtype.device_bytes == 2
        and tensor.dtype.is_floating
    )


def _fact(situation: Situation, name: str, otherwise: object) -> object:
    for fact in situation.table("facts", rows.Fact):
        if fact.name == name:
            return json.loads(fact.value)
    return otherwise
