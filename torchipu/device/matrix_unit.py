"""The planner of the matrix unit, which products and convolutions share: how a product is cut up, and what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from torchipu.device.tilings.cut import Cut
from torchipu.device.tilings.products import Describe, add_sums, multiply
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.codelet import Codelet, Product, Vertices

if TYPE_CHECKING:
    from torchipu.target import Target

INPUT_GROUP = 16  # input channels that the AMP takes at a time
LOAD_CYCLES_PER_UNIT = 4  # 64 for a panel of 16 units; ipu_hardware.md 1.2
HALF_INPUTS_PER_CYCLE, FLOAT_INPUTS_PER_CYCLE = 4, 2  # of a unit; ipu_hardware.md 1.2
SUMMAND_PARTS = (2, 3, 4, 6, 8, 12, 16, 24, 32)
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def _worker_cycles(positions: int, accumulates: bool, is_half: bool) -> int:
    """Cycles of a worker for one panel of weights (poplibs estimator, ipu_hardware.md 2.2).

    Seven cycles less than for a worker on its own: the set of weights is kept between calls.
    """
    if is_half:
        return ((20, 31, 41)[positions] if positions < 3 else 37 + accumulates + 4 * (positions - 3)) - 7
    return ((24, 47, 46)[positions] if positions < 3 else 46 + accumulates + 8 * (positions - 3)) - 7


def _panel_cycles(positions: int, workers: int, accumulates: bool, is_half: bool) -> int:
    shares = (-(-positions // workers), positions // workers)
    cycles = [_worker_cycles(share, accumulates, is_half) for share in shares]
    return max(workers * max(cycles), workers * min(cycles) + 14)


def conv_units(target: Target, *, is_half: bool, half_partials: bool) -> int:
    """Return how many output channels the matrix unit works on at a time: its units, of which each has one.

    It is the target's rate over what a unit takes in a cycle: 16 of halves with half partials on Mk2, 8 on Mk1; 8 of
    floats on Mk2, 4 on Mk1 (ipu_hardware.md 1.2).
    """
    if not is_half:
        return target.amp_macs_float // FLOAT_INPUTS_PER_CYCLE
    return (target.amp_macs_half_half if half_partials else target.amp_macs_half_float) // HALF_INPUTS_PER_CYCLE


def amp_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles of one call of the matrix unit.

    Args:
        target: The machine.
        work: ``positions`` x ``inputs`` by ``inputs`` x ``outputs``; ``is_half``; ``output_group`` from
            `conv_units`; ``calls``.

    Source: poplibs estimator, ipu_hardware.md 2.2.
    """
    is_half = bool(work["is_half"])
    input_groups = -(-work["inputs"] // INPUT_GROUP)
    output_groups = -(-work["outputs"] // work["output_group"])
    load = LOAD_CYCLES_PER_UNIT * work["output_group"]
    first = _panel_cycles(work["positions"], target.num_workers, False, is_half)
    later = _panel_cycles(work["positions"], target.num_workers, True, is_half)
    cycles = 50 + 6 * (7 + 3 * (input_groups - 1)) + 13 + 11 + output_groups * (18 + load + 7 + first)
    cycles += (input_groups - 1) * (15 + output_groups * (19 + load + 6 + later))
    return cycles * work.get("calls", 1)


def reduce_partials_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles to add ``partials`` float partials of ``elements`` results (poplibs estimator, ipu_hardware.md 2.2)."""
    width = 4 * target.num_workers
    return 33 + target.num_workers * (20 + (2 * work["partials"] + 8) * -(-work["elements"] // width))


AMP = Codelet(
    "poplin::ConvPartial1x1Out", amp_cycles, 1612, "poplibs estimator, ipu_hardware.md 2.2", writes_interleaved=True,
    control_bytes=94,  # 59 of state and 71 of control for a product of BERT, less those of an add; ipu_hardware.md 3.6
)
REDUCE_PARTIALS = Codelet(
    "popops::ReducePartialsEqualSize",
    reduce_partials_cycles,
    620,
    "poplibs estimator, ipu_hardware.md 2.2",
)

AVAILABLE_MEMORY = 0.6
"""Part of a tile's memory that one product may use for temporary values unless the user says otherwise.

Source: the default of PopART's availableMemoryProportion.
"""


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
        results: Results of a tile in all.
        excess_bytes: By how much its temporary values exceed what they may use.
        cycles: Of exchange, compute and the reduction of partials.
    """

    row_split: int
    column_split: int
    input_split: int
    positions: int
    inputs: int
    outputs: int
    calls: int
    repeats: int
    results: int
    excess_bytes: int
    cycles: int


@dataclass(frozen=True, slots=True)
class _Problem:
    """A product: its sizes, its type, and what memory of a tile it may use."""

    groups: int
    positions: int
    inputs: int
    outputs: int
    is_half: bool
    output_group: int
    budget_bytes: int

    @property
    def element_bytes(self) -> int:
        return 2 if self.is_half else 4


@lru_cache(maxsize=4096)
def plan_matmul(
    target: Target, groups: int, positions: int, inputs: int, outputs: int, is_half: bool, output_group: int,
    available_memory: float = AVAILABLE_MEMORY,
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
    """
    budget = int(available_memory * target.tile_memory_bytes)
    problem = _Problem(groups, positions, inputs, outputs, is_half, output_group, budget)
    tiles = max(1, target.num_tiles // groups)
    best: MatmulPlan | None = None
    for input_split in _useful_splits(-(-inputs // INPUT_GROUP), tiles):
        for column_split in _useful_splits(-(-outputs // output_group), tiles // input_split):
            row_split = min(max(1, tiles // (input_split * column_split)), positions)
            candidate = _plan(target, (row_split, column_split, input_split), problem)
            if best is None or (candidate.excess_bytes, candidate.cycles) < (best.excess_bytes, best.cycles):
                best = candidate
    assert best is not None
    return best


def _useful_splits(pieces: int, tiles: int) -> list[int]:
    """Splits that give different sizes, of at most ``tiles``."""
    return [split for split in SPLITS if split <= pieces and split <= max(1, tiles)]


def _plan(target: Target, splits: tuple[int, int, int], problem: _Problem) -> MatmulPlan:
    """Return the best plan for these splits: all at once if that fits, else in parts."""
    best = _planned(target, splits, problem, 1)
    if best.excess_bytes or best.repeats > 1:
        others = [_planned(target, splits, problem, parts) for parts in SUMMAND_PARTS]
        best = min(best, *others, key=lambda plan: (plan.excess_bytes, plan.cycles))
    return best


def _planned(target: Target, splits: tuple[int, int, int], problem: _Problem, inner_parts: int) -> MatmulPlan:
    """Return the plan in which a tile takes its summands in so many parts, and rows and columns in as many as needed.

    Args:
        target: The machine.
        splits: Tiles that share rows, columns and summands.
        problem: What is computed.
        inner_parts: Parts of the summands; partials are kept from one to the next.
    """
    row_split, column_split, input_split = splits
    group = problem.output_group
    rows = -(-problem.positions // row_split)
    inner = min(problem.inputs, ceil_div(ceil_div(problem.inputs, INPUT_GROUP), input_split) * INPUT_GROUP)
    columns = min(problem.outputs, ceil_div(ceil_div(problem.outputs, group), column_split) * group)
    calls = -(-problem.groups // target.num_tiles)
    results = rows * columns * calls
    # Partials of several tiles are added up when all are there.
    kept = results * 4 if input_split > 1 else 0
    inner = min(inner, ceil_div(ceil_div(inner, INPUT_GROUP), inner_parts) * INPUT_GROUP)
    with_partials = input_split == 1 and (problem.is_half or inner_parts > 1)
    row_parts, column_parts = _parts(rows, columns, inner, problem, with_partials, problem.budget_bytes - kept)
    rows, columns = -(-rows // row_parts), -(-columns // column_parts)
    needed = _step_bytes(rows, columns, inner, problem, with_partials)
    at_a_time = max(1, min(calls, (problem.budget_bytes - kept) // needed)) if needed else calls
    repeats = inner_parts * row_parts * column_parts * -(-calls // at_a_time)
    excess = max(0, needed * at_a_time + kept - problem.budget_bytes)
    work = {
        "positions": rows, "inputs": inner, "outputs": columns, "is_half": int(problem.is_half), "output_group": group,
    }
    gathered = (rows + columns) * inner * problem.element_bytes
    cycles = at_a_time * (amp_cycles(target, work) + gathered // target.exchange_bytes_per_cycle)
    cycles = repeats * cycles + (repeats - 1) * target.sync_cycles
    if input_split > 1:
        share = -(-results // (calls * input_split))
        reduced = reduce_partials_cycles(target, {"partials": input_split, "elements": share}) + target.sync_cycles
        cycles += calls * (reduced + share * (input_split - 1) * 4 // target.exchange_bytes_per_cycle)
    return MatmulPlan(
        row_split, column_split, input_split, rows, inner, columns, at_a_time, repeats, results, excess, cycles,
    )


def _step_bytes(rows: int, columns: int, inner: int, problem: _Problem, with_partials: bool) -> int:
    """Bytes of the operands that a tile gathers for one call, and of partials that are not yet its results."""
    partials = rows * columns * 4 if with_partials else 0
    return (rows + columns) * inner * problem.element_bytes + partials


def _parts(
    rows: int, columns: int, inner: int, problem: _Problem, with_partials: bool, budget_bytes: int,
) -> tuple[int, int]:
    """Into how many parts a tile takes its rows and its columns so that one of each fits, as far as that goes."""
    row_parts = column_parts = 1
    while True:
        some_rows, some_columns = -(-rows // row_parts), -(-columns // column_parts)
        if _step_bytes(some_rows, some_columns, inner, problem, with_partials) <= budget_bytes:
            return row_parts, column_parts
        if some_rows >= some_columns and some_rows > 1:
            row_parts *= 2
        elif some_columns > problem.output_group:
            column_parts *= 2
        elif some_rows > 1:
            row_parts *= 2
        else:
            return row_parts, column_parts


def plan_of(op: Op, target: Target, product: Product, dtype: DType) -> MatmulPlan | None:
    """Return how a product of an op is cut up; None where there is nothing to multiply."""
    if 0 in (product.groups, product.positions, product.inputs, product.outputs):
        return None
    is_half = dtype is DType.HALF
    group = _output_group_of(op, target, is_half=is_half)
    available = float(str(op.attrs.get("available_memory", AVAILABLE_MEMORY)))
    return plan_matmul(
        target, product.groups, product.positions, product.inputs, product.outputs, is_half, group, available,
    )


def _output_group_of(op: Op, target: Target, *, is_half: bool) -> int:
    return conv_units(target, is_half=is_half, half_partials=op.attrs.get("partials") == "half")


def summand_tiles(op: Op, target: Target, products: Sequence[Product]) -> tuple[int, ...]:
    """Return how many tiles share the summands of each product of halves."""
    plans = (plan_of(op, target, product, DType.HALF) for product in products)
    return tuple(1 if plan is None else plan.input_split for plan in plans)


def _cut(product: Product, plan: MatmulPlan, target: Target, output_group: int) -> Cut:
    """Return which vertex takes what of a product that a plan cuts up."""
    inputs = ceil_div(ceil_div(product.inputs, INPUT_GROUP), plan.input_split) * INPUT_GROUP
    outputs = ceil_div(ceil_div(product.outputs, output_group), plan.column_split) * output_group
    return Cut(
        (product.groups, product.positions, product.outputs, product.inputs),
        (min(product.groups, target.num_tiles), plan.row_split, plan.column_split, plan.input_split),
        (
            ceil_div(product.groups, target.num_tiles), ceil_div(product.positions, plan.row_split),
            min(product.outputs, outputs), min(product.inputs, inputs),
        ),
        (plan.calls, plan.positions, plan.outputs, plan.inputs),
    )


def product_vertices(
    op: Op, target: Target, product: Product, dtype: DType, describe: Describe | None = None,
) -> tuple[Vertices, ...]:
    """Compute sets of a product; see `matmul_vertices`."""
    sizes = product.groups, product.positions, product.inputs, product.outputs
    return matmul_vertices(op, target, *sizes, dtype, describe)


def matmul_vertices(
    op: Op, target: Target, groups: int, positions: int, inputs: int, outputs: int, dtype: DType,
    describe: Describe | None = None,
) -> tuple[Vertices, ...]:
    """Compute sets of ``groups`` products [positions, inputs] x [inputs, outputs]; one element is one vertex.

    Args:
        op: The op.
        target: The machine.
        groups: Independent products.
        positions: Rows of the left operand.
        inputs: Summands.
        outputs: Columns of the right operand.
        dtype: Of the operands.
        describe: Tells which elements meet; None where vertices are not known one by one.
    """
    plan = plan_of(op, target, Product(groups, positions, inputs, outputs), dtype)
    if plan is None:
        return ()
    is_half = dtype is DType.HALF
    vertices = plan.row_split * plan.column_split * plan.input_split * min(groups, target.num_tiles)
    element_bytes = 2 if is_half else 4
    gathered = (plan.positions + plan.outputs) * plan.inputs * element_bytes * plan.calls
    sizes = {
        "positions": plan.positions, "inputs": plan.inputs, "outputs": plan.outputs, "is_half": int(is_half),
        "output_group": _output_group_of(op, target, is_half=is_half),
    }
    has_partials = is_half or plan.inputs < inputs
    partial_bytes = plan.positions * plan.outputs * plan.calls * 4 if has_partials else 0
    if plan.input_split > 1:
        partial_bytes = plan.results * 4
    cut = _cut(Product(groups, positions, inputs, outputs), plan, target, sizes["output_group"])
    sets = [
        Vertices(
            AMP, vertices, lambda count: {**sizes, "calls": plan.calls * max(1, count)}, gathered_bytes=gathered,
            fragments=plan.calls * 2, temporary_bytes=gathered + partial_bytes, max_tiles=vertices,
            repeats=plan.repeats, tiling=None if describe is None else partial(multiply, describe, cut),
        )
    ]
    if plan.input_split > 1:
        share = -(-plan.results // plan.input_split)
        sets.append(
            Vertices(
                REDUCE_PARTIALS, vertices,
                lambda count: {"partials": plan.input_split, "elements": share * max(1, count)},
                gathered_bytes=share * (plan.input_split - 1) * 4, fragments=plan.input_split,
                temporary_bytes=share * plan.input_split * 4, max_tiles=vertices,
                tiling=None if describe is None else partial(add_sums, describe, cut),
            )
        )
    return tuple(sets)
