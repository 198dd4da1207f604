"""Optimisers that scale the update of a whole tensor by a ratio of norms: LAMB and LARS."""

from __future__ import annotations

from dataclasses import replace

from torchipu._kernels.table import layerwise as kernels
from torchipu._kernels.table.update import SPAN
from torchipu.device.codelets import reduction_codelet, vector_codelet
from torchipu.device.compute_sets import elementwise_set, no_vertices
from torchipu.device.reductions import reduced_whole
from torchipu.device.tilings import layerwise as tilings
from torchipu.host.emit.copy import emit_copy
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ops.update import in_place, rounded, update, value_of
from torchipu.optable.codelet import Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register
from torchipu.target import Target

_SQUARES = reduction_codelet("popops::Reduce<square-add,float>")
_DIRECTION = vector_codelet(
    "popops::LambDirection", 46, 28, code_bytes=900, source="estimate: AdamUpdater and a scaled addition"
)
_APPLY = vector_codelet("popops::ScaledAdd", 3, 3, supervisor=60, worker_half=24, worker_single=24)
_MOMENTUM = vector_codelet(
    "popops::ScaledAdd<momentum>", 6, 6, supervisor=60, worker_half=24, worker_single=24,
    source="estimate: two scaled additions",
)


def _lower_lamb(op: Op, target: Target) -> tuple[Vertices, ...]:
    state = op.inputs[0]
    count = state.num_elements
    if not count:
        return ()
    norms = (*reduced_whole(target, _SQUARES, count, state.dtype, tilings.weights),
             *reduced_whole(target, _SQUARES, count, DType.FLOAT, tilings.directions))
    direction = elementwise_set(target, _DIRECTION, count, state.dtype, temporary_bytes=4)
    applied = elementwise_set(target, _APPLY, count, state.dtype)
    return (
        replace(direction, tiling=tilings.lamb_direction), *norms, replace(applied, tiling=tilings.lamb_apply),
    )


def _lower_lars(op: Op, target: Target) -> tuple[Vertices, ...]:
    state = op.inputs[0]
    count = state.num_elements
    if not count:
        return ()
    norms = tuple(
        one for reduction in (tilings.weights, tilings.gradients)
        for one in reduced_whole(target, _SQUARES, count, state.dtype, reduction)
    )
    applied = elementwise_set(target, _MOMENTUM, count, state.dtype)
    return *norms, replace(applied, tiling=tilings.lars_apply)


def _ratio(
    plan: HostPlanner, partial: HostTensor, hyper: HostTensor, blocks: int, rule: kernels.Layerwise,
) -> HostTensor:
    """Emit the ratio of the norms of a tensor from the sums of its blocks."""
    ratio = plan.scratch((1,))
    plan.step(kernels.TRUST_RATIO, [ratio], [partial, hyper], ints=kernels.TrustRatioInts(blocks, rule))
    return ratio


def _emit_lamb(op: Op, plan: HostPlanner) -> None:
    grad, hyper, step = (value_of(op, plan, name) for name in ("grad", "hyper", "step"))
    state = in_place(op, plan)
    param = state["param"]
    count = param.num_elements
    if not count:
        return
    blocks = -(-count // SPAN)
    direction, partial = plan.scratch((count,)), plan.scratch((2 * blocks,), DType.LONG)
    moments = ("exp_avg", "exp_avg_sq")
    update(
        plan, kernels.LAMB_DIRECTION, [*(state[name] for name in moments), direction, partial],
        [param, grad, hyper, step], count, rounding=rounded(op, plan, moments, state),
    )
    ratio = _ratio(plan, partial, hyper, blocks, kernels.Layerwise.LAMB)
    rounding = rounded(op, plan, ("param",), state)
    update(plan, kernels.LAMB_APPLY, [param], [ratio, direction, hyper], count, rounding=rounding)


def _emit_lars(op: Op, plan: HostPlanner) -> None:
    grad, hyper = (value_of(op, plan, name) for name in ("grad", "hyper"))
    state = in_place(op, plan)
    written = ("param", "momentum_buffer")
    param = state["param"]
    count = param.num_elements
    if not count:
        return
    blocks = -(-count // SPAN)
    partial = plan.scratch((2 * blocks,), DType.LONG)
    update(plan, kernels.LARS_NORMS, [partial], [param, grad], count)
    ratio = _ratio(plan, partial, hyper, blocks, kernels.Layerwise.LARS)
    rounding = rounded(op, plan, written, state)
    update(plan, kernels.LARS_APPLY, [state[name] for name in written], [ratio, grad, hyper], count, rounding=rounding)


# --------------------------------------------------------------------------- what a vertex computes of a run
def _ratio_of_sums(op: Op, plan: HostPlanner, rule: kernels.Layerwise) -> HostTensor:
    """Emit the ratio of the norms of a whole tensor from its sums of squares."""
    pair = plan.scratch((2,), DType.LONG)
    for place, name in enumerate((tilings.OF_WEIGHTS, tilings.OF_OTHER)):
        emit_copy(plan, HostTensor(pair.buffer, place, (1,), (1,), DType.LONG), value_of(op, plan, name))
    return _ratio(plan, pair, value_of(op, plan, "hyper"), 1, rule)


def _emit_lamb_direction(op: Op, plan: HostPlanner) -> None:
    param, grad, hyper, step = (value_of(op, plan, name) for name in ("param", "grad", "hyper", "step"))
    moments = ("exp_avg", "exp_avg_sq")
    state = {
        name: plan.update_in_place(op.needed(name), made) for name, made in zip(moments, op.outputs[:2], strict=True)
    }
    state[tilings.DIRECTION] = plan.output(op.outputs[2])
    count = param.num_elements
    unread = plan.scratch((2 * -(-count // SPAN),), DType.LONG)
    update(
        plan, kernels.LAMB_DIRECTION, [*state.values(), unread],
        [param, grad, hyper, step], count, rounding=rounded(op, plan, moments, state),
    )


def _emit_lamb_apply(op: Op, plan: HostPlanner) -> None:
    ratio = _ratio_of_sums(op, plan, kernels.Layerwise.LAMB)
    direction, hyper = (value_of(op, plan, name) for name in (tilings.DIRECTION, "hyper"))
    state = in_place(op, plan)
    update(
        plan, kernels.LAMB_APPLY, [state["param"]], [ratio, direction, hyper], direction.num_elements,
        rounding=rounded(op, plan, ("param",), state),
    )


def _emit_lars_apply(op: Op, plan: HostPlanner) -> None:
    ratio = _ratio_of_sums(op, plan, kernels.Layerwise.LARS)
    grad, hyper = (value_of(op, plan, name) for name in ("grad", "hyper"))
    state = in_place(op, plan)
    written = ("param", "momentum_buffer")
    update(
        plan, kernels.LARS_APPLY, [state[name] for name in written], [ratio, grad, hyper], grad.num_elements,
        rounding=rounded(op, plan, written, state),
    )


register(
    OpSpec(tilings.LAMB_DIRECTION, "lamb_direction", no_vertices, _emit_lamb_direction, is_in_place=True),
    OpSpec(tilings.LAMB_APPLY, "lamb_apply", no_vertices, _emit_lamb_apply, is_in_place=True),
    OpSpec(tilings.LARS_APPLY, "lars_apply", no_vertices, _emit_lars_apply, is_in_place=True),
    OpSpec("ipu.lamb.default", "lamb", _lower_lamb, _emit_lamb, is_in_place=True),
    OpSpec("ipu.lars.default", "lars", _lower_lars, _emit_lars, is_in_place=True),
)
