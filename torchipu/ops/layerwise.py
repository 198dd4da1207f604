"""Optimisers that scale the update of a whole tensor by a ratio of norms: LAMB and LARS."""

from __future__ import annotations

from torchipu._kernels.table import layerwise as kernels
from torchipu._kernels.table.update import SPAN
from torchipu.device.codelets import reduction_codelet, vector_codelet
from torchipu.device.compute_sets import elementwise_set, reduction_sets
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
    norms = (*reduction_sets(target, _SQUARES, count, 1, state.dtype),
             *reduction_sets(target, _SQUARES, count, 1, DType.FLOAT))
    direction = elementwise_set(target, _DIRECTION, count, state.dtype, temporary_bytes=4)
    return (direction, *norms, elementwise_set(target, _APPLY, count, state.dtype))


def _lower_lars(op: Op, target: Target) -> tuple[Vertices, ...]:
    state = op.inputs[0]
    count = state.num_elements
    if not count:
        return ()
    norms = reduction_sets(target, _SQUARES, count, 1, state.dtype) * 2
    return (*norms, elementwise_set(target, _MOMENTUM, count, state.dtype))


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


register(
    OpSpec("ipu.lamb.default", "lamb", _lower_lamb, _emit_lamb, is_in_place=True),
    OpSpec("ipu.lars.default", "lars", _lower_lars, _emit_lars, is_in_place=True),
)
