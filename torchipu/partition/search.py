"""The search for stages: dynamic programming over units for the IPU that takes longest, then one move at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torchipu.partition.model import ALL, NONE, SOME, STAGE, Model, Part
from torchipu.partition.units import Unit

MODES = (NONE, STAGE, SOME)
MOST_MOVES = 40
"""Moves of a choice, one after another, each the best of its round."""

MOVED_OF_A_MODE = 4
FEW_UNITS = 64
"""Up to so many units every one of them may begin a stage, whatever crosses there."""
HOPE = 0.05
"""Part of a tile by which an estimate may be too high."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """A choice of stages.

    Attributes:
        begins: The unit at which each stage begins.
        ipus: The IPU of each stage.
        kinds: What each stage recomputes: ``NONE``, ``STAGE`` or ``ALL``.
        off_chip: Whether optimiser states lie in Streaming Memory.
        cycles: Estimate of a micro-batch's share of an update.
    """

    begins: tuple[int, ...]
    ipus: tuple[int, ...]
    kinds: tuple[str, ...]
    off_chip: bool
    cycles: float

    @property
    def key(self) -> tuple[object, ...]:
        """What makes it different from others."""
        return self.begins, self.ipus, self.kinds, self.off_chip


def candidates(model: Model) -> list[tuple[int, ...]]:
    """Return sets of units at which stages may begin.

    A copy between IPUs holds all of them up, so what crosses a cut is limited, first to little.
    """
    units = model.units
    sizes = [unit.entering_bytes for unit in units[1:]] or [0]
    limits = [min(sizes), 2 * min(sizes)] + ([max(sizes)] if len(units) <= FEW_UNITS else [])
    every = [
        tuple(number for number, unit in enumerate(units) if number == 0 or unit.entering_bytes <= limit)
        for limit in limits
    ]
    return list(dict.fromkeys([tuple(sorted(model.whole | {0})), *every]))


def folds(units: Sequence[Unit]) -> list[int]:
    """Return units from which on the last stage may share IPU 0: where they read a weight that the first ones read.

    On another IPU, the weight would be copied at every update and its gradient sent at every micro-batch.
    """
    found: list[int] = []
    seen = set(units[0].weights)
    for number, unit in enumerate(units[1:], start=1):
        found += [number] if number > 1 and unit.weights & seen else []
        seen |= unit.weights
    return list(dict.fromkeys([*found[:1], *found[-1:]]))


# --------------------------------------------------------------------------- dynamic programming
def best_cuts(
    model: Model, most_ipus: int, mode: str, off_chip: bool, places: Sequence[int], *, fold: int | None = None,
    must_fit: bool = True,
) -> list[Cuts]:
    """Return for each number of IPUs the cuts whose slowest IPU is fastest, where there are any that fit.

    Counted from the last stage, so that a stage's distance to the end, which decides what it stashes, is known. What
    crosses between IPUs is left to the moves that follow.

    Args:
        model: The units.
        most_ipus: The largest number of IPUs.
        mode: What is recomputed, one of ``MODES`` or ``ALL``.
        off_chip: Whether optimiser states lie in Streaming Memory.
        places: Units at which stages may begin, the first of all among them.
        fold: The unit from which on the last stage runs on IPU 0, beside the first; None for stages with an IPU each.
        must_fit: Whether stages that do not fit are left out.
    """
    last = len(model.units) if fold is None else fold
    ends = [place for place in places if place < last] + [last]
    beside: Part | None = None
    spent = 0.0
    if fold is not None:
        span = (fold, len(model.units), 0)
        beside = (span, model.resolved(span, mode, off_chip))
        spent = model.steady(fold, len(model.units), beside[1], 0)
    best: list[list[tuple[float, int]]] = []
    found: list[Cuts] = []
    for after in range(min(most_ipus, len(ends) - 1)):
        distance, ipu = after + (fold is not None), most_ipus - 1 - after
        row: list[tuple[float, int]] = []
        for position, begin in enumerate(ends[:-1]):
            shared = beside if begin == 0 else None
            choice = (float("inf"), len(ends) - 1)
            for other in [len(ends) - 1] if after == 0 else range(position + 1, len(ends) - 1):
                here = (begin, ends[other], distance)
                kind = model.resolved(here, mode, off_chip, shared)
                taken = model.steady(begin, ends[other], kind, ipu) + (spent if shared else 0.0)
                if taken >= choice[0]:
                    break  # longer stages are slower still
                slowest = max(best[-1][other][0] if after else 0.0, taken)
                if slowest >= choice[0]:
                    continue
                if must_fit and not model.holds(((here, kind), *([shared] if shared else [])), off_chip):
                    break  # longer stages need more
                choice = (slowest, other)
            row.append(choice)
        best.append(row)
        if row[0][0] < float("inf") and (fold is None or after):
            begins, ipus = _followed(best, ends), list(range(after + 1))
            if fold is not None:
                begins, ipus = [*begins, fold], [*ipus, 0]
            kinds = model.kinds(begins, ipus, mode, off_chip)
            found.append(made(model, begins, ipus, kinds, off_chip))
    return found


def _followed(best: list[list[tuple[float, int]]], ends: Sequence[int]) -> list[int]:
    begins, position = [], 0
    for row in reversed(best):
        begins.append(ends[position])
        position = row[position][1]
        if position >= len(ends) - 1:
            break
    return begins


def made(model: Model, begins: Sequence[int], ipus: Sequence[int], kinds: Sequence[str], off_chip: bool) -> Cuts:
    """Return a choice with its cycles."""
    cycles = model.cycles(begins, ipus, kinds, off_chip)
    return Cuts(tuple(begins), tuple(ipus), tuple(kinds), off_chip, cycles)


# --------------------------------------------------------------------------- moves
def moved(model: Model, cuts: Cuts, most_ipus: int, places: Sequence[int], mode: str, *, must_fit: bool) -> Cuts:
    """Change one thing at a time, for as long as the whole schedule becomes shorter.

    A cut moves to another place, the last stage is split and its end moved to another IPU, such an end is given back,
    or it moves to yet another IPU.
    """
    for _ in range(MOST_MOVES):
        best = cuts
        for begins, ipus in _neighbours(cuts, most_ipus, places, len(model.units)):
            kinds = model.kinds(begins, ipus, mode, cuts.off_chip)
            other = made(model, begins, ipus, kinds, cuts.off_chip)
            if other.cycles < best.cycles and (not must_fit or model.fits(begins, ipus, kinds, cuts.off_chip)):
                best = other
        if best is cuts:
            break
        cuts = best
    return cuts


def _neighbours(
    cuts: Cuts, most_ipus: int, places: Sequence[int], count: int,
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the stages of choices that differ in one thing."""
    begins, ipus = cuts.begins, cuts.ipus
    for stage in range(1, len(begins)):
        low, high = begins[stage - 1], (*begins, count)[stage + 1]
        before = [place for place in places if low < place < begins[stage]][-2:]
        behind = [place for place in places if begins[stage] < place < high][:2]
        for place in (*before, *behind):
            yield (*begins[:stage], place, *begins[stage + 1 :]), ipus
    used = len(set(ipus))
    is_folded = len(ipus) > used
    if is_folded:
        yield begins[:-1], ipus[:-1]
    for ipu in range(min(used, most_ipus)):
        if is_folded and ipu not in ipus[-2:]:
            yield begins, (*ipus[:-1], ipu)
        elif not is_folded and ipu != ipus[-1]:
            for place in [place for place in places if place > begins[-1]][-2:]:
                yield (*begins, place), (*ipus, ipu)


