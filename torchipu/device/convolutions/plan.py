"""The planner of convolutions: how tiles share one, by which vertices, and in how many parts if memory is short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from torchipu.device.convolutions.axes import Axis, Share, shares_of, split_counts
from torchipu.device.convolutions.busiest_tile import BusiestTile, Plan, Way, channel_groups
from torchipu.device.convolutions.problem import Problem
from torchipu.device.convolutions.vertices import SLIC_CHANNELS, WEIGHTS_OF_A_UNIT
from torchipu.device.matrix_unit import INPUT_GROUP
from torchipu.ir.arithmetic import ceil_div

if TYPE_CHECKING:
    from torchipu.target import Target

PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # serial splits that are tried
VERTICAL_GROUPS = (4, 8, 16)  # that vertices without the matrix unit take side by side; poplibs planner
MOST_ROWS = 16  # of a window that are split among tiles, an element each
LEAST_TILES = 3  # plans that use less than this part of the most tiles that a plan uses are not looked at
_FIELDS = ("split", "outputs", "met", "read", "taps", "tap_split")  # of a share


@lru_cache(maxsize=2048)
def plan_convolution(target: Target, problem: Problem) -> Plan:
    """Choose the plan with the fewest cycles among those whose temporary values fit.

    If none fits at once, tiles take channels in parts, one after another. If none fits then either, PopLibs' planner
    tries again with another aim, the least memory, and without the padding of channels that the matrix unit needs: the
    cliffs of ``availableMemoryProportion``.
    """
    plan = _best(target, problem, _ways(problem))
    if plan is not None and not plan.excess_bytes:
        return plan
    serial = [pair for pair in product(PARTS, PARTS) if pair != (1, 1) and pair[0] * pair[1] <= PARTS[-1]]
    for parts in sorted(serial, key=lambda pair: (pair[0] * pair[1], pair)):
        found = _best(target, problem, _ways(problem, *parts))
        if found is not None and not found.excess_bytes:
            return found
    least = _best(target, problem, (Way("multiply"), *_ways(problem)), for_memory=True)
    assert least is not None
    return least


def _ways(problem: Problem, output_parts: int = 1, input_parts: int = 1) -> Iterator[Way]:
    """Yield the ways to use the matrix unit."""
    if problem.settings.is_half and problem.groups > 1:
        for lanes in VERTICAL_GROUPS:
            yield Way("vertical", lanes, 1, output_parts=output_parts, input_parts=input_parts)
    if problem.is_sliding_update:
        return
    together = [1]
    while problem.groups % (2 * together[-1]) == 0 and 2 * together[-1] <= problem.most_together:
        together.append(2 * together[-1])
    for some in together:
        if problem.is_pointwise:
            yield Way("pointwise", some, output_parts=output_parts, input_parts=input_parts)
            continue
        unfolded = (False, False, False)
        # What the units hold at once. Products of floats run as if it were twice that, on silicon too.
        widest = WEIGHTS_OF_A_UNIT[problem.settings.is_half]
        ways = [("window", group, unfolded) for group in ((16, 8, 4) if problem.settings.is_half else (widest,))]
        if problem.axes[2].taps > 1 and any(axis.taps > 1 for axis in problem.axes[:2]):
            ways.append(("window", widest, (False, False, True)))
        if _is_slim(problem, some):
            yield Way("slic", some, SLIC_CHANNELS, unfolded, output_parts, input_parts)
        if some != together[-1] and some > 1 and some * problem.outputs < problem.settings.unit:
            continue  # groups are put together to fill the matrix unit
        for method, group, folded in [*ways, ("pointwise", INPUT_GROUP, (True, True, True))]:
            yield Way(method, some, group, folded, output_parts, input_parts)


def _is_slim(problem: Problem, together: int) -> bool:
    """Whether the vertices for windows of few channels are taken: of groups, of halves that windows meet side by side.

    Single groups of four channels are left to the other vertices, as silicon shows (a 3x3 filter on Mk1).
    """
    last = problem.axes[2]
    return (
        problem.settings.is_half and problem.groups > 1 and abs(last.tap_step) == 1 and last.step <= 2
        and max(problem.inputs, problem.outputs) * together <= SLIC_CHANNELS
    )


def _best(target: Target, problem: Problem, ways: Any, *, for_memory: bool = False) -> Plan | None:
    plans = [plan for way in ways if (plan := _planned(target, problem, way, for_memory)) is not None]
    if for_memory:
        return min(plans, key=lambda plan: (plan.temporary_bytes, plan.cycles), default=None)
    return min(plans, key=lambda plan: (plan.excess_bytes, plan.cycles), default=None)


def _planned(target: Target, problem: Problem, way: Way, for_memory: bool) -> Plan | None:
    """Return the best splits for a way, all of which are looked at side by side."""
    is_spread = way.method == "slic" and problem.has_zeros
    problem = problem.spread if is_spread else problem
    fields, channels = _splits(target, problem, way)
    if channels is None:
        return None
    at = BusiestTile(target, problem, way, fields, channels, is_spread=is_spread)
    with np.errstate(over="ignore"):
        cycles, needed = at.cycles(), at.temporary_bytes()
    excess = np.maximum(needed - problem.settings.budget_bytes, 0)
    order = (cycles, needed) if for_memory else (cycles, excess)
    best = int(np.lexsort(order)[0])
    return at.plan(best, int(np.ceil(cycles[best])), int(excess[best]))


def _splits(target: Target, problem: Problem, way: Way) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return pairs of splits of the image and of the channels that no more tiles than there are can share."""
    tiles = target.num_tiles
    inputs, outputs = channel_groups(problem, way)
    # Serial parts are cut before windows are laid out as channels.
    unfolded = ceil_div(problem.inputs * way.together, way.input_group)
    if min(inputs, unfolded) < way.input_parts or outputs < way.output_parts:
        return {}, None
    batches = [Share(split, *(ceil_div(problem.batch, split),) * 3, 1) for split in split_counts(problem.batch, tiles)]
    image, first = _image_shares(problem, way, batches, tiles)
    groups = ceil_div(problem.groups, way.together)
    # What is computed as one group stays on a tile, but for its summands.
    most = tiles if way.together == 1 or way.method == "vertical" else 1
    split = [
        (a, b, c) for a, b, c in product(
            split_counts(groups, tiles), split_counts(ceil_div(outputs, way.output_parts), most),
            split_counts(ceil_div(inputs, way.input_parts), tiles),
        ) if a * b * c <= tiles
    ]
    second = np.array(split).prod(axis=1)
    used = first[:, None] * second[None, :]
    fits = used <= tiles
    fits &= used * LEAST_TILES >= used[fits].max()
    left, right = np.nonzero(fits)
    table = image[left]
    fields = {name: table[:, :, number] for number, name in enumerate(_FIELDS)}
    by = np.array(split, np.float64)[right]
    return fields, {
        "group_split": by[:, 0], "output_split": by[:, 1], "input_split": by[:, 2],
        "groups": np.ceil(groups / by[:, 0]), "output_groups": np.ceil(np.ceil(outputs / way.output_parts) / by[:, 1]),
        "input_groups": np.ceil(np.ceil(inputs / way.input_parts) / by[:, 2]),
    }


