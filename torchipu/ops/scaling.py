"""What scales the gradients of a whole model: bounds of norm and values, the scale of the loss, the running mean.

Hyper-parameters, sums of squares and counters are 64-bit words, which the device holds as floats.
"""

from __future__ import annotations

from dataclasses import replace

from torchipu._kernels.table import scaling as kernels
from torchipu._kernels.table import update as update_kernels
from torchipu._kernels.table.update import SPAN
from torchipu.device.codelets import reduction_codelet, vector_codelet
from torchipu.device.compute_sets import elementwise_set, in_first
from torchipu.device.reductions import reduced_whole
from torchipu.device.tilings import counters
from torchipu.device.tilings.alone import alone
from torchipu.device.tilings.folds import squares
from torchipu.device.tilings.pointwise import pointwise
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ops.update import rounded, update, value_of
from torchipu.optable.codelet import Codelet, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register
from torchipu.target import Target

SQUARES = "ipu.sum_squares.default"
ADD_SUMS = "ipu.add_sums.default"
CLIP = "ipu.clip_scale.default"
CLIP_VALUES = "ipu.clip_values.default"
UNSCALE = "ipu.unscale.default"
COUNT = "ipu.count_beyond.default"
JOIN_COUNTS = "ipu.join_counts.default"
ADAPT = "ipu.adapt_loss_scale.default"
ACCUMULATE_MEAN = "ipu.accumulate_mean.default"

_SQUARES = reduction_codelet("popops::Reduce<square-add,float>")
_HISTOGRAM = vector_codelet(
    "popops::Histogram<2 levels>", 4, 3, code_bytes=400, source="estimate: a comparison and an addition"
)
_SCALE = Codelet(
    "popops::ScaleFactor", lambda target, work: 20 + target.num_workers * 40, 160,
    "estimate: a root, a division and a comparison by one worker",
)
_MEAN = vector_codelet(
    "popops::ScaledAdd<aX + bY>", 4, 4, supervisor=60, worker_half=24, worker_single=24,
    source="estimate: a scaled addition and a multiplication",
)

_CLAMP = vector_codelet("popops::Clamp", 3, 3, source="estimate: two comparisons")


# --------------------------------------------------------------------------- device side
def _lower_squares(op: Op, target: Target) -> tuple[Vertices, ...]:
    grad = op.inputs[0]
    if not grad.num_elements:
        return ()
    return reduced_whole(target, _SQUARES, grad.num_elements, grad.dtype, squares)