def ranked(model: Model, most_ipus: int, *, off_chip: bool) -> list[Cuts]:
    """Return choices that fit by estimate, the fastest first."""
    found: dict[object, Cuts] = {}
    for mode in MODES if model.is_training else (NONE,):
        begun: dict[object, tuple[Cuts, Sequence[int]]] = {}
        for places in candidates(model):
            for fold in (None, *folds(model.units)):
                made_here = best_cuts(model, most_ipus, mode, off_chip, places, fold=fold)
                begun |= {one.key: (one, places) for one in made_here if one.key not in begun}
        first = sorted(begun.values(), key=lambda pair: pair[0].cycles)
        for number, (cuts, allowed) in enumerate(first):
            found[cuts.key] = cuts
            if number < MOVED_OF_A_MODE:
                other = moved(model, cuts, most_ipus, allowed, mode, must_fit=True)
                found[other.key] = other
    fitting = [one for one in found.values() if model.fits(one.begins, one.ipus, one.kinds, off_chip)]
    return sorted(fitting, key=lambda cuts: (cuts.cycles, cuts.kinds))


def least(model: Model, most_ipus: int, *, off_chip: bool) -> list[Cuts]:
    """Return choices that may need least, where none fits by estimate: everything is recomputed, on all IPUs."""
    mode = ALL if model.is_training else NONE
    found = [
        cuts for fold in (None, *folds(model.units))
        for cuts in best_cuts(model, most_ipus, mode, off_chip, candidates(model)[0], fold=fold, must_fit=False)
    ]
    return sorted(found, key=lambda cuts: (-len(set(cuts.ipus)), cuts.cycles))


def relaxed(model: Model, cuts: Cuts) -> Iterator[Cuts]:
    """Yield a choice that fits with less recomputation, one stage at a time, where that is faster by estimate."""
    for stage, kind in enumerate(cuts.kinds):
        if kind == ALL:
            kinds = (*cuts.kinds[:stage], NONE, *cuts.kinds[stage + 1 :])
            other = made(model, cuts.begins, cuts.ipus, kinds, cuts.off_chip)
            if other.cycles < cuts.cycles and model.fits(cuts.begins, cuts.ipus, kinds, cuts.off_chip, margin=HOPE):
                yield other
