"""Matrix products: mm, bmm, addmm, baddbmm, and the matrix-unit planner that convolutions share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from torchipu._kernels import matmul as kernels
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.chain import broadcast
from torchipu.ops.half_partials import emit_half_product, partial_rounding
from torchipu.ops.integer_matmul import emit_integer_product, integer_vertices
from torchipu.ops.lowering import ceil_div
from torchipu.ops.spec import (
    FLOATING,
    INTEGER,
    Codelet,
    Fusion,
    HostPlanner,
    HostTensor,
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
PANEL = 32  # columns of a packed panel
LEAST_CHUNK_MACS = 100_000  # less than about two microseconds of work is not worth a thread
LEAST_TURNED = 200_000  # elements of a right operand that are too many to pack in each call
LEAST_ITEMS = 8  # items that keep four threads busy
SUM_BLOCK = 384
PACK_BLOCK = 256  # summands that an item of a packing takes
MOST_DOT_ROWS, LEAST_DOT_COLUMNS, DOT_BLOCK = 16, 8, 16
LARGE_BLOCK = (518, 8 * PANEL)
"""Rows and columns of an item that packs what it reads: rows enough to pay for that, 37 tiles of 14."""


def grain_for(items: int, work: float, least_work: float) -> int:
    """Return how many items a chunk takes so that it holds at least ``least_work`` of ``work`` in all."""
    if items <= 1 or work <= 0:
        return 1
    return min(items, max(1, round(least_work * items / work)))


def rows_apart(tensor: HostTensor) -> tuple[int, int] | None:
    """Return the strides of the last two dimensions if one of them is 1, else None."""
    column = tensor.strides[-1] if tensor.shape[-1] > 1 else 1
    alone = max(1, tensor.shape[-1]) if column == 1 else 1  # a single row has no neighbours
    row = tensor.strides[-2] if tensor.shape[-2] > 1 else alone
    if column == 1 or row == 1:
        return row, column
    return None


def matrix(plan: HostPlanner, tensor: Tensor) -> HostTensor:
    """Return float storage of a matrix, row-major or column-major."""
    held = plan.value(tensor, DType.FLOAT, contiguous=False)
    return held if rows_apart(held) else plan.value(tensor, DType.FLOAT)


def emit_product(
    plan: HostPlanner,
    out: HostTensor,
    left: HostTensor,
    right: HostTensor,
    addend: HostTensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    *,
    adds: bool = False,
) -> None:
    """Emit ``out = alpha * left @ right + beta * addend``.

    Args:
        plan: The planner.
        out: [M, N] or [B, M, N], row-major.
        left: [M, K] or [B, M, K], one of the last two strides 1.
        right: [K, N] or [B, K, N], likewise.
        addend: Anything that broadcasts to ``out``.
        alpha: Factor of the product.
        beta: Factor of the addend.
        adds: Add to what ``out`` holds; then there is no addend, and ``alpha`` is 1.
    """
    batch = out.shape[0] if len(out.shape) == 3 else 1
    rows, columns, inner = out.shape[-2], out.shape[-1], left.shape[-1]
    if 0 in (batch, rows, columns):
        return
    if inner == 0:  # an empty sum is zero: one product of zeros says the same, and the kernel has something to do
        left, right, inner = _zeros(plan, (*left.shape[:-1], 1)), _zeros(plan, (*right.shape[:-2], 1, columns)), 1
    if _is_few_dots(left, right):
        _emit_dots(plan, out, left, right, addend, alpha, beta, adds=adds)
        return
    if not adds and _turns(left, right, addend, alpha, beta):
        _emit_turned(plan, out, left, right, addend)
        return
    left_strides, right_strides = rows_apart(left), rows_apart(right)
    assert left_strides is not None
    assert right_strides is not None
    packs_left = rows >= 28 and columns >= 128 and inner >= 64
    # A right operand of weights alone is packed ahead of the loop over micro-batches, if there is one.
    packs_right = packs_left and not plan.is_hoisting
    if packs_right:
        row_block, column_block = _blocks(batch, rows, columns, *LARGE_BLOCK)
        right_batch = right.strides[0] if len(right.shape) == 3 else 0
        layout = (right_batch, PANEL * right_strides[1], right_strides[0])
    else:
        row_block, column_block = _blocks(batch, rows, columns)
        right, layout = right_operand(plan, right, rows, columns, inner)
    items = batch * -(-rows // row_block) * -(-columns // column_block)
    left_batch = left.strides[0] if len(left.shape) == 3 else 0
    if packs_left:
        left = packed_rows(plan, left, (left_batch, *left_strides), batch, rows, inner, row_block)
        left_batch, left_strides = rows * inner, (inner, 1)
    addend_strides = _broadcast_strides(addend, out) if addend is not None else (0, 0, 0)
    plan.step(
        kernels.MATMUL,
        [out],
        [left, right] + ([addend] if addend is not None else []),
        ints=(
            rows,
            columns,
            inner,
            left_batch,
            *left_strides,
            *layout,
            row_block,
            column_block,
            _sum_block(inner),
            int(packs_left),
            int(addend is not None),
            *addend_strides,
            2 if adds else 0,
            right_strides[1] if packs_right else 0,
        ),
        scalars=(alpha, beta),
        items=items,
        grain=grain_for(items, batch * rows * columns * inner, LEAST_CHUNK_MACS),
        scratch_bytes=PANEL * _sum_block(inner) * 4 if packs_right else 0,
        reads_outputs=adds,
    )


def _zeros(plan: HostPlanner, shape: tuple[int, ...]) -> HostTensor:
    """Return [..., M, N] of zeros, of which memory holds one row."""
    row = plan.constant([0.0] * shape[-1], DType.FLOAT)
    return HostTensor(row.buffer, 0, shape, (0,) * (len(shape) - 1) + (1,), DType.FLOAT)


def _is_few_dots(left: HostTensor, right: HostTensor) -> bool:
    """Whether the right operand's columns lie dense and meet so few rows that packing them costs more than it saves."""
    if left.shape[-2] > MOST_DOT_ROWS or right.shape[-1] < LEAST_DOT_COLUMNS:
        return False
    left_strides, right_strides = rows_apart(left), rows_apart(right)
    assert left_strides is not None
    assert right_strides is not None
    return left_strides[1] == 1 and right_strides[0] == 1 and right_strides[1] > 1


