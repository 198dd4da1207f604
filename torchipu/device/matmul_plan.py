"""The planner of products: how PopLibs cuts a product up, by the cycles and the memory that it expects of each way.

To PopLibs a product is a convolution without a kernel. One side of the result is the field, whose positions the matrix
unit streams through; the other one is made of output channels, of which it holds some at a time; summands are the input
channels. Columns are the field and rows are channels, which is how operands lie. They may be swapped, and are laid out
anew for that. A plan says how many tiles share each of the three, and in how many serial parts
output or input channels are taken where temporary values would not fit otherwise.

Source: ``ipu_hardware.md`` 3.1, the planner of PopLibs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from torchipu.device.matrix_unit import (
    AVAILABLE_MEMORY,
    COPY_CYCLES,
    INPUT_GROUP,
    call_cycles,
    reduction_cycles,
    serial_cycles,
)
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.region import Numbers

if TYPE_CHECKING:
    from torchipu.target import Target

MOST_PARTS = 64
"""Serial parts of output channels that are tried; they divide the channels, as PopLibs asks."""

INPUT_PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Serial parts of input channels that are tried."""

TILES_OF_A_BUS = 2
"""Tiles that receive the same data at the same time over their common bus; poplibs target properties."""


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """How a product is cut up.

    Attributes:
        row_split: Tiles that share the rows of the left operand.
        column_split: Tiles that share the columns of the right operand.
        input_split: Tiles that share the summands, whose partials are added up afterwards.
        positions: Rows that the busiest tile takes at a time.
        inputs: Summands that it takes at a time.
        outputs: Columns that it takes at a time.
        calls: Groups that it takes at a time.
        repeats: How often it does so, each time with other operands.
        shares: Rows, columns and summands that it takes in all.
        has_rows_as_channels: Whether the matrix unit streams through columns and holds rows, not the other way round.
        results: Results of a tile in all.
        received_bytes: What it receives at a time over a bus of its own: without what it holds itself, and with half
            of what its neighbour receives too.
        temporary_bytes: What it needs at a time, results that have to be finished among it.
        copied_bytes: What it copies beside, because parts are taken one after another; 0 where it takes all at once.
        added: Partials that it adds to those of the part before.
        laid: Elements of operands that it lays out anew, because the sides of the product are swapped.
        finishes: How often results are added up, or rounded, and how many parts of them there are.
        excess_bytes: By how much its temporary values exceed what they may use.
        cycles: Of exchange, compute and the reduction of partials.
        method: ``amp``, or ``dot`` and ``outer`` of `torchipu.device.single_rows`: which vertices compute it.
    """

    row_split: int
    column_split: int
    input_split: int
    positions: int
    inputs: int
    outputs: int
    calls: int
    repeats: int
    shares: tuple[int, int, int]
    has_rows_as_channels: bool
    results: int
    received_bytes: int
    temporary_bytes: int
    copied_bytes: int
    added: int
    laid: int
    finishes: int
    excess_bytes: int
    cycles: int
    method: str = "amp"

    def for_steps(self, steps: int, inputs: int) -> MatmulPlan:
        """Return the plan that does the same for each of several steps in time, whose terms are added up.

        Args:
            steps: In time.
            inputs: Summands in all of them.
        """
        share = ceil_div(inputs, self.input_split)
        return replace(
            self, inputs=min(self.inputs, ceil_div(share, steps)), shares=(*self.shares[:2], share),
            repeats=self.repeats * steps, copied_bytes=max(1, self.copied_bytes), cycles=self.cycles * steps,
            added=self.positions * self.outputs * self.calls,
        )

    @property
    def channels(self) -> tuple[int, int]:
        """Positions of the field and output channels that the matrix unit takes at a time."""
        return (self.outputs, self.positions) if self.has_rows_as_channels else (self.positions, self.outputs)


