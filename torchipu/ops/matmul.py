"""Matrix products: mm, bmm, addmm, baddbmm, and the matrix-unit planner that convolutions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.chain import broadcast
from torchipu.ops.half_partials import emit_half_product, partial_rounding
from torchipu.ops.integer_matmul import emit_integer_product, integer_vertices
from torchipu.ops.lowering import ceil_div
from torchipu.ops.matmul_steps import emit_product, matrix
from torchipu.ops.spec import (
    FLOATING,
    INTEGER,
    Codelet,
    Fusion,
    HostPlanner,
    OpSpec,
    Vertices,
    register,
    register_fusion,
)

if TYPE_CHECKING:
    from torchipu.target import Target

# --------------------------------------------------------------------------- device side
INPUT_GROUP = 16  # input channels that the AMP takes at a time
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


def amp_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles of one call of the matrix unit.

    Args:
        target: The machine.
        work: ``positions`` x ``inputs`` by ``inputs`` x ``outputs``; ``is_half``; ``output_group`` 16 or 8; ``calls``.

    Source: poplibs estimator, ipu_hardware.md 2.2.
    """
    is_half = bool(work["is_half"])
    input_groups = -(-work["inputs"] // INPUT_GROUP)
    output_groups = -(-work["outputs"] // work["output_group"])
    load = 64 if work["output_group"] == 16 else 32
    first = _panel_cycles(work["positions"], target.num_workers, False, is_half)
    later = _panel_cycles(work["positions"], target.num_workers, True, is_half)
    cycles = 50 + 6 * (7 + 3 * (input_groups - 1)) + 13 + 11 + output_groups * (18 + load + 7 + first)
    cycles += (input_groups - 1) * (15 + output_groups * (19 + load + 6 + later))
    return cycles * work.get("calls", 1)


def reduce_partials_cycles(target: Target, work: Mapping[str, int]) -> int:
    """Cycles to add ``partials`` float partials of ``elements`` results (poplibs estimator, ipu_hardware.md 2.2)."""
    width = 4 * target.num_workers
    return 33 + target.num_workers * (20 + (2 * work["partials"] + 8) * -(-work["elements"] // width))


AMP = Codelet("poplin::ConvPartial1x1Out", amp_cycles, 1612, "poplibs estimator, ipu_hardware.md 2.2")
REDUCE_PARTIALS = Codelet(
    "popops::ReducePartialsEqualSize",
    reduce_partials_cycles,
    620,
    "poplibs estimator, ipu_hardware.md 2.2",
)


@dataclass(frozen=True, slots=True)
class MatmulPlan:
    """How a product is cut up: splits, sizes on the busiest tile, and how many groups a tile takes in turn."""

    row_split: int
    column_split: int
    input_split: int
    positions: int
    inputs: int
    outputs: int
    calls: int
    cycles: int


@lru_cache(maxsize=4096)
def plan_matmul(
    target: Target,
    groups: int,
    positions: int,
    inputs: int,
    outputs: int,
    is_half: bool,
    output_group: int,
) -> MatmulPlan:
    """Choose the splits with the fewest cycles for exchange, compute and the reduction of partials.

    Args:
        target: The machine.
        groups: Independent products.
        positions: Rows of the left operand.
        inputs: Summands.
        outputs: Columns of the right operand.
        is_half: Whether operands are half.
        output_group: Output channels of a panel: 16 with half partials, otherwise 8.
    """
    calls = -(-groups // target.num_tiles)
    tiles = max(1, target.num_tiles // groups)
    best: MatmulPlan | None = None
    for input_split in _useful_splits(-(-inputs // INPUT_GROUP), tiles):
        for column_split in _useful_splits(-(-outputs // output_group), tiles // input_split):
            row_split = min(max(1, tiles // (input_split * column_split)), positions)
            candidate = _cost_of(
                target,
                (row_split, column_split, input_split),
                (positions, inputs, outputs),
                calls,
                is_half,
                output_group,
            )
            if best is None or candidate.cycles < best.cycles:
                best = candidate
    assert best is not None
    return best


def _useful_splits(pieces: int, tiles: int) -> list[int]:
    """Splits that give different sizes, of at most ``tiles``."""
    return [split for split in SPLITS if split <= pieces and split <= max(1, tiles)]


def _cost_of(
    target: Target,
    splits: tuple[int, int, int],
    sizes: tuple[int, int, int],
    calls: int,
    is_half: bool,
    output_group: int,
) -> MatmulPlan:
    row_split, column_split, input_split = splits
    element_bytes = 2 if is_half else 4
    rows = -(-sizes[0] // row_split)
    inner = min(sizes[1], ceil_div(ceil_div(sizes[1], INPUT_GROUP), input_split) * INPUT_GROUP)
    columns = min(sizes[2], ceil_div(ceil_div(sizes[2], output_group), column_split) * output_group)
    work = {
        "positions": rows,
        "inputs": inner,
        "outputs": columns,
        "is_half": int(is_half),
        "output_group": output_group,
    }
    cycles = amp_cycles(target, work) + (rows + columns) * inner * element_bytes // target.exchange_bytes_per_cycle
    if input_split > 1:
        share = -(-rows * columns // input_split)
        cycles += reduce_partials_cycles(target, {"partials": input_split, "elements": share}) + target.sync_cycles
        cycles += share * (input_split - 1) * 4 // target.exchange_bytes_per_cycle
    return MatmulPlan(row_split, column_split, input_split, rows, inner, columns, calls, cycles * calls)


def matmul_vertices(
    op: Op,
    target: Target,
    groups: int,
    positions: int,
    inputs: int,
    outputs: int,
    dtype: DType,
) -> tuple[Vertices, ...]:
    """Compute sets of ``groups`` products [positions, inputs] x [inputs, outputs]; one element is one vertex."""
    if 0 in (groups, positions, inputs, outputs):
        return ()
    is_half = dtype is DType.HALF
    output_group = 16 if is_half and op.attrs.get("partials") == "half" else 8
    plan = plan_matmul(target, groups, positions, inputs, outputs, is_half, output_group)
    vertices = plan.row_split * plan.column_split * plan.input_split * min(groups, target.num_tiles)
    element_bytes = 2 if is_half else 4
    gathered = (plan.positions + plan.outputs) * plan.inputs * element_bytes * plan.calls
    results = plan.positions * plan.outputs
    sizes = {
        "positions": plan.positions,
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        "is_half": int(is_half),
        "output_group": output_group,
    }
    partial_bytes = results * 4 * plan.calls if plan.input_split > 1 or is_half else 0
    sets = [
        Vertices(
            AMP,
            vertices,
            lambda count: {**sizes, "calls": plan.calls * max(1, count)},
            gathered_bytes=gathered,
            fragments=plan.calls * 2,
            temporary_bytes=gathered + partial_bytes,
            max_tiles=vertices,
        )
    ]
    if plan.input_split > 1:
        share = -(-results // plan.input_split) * plan.calls
        sets.append(
            Vertices(
                REDUCE_PARTIALS,
                vertices,
                lambda count: {"partials": plan.input_split, "elements": share * max(1, count)},
                gathered_bytes=share * (plan.input_split - 1) * 4,
                fragments=plan.input_split,
                temporary_bytes=share * plan.input_split * 4,
                max_tiles=vertices,
            )
        )
    return tuple(sets)


def _operands(op: Op) -> tuple[Tensor, Tensor]:
    left = op.operand("self") if op.kind in ("mm", "bmm") else op.operand("mat1") or op.operand("batch1")
    right = op.operand("mat2") or op.operand("batch2")
    assert left is not None
    assert right is not None
    return left, right


def _lower(op: Op, target: Target) -> tuple[Vertices, ...]:
    left, right = _operands(op)
    groups = left.shape[0] if len(left.shape) == 3 else 1
    if not left.dtype.is_floating:
        return integer_vertices(target, op.outputs[0].num_elements, left.shape[-1], left.dtype)
    return matmul_vertices(op, target, groups, left.shape[-2], left.shape[-1], right.shape[-1], left.dtype)


# --------------------------------------------------------------------------- host side
def _emit(op: Op, plan: HostPlanner) -> None:
    left, right = _operands(op)
    added = op.operand("self") if op.kind in ("addmm", "baddbmm") else None
    if not op.outputs[0].dtype.is_floating:
        _emit_integers(op, plan, left, right, added)
        return
    alpha, beta = (float(op.attrs.get(name, 1)) for name in ("alpha", "beta"))  # type: ignore[arg-type]
    addend = plan.value(added, DType.FLOAT, contiguous=False) if added is not None and beta != 0 else None
    rounding = partial_rounding(op, op.outputs[0], plan)
    if rounding is not None:
        held = plan.output(op.outputs[0], DType.FLOAT)
        pair = plan.value(left, DType.FLOAT), plan.value(right, DType.FLOAT)
        emit_half_product(plan, held, *pair, rounding, addend=addend, alpha=alpha, beta=beta)
        return
    left_value, right_value = matrix(plan, left), matrix(plan, right)
    emit_product(plan, plan.output(op.outputs[0], DType.FLOAT), left_value, right_value, addend, alpha, beta)


ACCUMULATE = "ipu.accumulate.default"


def _adds_up(ops: Sequence[Op]) -> bool:
    """Whether a product and what accumulates it are all float, the accumulator row-major as it always is."""
    tensors = [tensor for op in ops for tensor in (*op.inputs, *op.outputs)]
    return all(tensor.dtype is DType.FLOAT for tensor in tensors) and 0 not in ops[0].inputs[0].shape


def _emit_accumulated(ops: Sequence[Op], plan: HostPlanner) -> None:
    """Add a product onto an accumulator as it is computed: the gradient of a weight is never written by itself."""
    product, accumulate = ops
    left, right = (matrix(plan, tensor) for tensor in _operands(product))
    emit_product(plan, plan.update_in_place(accumulate.inputs[0], accumulate.outputs[0]), left, right, adds=True)


register_fusion(Fusion(("aten.mm.default", ACCUMULATE), _adds_up, _emit_accumulated))


def _emit_integers(op: Op, plan: HostPlanner, left: Tensor, right: Tensor, added: Tensor | None) -> None:
    alpha, beta = (int(op.attrs.get(name, 1)) for name in ("alpha", "beta"))  # type: ignore[call-overload]
    held, other = (plan.value(tensor, DType.LONG, contiguous=False) for tensor in (left, right))
    addend = None
    if added is not None and beta != 0:
        addend = broadcast(plan.value(added, DType.LONG, contiguous=False), op.outputs[0].shape)
    emit_integer_product(plan, plan.output(op.outputs[0], DType.LONG), held, other, addend, alpha, beta)


for _name in ("mm", "bmm", "addmm", "baddbmm"):
    register(OpSpec(f"aten.{_name}.default", _name, _lower, _emit, dtypes=(*FLOATING, *INTEGER)))
for _name in ("mm", "bmm"):  # halves whose product is float
    register(OpSpec(f"aten.{_name}.dtype", _name, _lower, _emit, dtypes=FLOATING))