def _image_shares(problem: Problem, way: Way, batches: list[Share], tiles: int) -> tuple[Any, Any]:
    """Return pairs of splits of batch, dimensions and windows that no more tiles than there are can share.

    Returns:
        Fields of their shares, ``[pair, dimension, field]``, and how many tiles share each pair.
    """
    tables, places, used = [_table(batches)], [np.arange(len(batches))], np.array([batch.split for batch in batches])
    for number, axis in enumerate(problem.axes):
        shares = shares_of(axis, tiles, _tap_splits(axis, way, number, tiles))
        together = used[:, None] * np.array([share.split * share.tap_split for share in shares])
        some, share = np.nonzero(together <= tiles)
        tables.append(_table(shares))
        places, used = [*(place[some] for place in places), share], together[some, share]
    return np.stack([table[place] for table, place in zip(tables, places, strict=True)], axis=1), used


def _table(shares: Sequence[Share]) -> Any:
    """Return the fields of shares, a row for each."""
    return np.array([[getattr(share, name) for name in _FIELDS] for share in shares], np.float64)


def _tap_splits(axis: Axis, way: Way, number: int, tiles: int) -> tuple[int, ...]:
    """Return among how many tiles the elements of a window along one of its dimensions may be split.

    Vertices without the matrix unit add up along rows of any length. Those of windows load panels for each element, and
    share the rows of a window, one each: nearly all of what splits of its columns, or several rows, would gain.
    """
    if way.method == "vertical":
        return split_counts(axis.taps, tiles)
    has_rows = way.method == "window" and number < len(way.folded) - 1 and not way.folded[number]
    return (1, axis.taps) if has_rows and 1 < axis.taps <= MOST_ROWS else (1,)