@dataclass(frozen=True, slots=True)
class _Problem:
    """A product as a convolution, and what memory of a tile it may use.

    Attributes:
        groups: Independent ones.
        field: Positions.
        inputs: Input channels.
        channels: Output channels.
        is_half: Whether operands are half.
        group: Output channels that the matrix unit takes at a time.
        partial_bytes: Of a partial.
        budget_bytes: For temporary values.
        is_swapped: Whether rows are the field and columns are channels.
    """

    groups: int
    field: int
    inputs: int
    channels: int
    is_half: bool
    group: int
    partial_bytes: int
    budget_bytes: int
    is_swapped: bool = True

    @property
    def element_bytes(self) -> int:
        return 2 if self.is_half else 4

    @property
    def has_casts(self) -> bool:
        """Whether results are narrower than their partials."""
        return self.element_bytes < self.partial_bytes

    @property
    def turned(self) -> _Problem:
        """The same with the sides of the result exchanged."""
        return replace(self, field=self.channels, channels=self.field, is_swapped=not self.is_swapped)


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Ways to cut up a problem, all with as many serial parts; an element each.

    Attributes:
        field_split: Tiles that share the field.
        input_split: Tiles that share the input channels.
        channel_split: Tiles that share the output channels.
        field: Positions that a tile takes.
        inputs: Input channels that it takes at a time.
        channels: Output channels that it takes at a time.
        channel_parts: Serial parts of the output channels.
        input_parts: Serial parts of the input channels.
    """

    field_split: Numbers
    input_split: Numbers
    channel_split: Numbers
    field: Numbers
    inputs: Numbers
    channels: Numbers
    channel_parts: int = 1
    input_parts: int = 1


@dataclass(frozen=True, slots=True)
class _Costs:
    """What candidates cost, an element each; see `MatmulPlan`."""

    cycles: Numbers
    received: Numbers
    needed: Numbers
    copied: Numbers
    added: Numbers
    laid: Numbers
    excess: Numbers
    calls: Numbers
    repeats: Numbers

    @property
    def best(self) -> int:
        """Index of the cheapest candidate among those that fit, or else among those that exceed least."""
        return int(np.lexsort((self.cycles, self.excess))[0])

    def key(self, index: int) -> tuple[int, int]:
        """By which candidates compare."""
        return int(self.excess[index]), int(self.cycles[index])


def plan_matmul(
    target: Target, groups: int, positions: int, inputs: int, outputs: int, is_half: bool, output_group: int,
    available_memory: float = AVAILABLE_MEMORY, *, partial_bytes: int = 4,
) -> MatmulPlan:
    """Choose the splits with the fewest cycles among those whose temporary values fit, else the smallest.

    Args:
        target: The machine.
        groups: Independent products.
        positions: Rows of the left operand.
        inputs: Summands.
        outputs: Columns of the right operand.
        is_half: Whether operands are half.
        output_group: Output channels of a panel; see `conv_units`.
        available_memory: Part of a tile's memory that temporary values may use. What does not fit is computed in
            parts, one after another: fewer operands are gathered at a time.
        partial_bytes: Of a partial.
    """
    budget = int(available_memory * target.tile_memory_bytes)
    return _plan_of(target, _Problem(groups, positions, inputs, outputs, is_half, output_group, partial_bytes, budget))


@lru_cache(maxsize=4096)
def _plan_of(target: Target, problem: _Problem) -> MatmulPlan:
    """Return the best plan of a product, with either side as the field: at once if that fits, or in parts."""
    at_once = [_best(target, one, _candidates(target, one), turned) for turned, one in _turns(problem)]
    best = min(at_once, key=_preference)
    # Serial parts cost more than they save, but where nothing else fits, or what fits is not what would be best.
    roomy = replace(problem, budget_bytes=target.tile_memory_bytes * target.num_tiles)
    free = min((_best(target, one, _candidates(target, one), turned) for turned, one in _turns(roomy)), key=_preference)
    if best.excess_bytes or best.cycles > free.cycles:
        for turned, one in _turns(problem):
            best = min((best, *_in_parts(target, one, turned)), key=_preference)
    return best


def _turns(problem: _Problem) -> tuple[tuple[bool, _Problem], ...]:
    """Return the problem with columns and with rows as output channels."""
    return (False, problem), (True, problem.turned)


def _preference(plan: MatmulPlan) -> tuple[int, int]:
    return plan.excess_bytes, plan.cycles


def _in_parts(target: Target, problem: _Problem, turned: bool) -> Iterator[MatmulPlan]:
    """Yield the best plan for each number of serial parts of output channels, of input channels, then of both."""
    channel_parts = [parts for parts in range(2, MOST_PARTS + 1) if problem.channels % parts == 0]
    input_parts = [parts for parts in INPUT_PARTS if parts <= ceil_div(problem.inputs, INPUT_GROUP)]
    fits = False
    for parts in [(count, 1) for count in channel_parts] + [(1, count) for count in input_parts]:
        plan = _best(target, problem, _candidates(target, problem, *parts), turned)
        fits = fits or not plan.excess_bytes
        yield plan
    for parts in [] if fits else [(outer, inner) for outer in channel_parts for inner in input_parts]:
        yield _best(target, problem, _candidates(target, problem, *parts), turned)


def _candidates(target: Target, problem: _Problem, channel_parts: int = 1, input_parts: int = 1) -> _Candidates:
    """Return all ways to share input and output channels among tiles; the tiles that are left share the field."""
    tiles = max(1, target.num_tiles // problem.groups)
    inner = splits_of(ceil_div(problem.inputs, INPUT_GROUP), tiles)
    outer = splits_of(ceil_div(ceil_div(problem.channels, channel_parts), problem.group), tiles)
    input_split, channel_split = (grid.reshape(-1) for grid in np.meshgrid(inner, outer, indexing="ij"))
    within = input_split * channel_split <= tiles
    input_split, channel_split = input_split[within], channel_split[within]
    field = -(-problem.field // np.minimum(problem.field, tiles // (input_split * channel_split)))
    inputs = -(-ceil_div(problem.inputs, INPUT_GROUP) // input_split)
    inputs = np.minimum(problem.inputs, -(-inputs // input_parts) * INPUT_GROUP)
    groups = ceil_div(ceil_div(problem.channels, channel_parts), problem.group)
    channels = np.minimum(problem.channels, -(-groups // channel_split) * problem.group)
    return _Candidates(
        -(-problem.field // field), input_split, channel_split, field, inputs, channels, channel_parts, input_parts,
    )


@lru_cache(maxsize=4096)
def splits_of(pieces: int, tiles: int) -> Numbers:
    """Return the numbers of tiles, at most ``tiles``, of which each gives them another share of some pieces."""
    shares = np.unique(-(-pieces // np.arange(1, min(pieces, tiles) + 1)))
    return np.unique(-(-pieces // shares))


def _best(target: Target, problem: _Problem, candidates: _Candidates, turned: bool) -> MatmulPlan:
    costs = _costs(target, problem, candidates)
    return _plan(problem, candidates, costs, costs.best, turned)


def _costs(target: Target, problem: _Problem, candidates: _Candidates) -> _Costs:
    """Return what candidates cost.

    What a tile receives: of inputs and of weights what it does not hold itself, which tiles that take the same share
    out. Two neighbours that share input channels and positions receive these at once over their common bus. Inputs stay
    from one serial part of output channels to the next, beside their copy as the matrix unit takes it.
    """
    some, width = candidates, problem.element_bytes
    in_parts = some.channel_parts > 1
    inputs, weights = some.field * some.inputs * width, some.inputs * some.channels * width
    results = some.field * some.channels
    bus = np.where(some.channel_split % TILES_OF_A_BUS == 0, TILES_OF_A_BUS, 1)
    received_inputs = inputs * (some.channel_split - 1) // (some.channel_split * bus)
    received = received_inputs // some.channel_parts + weights * (some.field_split - 1) // some.field_split
    sums = problem.partial_bytes * results
    needed = inputs * (1 + in_parts) + weights + sums * (1 + (some.input_parts > 1))
    needed = np.maximum(needed, np.where(some.input_split > 1, 2 * sums, 0))

    groups = ceil_div(problem.groups, target.num_tiles)
    calls = np.clip(problem.budget_bytes // needed, 1, groups)
    batches = -(-groups // calls)
    steps = some.channel_parts * some.input_parts
    cycles = calls * (received // target.exchange_bytes_per_cycle + call_cycles(
        target.num_workers, some.field, some.inputs, some.channels,
        is_half=problem.is_half, output_group=problem.group,
    ))
    laid = some.field * some.inputs + some.inputs * some.channels if problem.is_swapped else np.zeros_like(needed)
    cycles = cycles + (calls * COPY_CYCLES * laid).astype(np.int64)
    copied, added = _copied_and_added(some, width) if steps > 1 else (np.zeros_like(needed),) * 2
    if steps > 1:
        cycles = cycles + serial_cycles(target, calls * copied, calls * added)
    cycles = steps * (cycles + target.sync_cycles)
    cycles += some.channel_parts * _finishing_cycles(target, problem, some.input_split, calls * results)
    excess = np.maximum(0, needed * calls - problem.budget_bytes)
    return _Costs(
        batches * cycles, received * calls, needed * calls, copied * calls, added * calls, laid * calls, excess,
        calls,
        batches * steps,
    )


def _copied_and_added(some: _Candidates, width: int) -> tuple[Numbers, Numbers]:
    """Return the bytes that a serial part copies, and the partials that it adds to those of the parts before.

    A part of output channels slices weights and updates the result, one of input channels slices both operands.
    """
    copied = some.inputs * some.channels * width
    if some.channel_parts > 1:
        copied = copied + some.field * some.channels * width
    if some.input_parts > 1:
        return copied + some.field * some.inputs * width, some.field * some.channels
    return copied, np.zeros_like(copied)


def _finishing_cycles(target: Target, problem: _Problem, input_split: Numbers, results: Numbers) -> Numbers:
    """Return the cycles to add up the partials of tiles that share input channels, or to round those of one tile."""
    share = -(-results // input_split)
    received = share * (input_split - 1) * problem.partial_bytes // target.exchange_bytes_per_cycle
    added = received + reduction_cycles(target.num_workers, input_split, share, partial_bytes=problem.partial_bytes)
    # A vector of halves takes two cycles, as of `torchipu.device.codelets.CAST`.
    cast = 12 + target.num_workers * (18 + 2 * -(-results // (4 * target.num_workers)))
    rounded = cast + target.sync_cycles if problem.has_casts else 0
    return np.where(input_split > 1, added + target.sync_cycles, rounded)


def _plan(problem: _Problem, candidates: _Candidates, costs: _Costs, index: int, turned: bool) -> MatmulPlan:
    """Return a candidate as the plan of a product; ``turned`` where its rows are the output channels."""
    some = candidates
    field, channels = int(some.field[index]), int(some.channels[index])
    sides = [
        (int(some.field_split[index]), field, field),
        (int(some.channel_split[index]), channels, min(problem.channels, channels * some.channel_parts)),
    ]
    (row_split, rows, all_rows), (column_split, columns, all_columns) = reversed(sides) if turned else sides
    inputs, calls = int(some.inputs[index]), int(costs.calls[index])
    return MatmulPlan(
        row_split, column_split, int(some.input_split[index]), rows, inputs, columns, calls, int(costs.repeats[index]),
        (all_rows, all_columns, min(problem.inputs, inputs * some.input_parts)), turned,
        all_rows * all_columns, int(costs.received[index]), int(costs.needed[index]), int(costs.copied[index]),
        int(costs.added[index]), int(costs.laid[index]), int(costs.repeats[index]) // some.input_parts,
        *costs.key(index),
    )
