"""What is tried where a program does not fit, and how the error tells of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from torchipu.advice import nearby
from torchipu.advice.changes import Again, Change
from torchipu.advice.situation import gain_of
from torchipu.advice.trials import AS_IT_IS, Subject, Trials, Tried, tried_of
from torchipu.cache.verdicts import verdict_on
from torchipu.compiler import Compiled, compile_graph, try_graph
from torchipu.errors import OutOfTileMemoryError
from torchipu.ir.graph import Graph
from torchipu.options import Options
from torchipu.target import Target

LEAST_REMEDIES = 3
"""So many changes that free something are looked for beyond the usual time."""
SECONDS, MOST_SECONDS = 5.0, 20.0
"""After which no more are begun, and after which none is looked for any longer."""


def memory_changes(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield changes that need less memory, what is usually cheapest first.

    Args:
        subject: The program.
        base: The same, compiled.
    """
    for change in nearby.recomputations(subject, base):
        if change.settings.get("recompute") != "none":
            yield change
    yield from list(nearby.proportions(subject, base))[:1]
    yield from nearby.states_elsewhere(subject, base)
    yield from nearby.second_ipu(subject, base)
    yield from nearby.in_halves(subject)
    yield from nearby.smaller_states(subject, base)
    yield from nearby.moves(subject, base)
    yield from nearby.other_sizes(subject, base, halves=True)


def compile_or_advise(
    graph: Graph, options: Options, target: Target, *, micro_batches: int = 1, instances: int = 1,
    again: Again | None = None, capture_seconds: float = 0.0,
) -> Compiled:
    """Compile; where the program does not fit, the error tells what was tried, and what each change frees.

    What the compile cache knows to fit is not lowered for the device until somebody asks for that.

    Args:
        graph: As captured.
        options: What the user asked for.
        target: The machine.
        micro_batches: As of `torchipu.compiler.compile_graph`.
        instances: As there.
        again: Captures the model under other options; None where nothing can.
        capture_seconds: That a capture takes.

    Raises:
        PlacementError: An op cannot be placed.
        ScheduleError: The pipeline does not fit the number of micro-batches.
        OutOfTileMemoryError: The fullest tile does not hold the program.
    """
    judge = partial(verdict_on, options=options, target=target, micro_batches=micro_batches, instances=instances)
    try:
        return compile_graph(
            graph, options, target, micro_batches=micro_batches, instances=instances, judge=judge,
        )
    except OutOfTileMemoryError as error:
        subject = Subject(graph, options, target, micro_batches, instances, again, capture_seconds)
        advise(error, subject)
        raise


def advise(error: OutOfTileMemoryError, subject: Subject) -> None:
    """Add to an error what was tried, what frees most first, and let its remedy name that.

    Args:
        error: What is raised.
        subject: The program that does not fit.
    """
    options = AS_IT_IS.options(subject.options)
    compiled = try_graph(
        subject.graph, options, subject.target, micro_batches=subject.micro_batches, instances=subject.instances,
    )
    base = tried_of(AS_IT_IS, compiled, compiled.executable)
    trials = Trials(subject, base, SECONDS)
    for change in memory_changes(subject, base):
        trials.seconds = SECONDS if len(_helping(trials)) >= LEAST_REMEDIES else MOST_SECONDS
        trials.of(change)
    trials.seconds = SECONDS
    helping = _helping(trials)
    if helping and not helping[0].fits:
        for change in _together(helping):
            joined = trials.of(change)
            if joined is None or joined.fits:
                break
        helping = _helping(trials)
    error.tried = tuple((one.change.option, base.fullest_bytes - one.fullest_bytes, one.fits) for one in helping)
    lines = [error.detail, "the model tried, best first:"] if trials.found else [error.detail]
    lines += [f"  {one.change.option}\n    {one.change.words}: {gain_of(base, one)}" for one in helping]
    rest = [one for one in trials.found if one not in helping]
    lines += [f"  {one.change.words}: {one.refusal or 'frees nothing'}" for one in rest]
    if trials.left_out:
        lines.append(f"not tried for lack of time: {'; '.join(change.words for change in trials.left_out)}")
    error.detail = "\n".join(lines)
    if helping and helping[0].fits:
        error.remedy = f"set {helping[0].change.option}: it then fits; {error.remedy}"


def _helping(trials: Trials) -> list[Tried]:
    """Return the changes that free some memory, best first: those that fit, the fastest of them first."""
    base = trials.base
    helping = (one for one in trials.found if not one.refusal and one.fullest_bytes < base.fullest_bytes)
    return sorted(helping, key=lambda one: (one.lacking_bytes, -one.samples_per_second))


def _together(helping: Sequence[Tried]) -> Iterator[Change]:
    """Yield the change that frees most with the next one, then with one more."""
    joined = helping[0].change
    for one in helping[1:]:
        more = joined.joined(one.change)
        if more is not None:
            joined = more
            yield joined
