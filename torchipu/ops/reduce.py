"""Reductions: sums, extremes, moments and norms over any dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable

from torchipu._kernels.table.reduce import (
    ARG_COLUMNS,
    ARG_ROWS,
    MOMENT_ROWS,
    REDUCE_BOOLS,
    REDUCE_INTEGERS,
    REDUCE_PANEL,
    ArgColumnsInts,
    ArgRowsInts,
    Folding,
    MomentRowsInts,
    MomentRowsScalars,
)
from torchipu.device.codelets import reduction_codelet
from torchipu.device.reductions import reduction_vertices
from torchipu.device.tilings import folds
from torchipu.device.tilings.folds import Reducing
from torchipu.host.emit.folded import emit_by_chain
from torchipu.host.emit.reduce import (
    SHARE,
    columns_of,
    emit_exact,
    emit_logsumexp,
    emit_reduction,
    reduces_stored,
    rows_of,
)
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.sizes import largest
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import OpSpec, register


def reduced_dims(op: Op, source: Tensor) -> tuple[int, ...]:
    """Return the dimensions that an op reduces, ascending; none given means all."""
    dims, rank = op.integers("dim", ()), len(source.shape)
    if not dims:
        return tuple(range(rank))
    return tuple(sorted({dim % rank if rank else 0 for dim in dims} & set(range(rank))))


# --------------------------------------------------------------------------- emitters
def fold(folding: Folding, *, mean: bool = False) -> Emitter:
    """Reduce to one value: in float for floating results, in int64 for integer ones."""

    def emit(op: Op, plan: HostPlanner) -> None:
        source, result = op.needed("self"), op.outputs[0]
        dims = reduced_dims(op, source)
        if result.dtype.is_floating:
            count = math.prod(source.shape[d] for d in dims)
            scale = 1.0 if not mean else 1.0 / count if count else math.nan
            if emit_by_chain(plan, source, dims, folding, lambda: plan.output(result, DType.FLOAT), scale=scale):
                return
            held = _as_stored(source, dims, folding, plan)
            emit_reduction(plan, plan.output(result, DType.FLOAT), held, dims, folding, scale=scale)
            return
        held = plan.value(source, contiguous=False)
        emit_exact(plan, REDUCE_INTEGERS, plan.output(result, DType.LONG), held, dims, folding)

    return emit


def _as_stored(source: Tensor, dims: tuple[int, ...], folding: Folding, plan: HostPlanner) -> HostTensor:
    """Return an operand as its reduction reads it: floats, or halves or bfloats that lie where no floats of them do."""
    stored = plan.stored_type(source)
    if stored is not DType.FLOAT:
        held = plan.value(source, stored, contiguous=False)
        if reduces_stored(held, dims, folding):
            return held
    return plan.value(source, DType.FLOAT, contiguous=False)


def truth(folding: Folding) -> Emitter:
    """Reduce truth values: LARGEST is any, SMALLEST is all."""

    def emit(op: Op, plan: HostPlanner) -> None:
        source = op.needed("self")
        held = plan.value(source, DType.BOOL, contiguous=False)
        out = plan.output(op.outputs[0], DType.BOOL)
        emit_exact(plan, REDUCE_BOOLS, out, held, reduced_dims(op, source), folding)

    return emit


def extreme(smallest: bool, *, arg_only: bool = False) -> Emitter:
    """Find extremes and where they are."""

    def emit(op: Op, plan: HostPlanner) -> None:
        source = op.needed("self")
        kind = DType.FLOAT if source.dtype.is_floating else DType.LONG
        held, dims = plan.value(source, kind, contiguous=False), reduced_dims(op, source)
        matrices = columns_of(plan, held, dims)
        rows = rows_of(plan, held, dims) if matrices is None else matrices
        if arg_only:
            values, indices = plan.scratch((op.outputs[0].num_elements,), kind), plan.output(op.outputs[0], DType.LONG)
        else:
            values, indices = plan.output(op.outputs[0], kind), plan.output(op.outputs[1], DType.LONG)
        if matrices is not None:
            _emit_columns(plan, (values, indices), matrices, smallest=smallest)
            return
        plan.step(
            ARG_ROWS, [values, indices], [rows], ints=ArgRowsInts(rows.shape[1], smallest, kind is DType.LONG),
            items=rows.shape[0], grain=max(1, SHARE // max(1, rows.shape[1])), writes=[Blocks.of(rows.shape[:1], (1,))],
        )

    return emit


def _emit_columns(
    plan: HostPlanner, out: tuple[HostTensor, HostTensor], held: HostTensor, *, smallest: bool,
) -> None:
    """Emit extremes, and where they are, of matrices ``[matrices, extent, columns]`` down their columns."""
    matrices, extent, columns = held.shape
    plan.step(
        ARG_COLUMNS, out, [held], ints=ArgColumnsInts(extent, columns, smallest, held.dtype is DType.LONG),
        items=matrices * -(-columns // REDUCE_PANEL), grain=largest(1, SHARE // largest(1, extent * REDUCE_PANEL)),
        writes=[Blocks.of((matrices, columns), (1, REDUCE_PANEL))] * 2,
    )


def moments(*, root: bool, mean: bool) -> Emitter:
    """Variance or standard deviation, and the mean where asked for."""

    def emit(op: Op, plan: HostPlanner) -> None:
        source = op.needed("self")
        rows = rows_of(plan, plan.value(source, DType.FLOAT, contiguous=False), reduced_dims(op, source))
        spread = plan.output(op.outputs[0], DType.FLOAT)
        centre = plan.output(op.outputs[1], DType.FLOAT) if mean else plan.scratch((max(1, rows.shape[0]),))
        plan.step(
            MOMENT_ROWS, [spread, centre], [rows], ints=MomentRowsInts(rows.shape[1], root),
            scalars=MomentRowsScalars(rows.shape[1] - _correction(op)), items=rows.shape[0],
            grain=max(1, SHARE // max(1, rows.shape[1])), writes=[Blocks.of(rows.shape[:1], (1,))] * 2,
        )

    return emit


def _correction(op: Op) -> float:
    if op.given("unbiased"):
        return float(op.flag("unbiased"))
    return float(op.number("correction", 1))


def vector_norm(op: Op, plan: HostPlanner) -> None:
    """Norm of order 1, 2 or infinity; of one element its magnitude, whose square may be out of range."""
    source = op.needed("self")
    order = _norm_order(op)
    if math.prod(source.shape[dim] for dim in reduced_dims(op, source)) == 1:
        order = math.inf
    foldings: dict[float, Folding] = {1: Folding.SUM_MAGNITUDES, 2: Folding.SUM_SQUARES}
    folding = foldings.get(order, Folding.LARGEST_MAGNITUDE)
    dims, result = reduced_dims(op, source), op.outputs[0]
    if emit_by_chain(plan, source, dims, folding, lambda: plan.output(result, DType.FLOAT), root=order == 2):
        return
    held = _as_stored(source, dims, folding, plan)
    emit_reduction(plan, plan.output(result, DType.FLOAT), held, dims, folding, root=order == 2)


def _norm_order(op: Op) -> float:
    return op.number("ord", op.number("p", 2))


def _has_norm_order(op: Op) -> bool:
    order = _norm_order(op)
    return order in (1, 2, math.inf) and op.inputs[0].dtype.is_floating


def logsumexp(op: Op, plan: HostPlanner) -> None:
    """``log(sum(exp(x)))`` without overflow."""
    source = op.needed("self")
    held = plan.value(source, DType.FLOAT, contiguous=False)
    emit_logsumexp(plan, plan.output(op.outputs[0], DType.FLOAT), held, reduced_dims(op, source))


def _is_not_empty(op: Op) -> bool:
    """Whether each result has something to reduce; eager refuses the rest."""
    return op.inputs[0].num_elements > 0 or op.outputs[0].num_elements == 0


# --------------------------------------------------------------------------- records
ADD = reduction_codelet("popops::Reduce<add>")
MULTIPLY = reduction_codelet("popops::Reduce<mul>")
EXTREME = reduction_codelet("popops::Reduce<max>")
LOGICAL = reduction_codelet("popops::Reduce<or>")
SQUARE_ADD = reduction_codelet("popops::Reduce<square_add>")
ARGUMENT = reduction_codelet("popnn::ReduceMaxIndices", code_bytes=500, source="estimate")
LOG_ADD = reduction_codelet("popops::Reduce<log_add>", source="estimate")

FLOAT_SUMS = (ADD, MULTIPLY, SQUARE_ADD, LOG_ADD)


def _records(
    targets: str, emit: Callable[[Op, HostPlanner], None], codelet: Codelet, reduction: Reducing,
    supports: Callable[[Op], bool] | None = None,
) -> None:
    for target in targets.split():
        name, _, overload = target.partition(".")
        spec = OpSpec(
            f"aten.{name}.{overload or 'default'}", name,
            reduction_vertices(
                codelet, reduced_dims, reduction, has_float_sums=codelet in FLOAT_SUMS,
                partial_dtype=None if codelet in (EXTREME, LOGICAL) else DType.FLOAT,
            ),
            emit, supports=supports or (lambda op: True),
        )
        register(spec)


def _by(target: str, *, as_list: bool = True) -> Reducing:
    return folds.by(target, dims=reduced_dims, as_list=as_list)


def _extreme(target: str, *, arg_only: bool = False) -> Reducing:
    return folds.extreme(target, dims=reduced_dims, arg_only=arg_only)


def _moments(*, root: bool) -> Reducing:
    return folds.moments(dims=reduced_dims, correction=_correction, root=root)


_records("sum sum.dim_IntList", fold(Folding.SUM), ADD, _by("aten.sum.dim_IntList"))
_records("mean mean.dim", fold(Folding.SUM, mean=True), ADD, folds.mean(dims=reduced_dims))
_records("prod prod.dim_int", fold(Folding.PRODUCT), MULTIPLY, _by("aten.prod.dim_int", as_list=False))
_records("amax max", fold(Folding.LARGEST), EXTREME, _by("aten.amax.default"), _is_not_empty)
_records("amin min", fold(Folding.SMALLEST), EXTREME, _by("aten.amin.default"), _is_not_empty)
_records("any any.dim any.dims", truth(Folding.LARGEST), LOGICAL, _by("aten.any.dim", as_list=False))
_records("all all.dim all.dims", truth(Folding.SMALLEST), LOGICAL, _by("aten.all.dim", as_list=False))
_records("max.dim", extreme(False), ARGUMENT, _extreme("aten.max.dim"), _is_not_empty)
_records("min.dim", extreme(True), ARGUMENT, _extreme("aten.min.dim"), _is_not_empty)
_records("argmax", extreme(False, arg_only=True), ARGUMENT, _extreme("aten.max.dim", arg_only=True), _is_not_empty)
_records("argmin", extreme(True, arg_only=True), ARGUMENT, _extreme("aten.min.dim", arg_only=True), _is_not_empty)
_records("var var.dim var.correction", moments(root=False, mean=False), SQUARE_ADD, _moments(root=False))
_records("std std.dim std.correction", moments(root=True, mean=False), SQUARE_ADD, _moments(root=True))
_records("var_mean.correction", moments(root=False, mean=True), SQUARE_ADD, _moments(root=False))
_records("std_mean.correction", moments(root=True, mean=True), SQUARE_ADD, _moments(root=True))
_records("linalg_vector_norm norm.ScalarOpt_dim norm.Scalar", vector_norm, SQUARE_ADD,
         folds.norm(dims=reduced_dims, order=_norm_order), _has_norm_order)
_records("logsumexp", logsumexp, LOG_ADD, _by("aten.logsumexp.default"))
