"""Losses: negative log-likelihood over classes, and losses of pairs of elements, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchipu._kernels.table import loss as kernels
from torchipu._kernels.table.loss import (
    NllGradInts,
    NllInts,
    NllTotalInts,
    PairLoss,
    PairLossGradInts,
    PairLossGradScalars,
    PairLossInts,
    PairLossScalars,
    PairTotalInts,
    PairTotalScalars,
    Reduction,
)
from torchipu.device.codelets import reduction_codelet, vector_codelet
from torchipu.device.compute_sets import elementwise_set
from torchipu.device.reductions import reduced_whole
from torchipu.device.tilings import losses
from torchipu.device.tilings.losses import classes_of
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.stage import Stage, staged
from torchipu.host.emit.stored import STORED, value_as_stored
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.samples import Samples
from torchipu.optable.spec import ANY, FLOATING, OpSpec, register
from torchipu.target import Target

ONE_VALUE = Blocks.of((1,), (1,))
NLL_CHUNK, PAIR_CHUNK = 1024, 4096  # elements whose losses are summed in one go
INDEX_BYTES = {DType.INT: 4, DType.LONG: 8}


# --------------------------------------------------------------------------- device side
_REDUCE = reduction_codelet("popops::Reduce<add,float>")
_FILL = vector_codelet("popops::Fill", 1, 1, code_bytes=120)
_PICK = vector_codelet("popops::SelectFromInterval", 36, 18, code_bytes=200)  # 9 an element; ipu_hardware.md 2.3
_SCATTER = vector_codelet("popops::UpdateIntervalDEC", 36, 18, code_bytes=200)
_DIFFERENCE = vector_codelet("popops::BinaryOp<subtract>", 3, 3)
_SQUARE = vector_codelet("popops::UnaryOp<square>", 2, 2)
_CLAMPED = vector_codelet("popops::HuberLoss", 8, 8, source="estimate")
_LOGARITHMS = vector_codelet("popops::BinaryCrossEntropy", 16, 30, source="estimate")
_SCALE = vector_codelet("popops::BroadcastScalar<multiply>", 2, 2)


def _lower_nll(op: Op, target: Target) -> tuple[Vertices, ...]:
    labels = op.needed("target")
    if labels.num_elements == 0:
        return ()
    picked = elementwise_set(target, _PICK, labels.num_elements, op.inputs[0].dtype)
    joined = reduced_whole(target, _REDUCE, labels.num_elements, DType.FLOAT, losses.joined)
    return (replace(picked, tiling=losses.picked), *joined)


def _lower_nll_grad(op: Op, target: Target) -> tuple[Vertices, ...]:
    result, labels = op.outputs[0], op.needed("target")
    if result.num_elements == 0:
        return ()
    return (
        replace(elementwise_set(target, _FILL, result.num_elements, result.dtype), tiling=nothing_left),
        replace(elementwise_set(target, _SCATTER, labels.num_elements, result.dtype), tiling=losses.spread),
    )


_Steps = tuple[tuple[Codelet, Callable[[Op], Stage]], ...]


def _lower_pairs(steps: _Steps) -> Lowering:
    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        data = op.needed("self")
        if data.num_elements == 0:
            return ()
        sets = tuple(
            replace(elementwise_set(target, codelet, data.num_elements, data.dtype), tiling=staged(step))
            for codelet, step in steps
        )
        if op.outputs[0].num_elements == data.num_elements:
            return sets
        return *sets, *reduced_whole(target, _REDUCE, data.num_elements, data.dtype, losses.summed)

    return lower


# --------------------------------------------------------------------------- host side
def _labels(op: Op, plan: HostPlanner) -> tuple[HostTensor, int]:
    held = plan.value(op.needed("target"))
    return held, INDEX_BYTES[held.dtype]


def _optional(plan: HostPlanner, tensor: Tensor | None, absent: HostTensor) -> HostTensor:
    return absent if tensor is None else plan.value(tensor, DType.FLOAT)


def _reduction(op: Op) -> Reduction:
    return Reduction(op.integer("reduction"))


def _emit_nll(op: Op, plan: HostPlanner) -> None:
    x = value_as_stored(plan, op.inputs[0])  # of which one in each row is read
    labels, label_bytes = _labels(op, plan)
    weight = op.operand("weight")
    outer, classes, inner = classes_of(x.shape)
    count, reduction = outer * inner, _reduction(op)
    if len(x.shape) == 1 and reduction is Reduction.NONE:
        reduction = Reduction.SUM  # the same loss; eager mode also gives the weight of a lone sample
    out, total = (plan.output(result, DType.FLOAT) for result in op.outputs)
    chunks = ceil_div(count, NLL_CHUNK)
    partials = plan.scratch((max(1, chunks), 2))
    ints = NllInts(
        positions=count, classes=classes, inner=inner, ignored=op.integer("ignore_index"), reduction=reduction,
        target_bytes=label_bytes, has_weight=weight is not None, chunk=NLL_CHUNK,
        stored=STORED[x.dtype],
    )
    to = out if reduction is Reduction.NONE else partials
    plan.step(kernels.NLL, [to], [x, labels, _optional(plan, weight, x)], ints=ints, items=chunks,
              writes=[Blocks.of((count,), (NLL_CHUNK,))])
    if reduction is Reduction.NONE:
        # Eager mode leaves a total weight of 0; the sum of no partials is that.
        plan.step(kernels.NLL_TOTAL, [plan.scratch(()), total], [x], ints=NllTotalInts(0, is_mean=False),
                  writes=[ONE_VALUE] * 2)
    else:
        plan.step(kernels.NLL_TOTAL, [out, total], [partials],
                  ints=NllTotalInts(chunks, is_mean=reduction is Reduction.MEAN), writes=[ONE_VALUE] * 2)


def _emit_nll_grad(op: Op, plan: HostPlanner) -> None:
    data = op.needed("self")
    dy, total = (plan.value(op.needed(name), DType.FLOAT) for name in ("grad_output", "total_weight"))
    labels, label_bytes = _labels(op, plan)
    weight = op.operand("weight")
    outer, classes, inner = classes_of(data.shape)
    dx = plan.output(op.outputs[0], DType.FLOAT)
    ints = NllGradInts(
        classes=classes, inner=inner, ignored=op.integer("ignore_index"), reduction=_reduction(op),
        target_bytes=label_bytes, has_weight=weight is not None,
    )
    plan.step(kernels.NLL_GRAD, [dx], [dy, labels, _optional(plan, weight, dy), total], ints=ints, items=outer,
              grain=max(1, 16384 // max(1, classes * inner)), writes=[Blocks.rows(outer, dx)],
              samples=Samples.of(outer, dx, None, labels, None, None))


def _width(op: Op) -> float:
    """Return the beta of smooth L1, the delta of Huber; 0 for the others, which have none."""
    value = op.attrs.get("beta", op.attrs.get("delta", 0.0))
    assert isinstance(value, (int, float))
    return float(value)


def _pair(op: Op, plan: HostPlanner) -> tuple[HostTensor, HostTensor, HostTensor]:
    """Return input, target and weight; the input stands in for an absent weight."""
    x, wanted = (plan.value(op.needed(name), DType.FLOAT) for name in ("self", "target"))
    return x, wanted, _optional(plan, op.operand("weight"), x)


def _emit_pairs(kind: PairLoss) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        x, wanted, weight = _pair(op, plan)
        positive = op.operand("pos_weight")
        count, reduction, out = x.num_elements, _reduction(op), plan.output(op.outputs[0], DType.FLOAT)
        chunks = ceil_div(count, PAIR_CHUNK)
        partials = plan.scratch((max(1, chunks),))
        ints = PairLossInts(
            elements=count, kind=kind, reduction=reduction, has_weight=op.operand("weight") is not None,
            period=0 if positive is None else positive.num_elements, chunk=PAIR_CHUNK,
        )
        plan.step(kernels.PAIR_LOSS, [out if reduction is Reduction.NONE else partials],
                  [x, wanted, weight, _optional(plan, positive, x)], ints=ints, scalars=PairLossScalars(_width(op)),
                  items=chunks, writes=[Blocks.of((count,), (PAIR_CHUNK,))])
        if reduction is not Reduction.NONE:
            divisor = count if reduction is Reduction.MEAN else 1.0
            plan.step(kernels.PAIR_TOTAL, [out], [partials], ints=PairTotalInts(chunks),
                      scalars=PairTotalScalars(divisor), writes=[ONE_VALUE])

    return emit


def _emit_pairs_grad(kind: PairLoss) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        x, wanted, weight = _pair(op, plan)
        dy = plan.value(op.needed("grad_output"), DType.FLOAT)
        count, reduction = x.num_elements, _reduction(op)
        plan.step(kernels.PAIR_LOSS_GRAD, [plan.output(op.outputs[0], DType.FLOAT)],
                  [dy, x, wanted, weight],
                  ints=PairLossGradInts(kind, reduction, has_weight=op.operand("weight") is not None),
                  scalars=PairLossGradScalars(_width(op), count if reduction is Reduction.MEAN else 1.0),
                  items=count, grain=16384, writes=[Blocks.of((count,), (1,))])

    return emit


def _has_labels(op: Op) -> bool:
    data, labels, weight = op.operand("self"), op.operand("target"), op.operand("weight")
    return (
        data is not None and labels is not None and labels.dtype in INDEX_BYTES and data.dtype.is_floating
        and len(data.shape) >= 1 and labels.num_elements == classes_of(data.shape)[0] * classes_of(data.shape)[2]
        and labels.num_elements > 0 and (weight is None or weight.dtype.is_floating)
    )


def _has_pairs(op: Op) -> bool:
    """Whether all operands have one shape; a positive weight may be one row, since it then repeats."""
    data, wanted, weight, positive = (op.operand(name) for name in ("self", "target", "weight", "pos_weight"))
    upstream = op.operand("grad_output")
    if data is None or wanted is None or data.shape != wanted.shape or data.num_elements == 0:
        return False
    if weight is not None and weight.shape != data.shape:
        return False
    if upstream is not None and upstream.shape not in ((), data.shape):
        return False
    return positive is None or positive.shape == data.shape[len(data.shape) - len(positive.shape) :]


_APART, _SHARED = (_DIFFERENCE, losses.difference), (_SCALE, losses.scaled("slope"))


def _pair_spec(name: str, kind: PairLoss, *steps: tuple[Codelet, Callable[[Op], Stage]], backward: bool) -> OpSpec:
    suffix = "_backward" if backward else ""
    return OpSpec(
        f"aten.{name}{suffix}.default", f"{name}{'_grad' if backward else ''}", _lower_pairs(steps),
        (_emit_pairs_grad if backward else _emit_pairs)(kind), dtypes=FLOATING, supports=_has_pairs,
    )


register(
    *(OpSpec(f"aten.{name}_forward.default", "nll_loss", _lower_nll, _emit_nll, dtypes=ANY, supports=_has_labels)
      for name in ("nll_loss", "nll_loss2d")),
    *(OpSpec(f"aten.{name}_backward.default", "nll_loss_grad", _lower_nll_grad, _emit_nll_grad, dtypes=ANY,
             supports=_has_labels) for name in ("nll_loss", "nll_loss2d")),
    _pair_spec("mse_loss", PairLoss.MSE, _APART, (_SQUARE, losses.of_difference), backward=False),
    _pair_spec("mse_loss", PairLoss.MSE, _APART, (_SCALE, losses.scaled("difference", 2.0)), backward=True),
    _pair_spec("smooth_l1_loss", PairLoss.SMOOTH_L1, _APART, (_CLAMPED, losses.of_difference), backward=False),
    _pair_spec("smooth_l1_loss", PairLoss.SMOOTH_L1, _APART, (_CLAMPED, losses.slope), _SHARED, backward=True),
    _pair_spec("huber_loss", PairLoss.HUBER, _APART, (_CLAMPED, losses.of_difference), backward=False),
    _pair_spec("huber_loss", PairLoss.HUBER, _APART, (_CLAMPED, losses.slope), _SHARED, backward=True),
    _pair_spec("binary_cross_entropy", PairLoss.CROSS_ENTROPY, (_LOGARITHMS, losses.of_pairs), backward=False),
    _pair_spec("binary_cross_entropy", PairLoss.CROSS_ENTROPY, _APART, (_LOGARITHMS, losses.entropy_slope),
               backward=True),
    _pair_spec("binary_cross_entropy_with_logits", PairLoss.CROSS_ENTROPY_LOGITS, (_LOGARITHMS, losses.of_pairs),
               backward=False),
)
