"""Scans along one dimension: cumulative sums, products, extremes, and logarithms of sums of exponentials.

Gradients of products, running ones and others, are scans too: forwards and then backwards through the factors.
"""

from __future__ import annotations

from math import prod

from torchipu._kernels.table.scan import (
    GRADIENT_BLOCK,
    GRADIENT_ROWS,
    PRODUCT_GRADIENT,
    SCAN,
    SCAN_BLOCK,
    SCAN_EXTREMES,
    ProductGradientInts,
    ScanExtremesInts,
    ScanInts,
    Scanning,
)
from torchipu.device.codelets import vector_codelet
from torchipu.device.compute_sets import linear_vertices
from torchipu.device.tilings.along import whole_rows
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.arguments import has_dim
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import ANY, FLOATING, Constraint, OpSpec, register

SHARE = 16384  # elements of one thread's share


def around_dim(op: Op, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return the sizes before, of and after the dimension ``dim``; a 0-d tensor is one row of one."""
    if not shape:
        return 1, 1, 1
    dim = op.attrs.get("dim", -1)
    assert isinstance(dim, int)
    dim %= len(shape)
    return prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])


def accumulate(scanning: Scanning) -> Emitter:
    """Combine all elements up to each one, in float for floating results, else in int64."""

    def emit(op: Op, plan: HostPlanner) -> None:
        emit_scan(op, scanning, op.inputs[0], op.outputs[0], plan)

    return emit


def emit_scan(
    op: Op, scanning: Scanning, source: Tensor, result: Tensor, plan: HostPlanner, *, is_backward: bool = False,
) -> None:
    """Emit a scan along the dimension of an op.

    Args:
        op: Tells the dimension.
        scanning: How elements are combined.
        source: Elements.
        result: All up to each of them, or from each one on where ``is_backward``.
        plan: The planner.
        is_backward: Whether the scan begins at the end.
    """
    kind = DType.FLOAT if result.dtype.is_floating else DType.LONG
    held, out = plan.value(source, kind), plan.output(result, kind)
    outer, length, inner = around_dim(op, held.shape)
    if not result.num_elements:
        return
    plan.step(
        SCAN, [out], [held], ints=ScanInts(length, inner, scanning, kind is DType.LONG, is_backward),
        items=outer * ceil_div(inner, SCAN_BLOCK), grain=max(1, SHARE // (length * min(inner, SCAN_BLOCK))),
        writes=[Blocks.of((outer, length, inner), (1, length, SCAN_BLOCK))],
    )


def running_extreme(smallest: bool) -> Emitter:
    """Find the extreme up to each element, and where it is."""

    def emit(op: Op, plan: HostPlanner) -> None:
        source = op.inputs[0]
        kind = DType.FLOAT if source.dtype.is_floating else DType.LONG
        held = plan.value(source, kind)
        values, indices = plan.output(op.outputs[0], kind), plan.output(op.outputs[1], DType.LONG)
        outer, length, inner = around_dim(op, held.shape)
        if not source.num_elements:
            return
        plan.step(
            SCAN_EXTREMES, [values, indices], [held],
            ints=ScanExtremesInts(length, inner, smallest, kind is DType.LONG),
            items=outer * ceil_div(inner, SCAN_BLOCK), grain=max(1, SHARE // (length * min(inner, SCAN_BLOCK))),
            writes=[Blocks.of((outer, length, inner), (1, length, SCAN_BLOCK))],
        )

    return emit


def _emit_product_gradient(op: Op, plan: HostPlanner) -> None:
    given, factors = (plan.value(op.needed(name), DType.FLOAT) for name in ("grad", "factors"))
    out = plan.output(op.outputs[0], DType.FLOAT)
    outer, length, inner = factors.shape
    if not out.num_elements:
        return
    side_by_side = GRADIENT_ROWS if inner == 1 else min(inner, SCAN_BLOCK)
    plan.step(
        PRODUCT_GRADIENT, [out], [given, factors], ints=ProductGradientInts(length, inner, op.flag("running")),
        items=outer * ceil_div(inner, SCAN_BLOCK),
        grain=max(GRADIENT_ROWS if inner == 1 else 1, SHARE // (length * min(inner, SCAN_BLOCK))),
        scratch_bytes=8 * ceil_div(length, GRADIENT_BLOCK) * side_by_side,
        writes=[Blocks.of((outer, length, inner), (1, length, SCAN_BLOCK))],
    )


def _rows_of_products(op: Op) -> Slicing:
    return Slicing((Axis(op.outputs[0].shape[0], dict.fromkeys(("grad", "factors", "out"), (0, 1))),))


# --------------------------------------------------------------------------- records
# A scan reads and writes each vector twice: once within a tile, once to add what came before it.
CUMULATIVE = vector_codelet("popops::CumSum", 8, 6, source="estimate")
CUMULATIVE_EXTREME = vector_codelet("popops::CumMax", 10, 8, source="estimate")
CUMULATIVE_LOG_ADD = vector_codelet("popops::CumLogAdd", 24, 30, source="estimate")
# Forwards and backwards through the factors, and what is met on the way multiplied.
PRODUCT_GRADIENT_OF_ROWS = vector_codelet("popops::ProductGradient", 18, 14, source="estimate")


def _rows(op: Op) -> tuple[int, int, int]:
    return around_dim(op, op.inputs[0].shape)


def _record(
    name: str, emit: Emitter, codelet: Codelet, dtypes: tuple[DType, ...] = ANY,
    constraints: tuple[Constraint, ...] = (),
) -> None:
    lower = linear_vertices(codelet, temporaries=1, tiling=whole_rows(_rows))
    register(OpSpec(f"aten.{name}.default", name, lower, emit, dtypes=dtypes, constraints=constraints))


SCANNINGS = {"cumsum": Scanning.SUM, "cumprod": Scanning.PRODUCT, "logcumsumexp": Scanning.LOG_ADD}
for _name in ("cumsum", "cumprod"):
    _record(_name, accumulate(SCANNINGS[_name]), CUMULATIVE)
_record("logcumsumexp", accumulate(Scanning.LOG_ADD), CUMULATIVE_LOG_ADD, dtypes=FLOATING)
_record("cummax", running_extreme(False), CUMULATIVE_EXTREME, constraints=(has_dim(),))
_record("cummin", running_extreme(True), CUMULATIVE_EXTREME, constraints=(has_dim(),))
register(OpSpec(
    "ipu.product_gradient.default", "product_gradient",
    linear_vertices(PRODUCT_GRADIENT_OF_ROWS, temporaries=1, tiling=sliced(_rows_of_products)), _emit_product_gradient,
    dtypes=FLOATING,
))