def _emit_dots(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None,
    alpha: float, beta: float, *, adds: bool,
) -> None:
    """Emit ``out = alpha * left @ right + beta * addend`` as dot products of rows and columns."""
    batch = out.shape[0] if len(out.shape) == 3 else 1
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    left_strides, right_strides = rows_apart(left), rows_apart(right)
    assert left_strides is not None
    assert right_strides is not None
    items = batch * -(-columns // DOT_BLOCK)
    plan.step(
        kernels.MATMUL_DOTS, [out], [left, right, *([] if addend is None else [addend])],
        ints=(
            rows, columns, inner, left.strides[0] if len(left.shape) == 3 else 0, left_strides[0],
            right.strides[0] if len(right.shape) == 3 else 0, right_strides[1], DOT_BLOCK, int(addend is not None),
            *(_broadcast_strides(addend, out) if addend is not None else (0, 0, 0)), int(adds),
        ),
        scalars=(alpha, beta), items=items,
        grain=grain_for(items, batch * columns * inner * max(rows, 8), LEAST_CHUNK_MACS), reads_outputs=adds,
    )


def _turns(left: HostTensor, right: HostTensor, addend: HostTensor | None, alpha: float, beta: float) -> bool:
    """Whether to compute the transposed product: it packs the left operand, which is far smaller, not the right."""
    if len(left.shape) != 2 or alpha != 1.0 or 2 * left.shape[0] > right.shape[1]:
        return False
    if right.num_elements < LEAST_TURNED or left.shape[0] <= PANEL:
        return False
    # Each panel reads all of the right operand, row-major weights even down their columns: slower than packing it.
    if right.strides[1] == 1 or left.shape[0] > 2 * PANEL:
        return False
    is_row = addend is not None and addend.shape[-1] == right.shape[1] == addend.num_elements
    return addend is None or (beta == 1.0 and is_row and addend.strides[-1] == 1)


def _emit_turned(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, addend: HostTensor | None
) -> None:
    """Emit ``out = left @ right + addend`` as ``(right^T @ left^T + addend)^T``; the addend is one row."""
    rows, columns, inner = right.shape[1], left.shape[0], left.shape[1]
    strides = rows_apart(right)
    assert strides is not None
    turned = HostTensor(left.buffer, left.offset, left.shape[::-1], left.strides[::-1], left.dtype)
    turned, layout = right_operand(plan, turned, rows, columns, inner)
    row_block, column_block = _blocks(1, rows, columns)
    items = -(-rows // row_block) * -(-columns // column_block)
    plan.step(
        kernels.MATMUL,
        [out],
        [right, turned] + ([addend] if addend is not None else []),
        ints=(
            rows,
            columns,
            inner,
            0,
            *strides[::-1],
            *layout,
            row_block,
            column_block,
            _sum_block(inner),
            0,
            int(addend is not None),
            0,
            1,
            0,
            1,
            0,
        ),
        scalars=(1.0, 1.0),
        items=items,
        grain=grain_for(items, rows * columns * inner, LEAST_CHUNK_MACS),
        scratch_bytes=row_block * column_block * 4,
    )


def right_operand(
    plan: HostPlanner, right: HostTensor, rows: int, columns: int, inner: int,
) -> tuple[HostTensor, tuple[int, int, int]]:
    """Pack the right operand where that pays; return it with its strides (batch, panel, row)."""
    strides = rows_apart(right)
    assert strides is not None
    row, column = strides
    right_batch = right.strides[0] if len(right.shape) == 3 else 0
    # Rows a multiple of 1 KiB apart fall into few cache sets; few rows of output read each panel only once or twice.
    conflicts = row % 256 == 0 and inner >= 64
    if column == 1 and (rows <= 28 or (rows <= 56 and not conflicts) or columns <= PANEL):
        return right, (right_batch, PANEL, row)
    packed = packed_panels(plan, right)
    each, panel, row, _ = packed.strides
    return packed, (each if packed.shape[0] > 1 else 0, panel, row)


def packed_panels(plan: HostPlanner, right: HostTensor) -> HostTensor:
    """Emit the packing of right operands and return their panels.

    Args:
        plan: Receives the step.
        right: `[K, N]` or `[B, K, N]`, one of the last two strides 1.

    Returns:
        `[B, ceil(N / 32), K, 32]`, zero beyond column N; B is 1 where all of a batch share one operand.
    """
    inner, columns = right.shape[-2:]
    strides = rows_apart(right)
    assert strides is not None
    row, column = strides
    right_batch = right.strides[0] if len(right.shape) == 3 else 0
    batch = right.shape[0] if right_batch else 1
    panels = -(-columns // PANEL)
    packed = plan.scratch((batch, panels, inner, PANEL))
    items = batch * panels * -(-inner // PACK_BLOCK)
    plan.step(
        kernels.MATMUL_PACK,
        [packed],
        [right],
        ints=(inner, columns, right_batch, row, column, PACK_BLOCK),
        items=items,
        grain=grain_for(items, batch * panels * inner * PANEL, 32768),
    )
    return packed


def packed_rows(
    plan: HostPlanner, left: HostTensor, strides: tuple[int, int, int], batch: int, rows: int, inner: int,
    row_block: int,
) -> HostTensor:
    """Emit the packing of left operands `[batch, rows, inner]` for items of ``row_block`` rows."""
    packed = plan.scratch((batch, rows, inner))
    items = batch * -(-rows // row_block) * -(-inner // PACK_BLOCK)
    plan.step(
        kernels.MATMUL_PACK_ROWS, [packed], [left], ints=(rows, inner, *strides, row_block, PACK_BLOCK), items=items,
        grain=grain_for(items, batch * rows * inner, 32768),
    )
    return packed


def _sum_block(inner: int) -> int:
    """Summands that a tile adds up at a time: its panel and rows then stay in the first cache or close to it."""
    return SUM_BLOCK if inner > 512 else max(1, inner)


def _blocks(
    batch: int, rows: int, columns: int, most_rows: int = 112, most_columns: int = 4 * PANEL
) -> tuple[int, int]:
    """Rows and columns of an item: large enough to reuse operands, small enough to share out."""
    row_block = -(-rows // -(-rows // most_rows))
    column_block = min(most_columns, -(-columns // PANEL) * PANEL)
    while column_block > PANEL and batch * -(-rows // row_block) * -(-columns // column_block) < LEAST_ITEMS:
        column_block = -(-column_block // (2 * PANEL)) * PANEL
    while row_block > 28 and batch * -(-rows // row_block) * -(-columns // column_block) < LEAST_ITEMS:
        row_block = -(-row_block // 2)
    return row_block, column_block


def _broadcast_strides(addend: HostTensor, out: HostTensor) -> tuple[int, int, int]:
    """Strides (batch, row, column) of the addend over the output; 0 where it is broadcast."""
    shape = (1,) * (3 - len(addend.shape)) + addend.shape
    strides = (0,) * (3 - len(addend.strides)) + addend.strides
    first, second, third = (0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))
    # A single column has no neighbours: any stride serves, and 1 is the fast one.
    return first, second, third if out.shape[-1] > 1 else 1


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