def _lower_one(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower to one vertex, which reads a word of each operand."""
    words = {"elements": 1, "vector_width": 2, "element_bytes": 4}
    return (Vertices(
        _SCALE, 1, lambda count: words, gathered_bytes=4 * len(op.inputs), fragments=len(op.inputs), max_tiles=1,
        tiling=alone,
    ),)


def _lower_clip_values(op: Op, target: Target) -> tuple[Vertices, ...]:
    grad = op.inputs[0]
    clamped = replace(elementwise_set(target, _CLAMP, grad.num_elements, grad.dtype), tiling=pointwise)
    return (clamped,) if grad.num_elements else ()


def _lower_count(op: Op, target: Target) -> tuple[Vertices, ...]:
    grad = op.inputs[1]
    if not grad.num_elements:
        return ()
    stretches = min(target.num_tiles, grad.num_elements)
    large = elementwise_set(target, _HISTOGRAM, grad.num_elements, grad.dtype)
    joined = reduced_whole(target, _SQUARES, target.num_tiles, DType.FLOAT)
    return replace(large, tiling=counters.beyond(stretches)), *in_first(joined, counters.counted(stretches))


def _lower_mean(op: Op, target: Target) -> tuple[Vertices, ...]:
    held = op.inputs[0]
    mean = elementwise_set(target, _MEAN, held.num_elements, held.dtype)
    return (replace(mean, tiling=counters.running_mean),) if held.num_elements else ()


# --------------------------------------------------------------------------- host side
def _sum(plan: HostPlanner, total: HostTensor, terms: list[HostTensor]) -> None:
    plan.step(kernels.ADD_DOUBLES, [total], terms,
              ints=kernels.AddDoublesInts(len(terms), tuple(term.num_elements for term in terms)))


def _emit_squares(op: Op, plan: HostPlanner) -> None:
    grad = plan.value(op.inputs[0])
    count = op.inputs[0].num_elements
    partial = plan.scratch((-(-count // SPAN),), DType.LONG)
    if count:
        update(plan, kernels.BLOCK_SQUARES, [partial], [grad], count)
    _sum(plan, plan.output(op.outputs[0]), [partial])


def _emit_add_sums(op: Op, plan: HostPlanner) -> None:
    _sum(plan, plan.output(op.outputs[0]), [plan.value(term) for term in op.inputs])


def _emit_clip(op: Op, plan: HostPlanner) -> None:
    read = [value_of(op, plan, name) for name in ("hyper", "squares")]
    norm = op.number("max_norm")
    plan.step(kernels.CLIP, [plan.output(op.outputs[0])], read, scalars=kernels.ClipScalars(norm))


def _emit_clip_values(op: Op, plan: HostPlanner) -> None:
    read = [value_of(op, plan, name) for name in ("gradient", "hyper")]
    clipped, largest = plan.output(op.outputs[0]), op.number("max_value")
    update(plan, kernels.CLIP_VALUES, [clipped], read, clipped.num_elements,
           scalars=kernels.ClipValuesScalars(largest))


def _emit_unscale(op: Op, plan: HostPlanner) -> None:
    read = [value_of(op, plan, name) for name in ("hyper", "loss_scale")]
    plan.step(kernels.UNSCALE, [plan.output(op.outputs[0])], read)


def _emit_count(op: Op, plan: HostPlanner) -> None:
    grad = plan.value(op.inputs[1])
    count = op.inputs[1].num_elements
    counter = plan.update_in_place(op.inputs[0], op.outputs[0])
    blocks = -(-count // SPAN)
    partial = plan.scratch((blocks,), DType.LONG)
    halves = (grad.dtype is DType.HALF) << 1
    edge = op.number("edge")
    plan.step(kernels.BLOCK_COUNTS, [partial], [grad], ints=update_kernels.UpdateInts(count, halves),
              scalars=kernels.BlockCountsScalars(edge), items=blocks)
    plan.step(kernels.ADD_COUNTS, [counter], [partial], ints=kernels.AddCountsInts(blocks, count), reads_outputs=True)


def _emit_join_counts(op: Op, plan: HostPlanner) -> None:
    counters = [plan.value(counter) for counter in op.inputs]
    plan.step(kernels.JOIN_COUNTS, [plan.output(op.outputs[0])], counters,
              ints=kernels.JoinCountsInts(len(counters)))


def _emit_adapt(op: Op, plan: HostPlanner) -> None:
    counter = value_of(op, plan, "counter")
    numbers = kernels.AdaptScaleScalars(*(op.number(name) for name in ("share", "factor", "least", "most")))
    changed = [plan.update_in_place(before, after) for before, after in zip(op.inputs[:2], op.outputs, strict=True)]
    period = op.integer("period")
    plan.step(kernels.ADAPT_SCALE, changed, [counter], ints=kernels.AdaptScaleInts(period), scalars=numbers,
              reads_outputs=True)


def _emit_mean(op: Op, plan: HostPlanner) -> None:
    grad = plan.value(op.inputs[1])
    held = plan.update_in_place(op.inputs[0], op.outputs[0])
    count = plan.update_in_place(op.inputs[2], op.outputs[1])
    rounding = rounded(op, plan, ("accumulator",), {"accumulator": held, "count": count})
    update(plan, kernels.ACCUMULATE_MEAN, [held], [grad, count], held.num_elements, rounding=rounding)
    plan.step(update_kernels.INCREMENT, [count], [], reads_outputs=True)


register(
    OpSpec(SQUARES, "sum_squares", _lower_squares, _emit_squares),
    OpSpec(ADD_SUMS, "add_sums", _lower_one, _emit_add_sums),
    OpSpec(CLIP, "clip_scale", _lower_one, _emit_clip),
    OpSpec(CLIP_VALUES, "clip_values", _lower_clip_values, _emit_clip_values),
    OpSpec(UNSCALE, "unscale", _lower_one, _emit_unscale),
    OpSpec(COUNT, "count_beyond", _lower_count, _emit_count, is_in_place=True),
    OpSpec(JOIN_COUNTS, "join_counts", _lower_one, _emit_join_counts),
    OpSpec(ADAPT, "adapt_loss_scale", _lower_one, _emit_adapt, is_in_place=True),
    OpSpec(ACCUMULATE_MEAN, "accumulate_mean", _lower_mean, _emit_mean, is_in_place=True),
)
