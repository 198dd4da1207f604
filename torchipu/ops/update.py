"""Optimisers and gradient accumulation: ops of ours that overwrite their state.

An optimiser takes ``param``, ``grad``, the states it keeps (``STATES``), ``hyper`` and ``step``, by name and in any
order; its outputs are the next values of ``param`` and the states, in the order of the operands. ``hyper`` is LONG[16]
whose words are doubles (``HYPER`` names the places), ``step`` a 0-d float that ``ipu.increment.default`` has counted up
before: in the first update it is 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchipu._kernels.table import update as kernels
from torchipu._kernels.table.kernel import Kernel, Nothing, S
from torchipu._kernels.table.update import (
    HYPER,
    HYPER_WORDS,
    SPAN,
    ZERO_SPAN,
    AdamFlag,
    FillZeroInts,
    RmspropFlag,
    SgdFlag,
    UpdateInts,
)
from torchipu.device.codelets import FILL, vector_codelet
from torchipu.device.compute_sets import elementwise_set, no_vertices
from torchipu.device.tilings.pointwise import pointwise
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import OpSpec, register
from torchipu.target import Target

__all__ = ["HYPER", "HYPER_WORDS"]

STATES = ("param", "momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "square_avg", "grad_avg")

# --------------------------------------------------------------------------- device side
_SCALED_ADD = vector_codelet("popops::ScaledAdd", 3, 3, supervisor=60, worker_half=24, worker_single=24)
_MOMENTUM = vector_codelet(
    "popops::ScaledAdd<momentum>", 6, 6, supervisor=60, worker_half=24, worker_single=24,
    source="estimate: two scaled additions",
)
_ADAM = vector_codelet("popops::AdamUpdater", 44, 26, code_bytes=900,
                       source="estimate: sqrt, divide and six fused steps")
_RMSPROP = vector_codelet("popops::RmsPropUpdater", 44, 24, code_bytes=800,
                          source="estimate: sqrt, divide and four fused steps")
_COUNT = Codelet("popops::LoopCounter", lambda target, work: 43, 60, "poplibs estimator, ipu_hardware.md 2.3")


def _lower(codelet: Codelet) -> Lowering:
    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        state = op.inputs[0]
        if not state.num_elements:
            return ()
        return (replace(elementwise_set(target, codelet, state.num_elements, state.dtype), tiling=pointwise),)

    return lower


def _lower_sgd(op: Op, target: Target) -> tuple[Vertices, ...]:
    return _lower(_MOMENTUM if "momentum_buffer" in op.operands else _SCALED_ADD)(op, target)


def _lower_increment(op: Op, target: Target) -> tuple[Vertices, ...]:
    return (Vertices(_COUNT, 1, lambda count: {"elements": count}, max_tiles=1, tiling=pointwise),)


# --------------------------------------------------------------------------- host side
def in_place(op: Op, plan: HostPlanner) -> dict[str, HostTensor]:
    """Return the storage of each state by its schema name; it holds the op's results from now on."""
    held = [(name, tensor) for name, tensor in zip(op.operands, op.inputs, strict=True) if name in STATES]
    return {
        name: plan.update_in_place(state, result)
        for (name, state), result in zip(held, op.outputs, strict=True)
    }


def value_of(op: Op, plan: HostPlanner, name: str) -> HostTensor:
    tensor = op.operand(name)
    assert tensor is not None, f"{op.target} without {name}"
    return plan.value(tensor)


def rounded(
    op: Op, plan: HostPlanner, written: Sequence[str], state: dict[str, HostTensor],
) -> tuple[list[HostTensor], int]:
    """Return how states are rounded where they are half.

    Args:
        op: The update.
        plan: Knows the streams of random bits.
        written: States in the order in which a kernel writes them; those that are absent are left alone.
        state: Storage of each state by name, in the order of the op's outputs.

    Returns:
        The random words of each, none to round to nearest; and what becomes of an overflow.
    """
    roundings = dict(zip(state, (plan.rounding(op, result) for result in op.outputs), strict=True))
    drawn = [rounding.random for rounding in roundings.values() if rounding.random is not None]
    words = [(roundings[name].random if name in roundings else None) or drawn[0] for name in written] if drawn else []
    return words, max(rounding.overflow for rounding in roundings.values())


def update(
    plan: HostPlanner, kernel: Kernel[UpdateInts, S], written: Sequence[HostTensor], read: Sequence[HostTensor],
    count: int, *, flags: int = 0, rounding: tuple[list[HostTensor], int] = ([], 0), adds_up: bool = False,
    scalars: S | tuple[()] = (),
) -> None:
    """Append a kernel that goes over blocks of elements.

    Args:
        plan: Receives the step.
        kernel: Its kernel.
        written: What it writes, and may read.
        read: What it reads besides.
        count: Elements.
        flags: For the kernel.
        rounding: What `rounded` gives for the first of those written.
        adds_up: As for a step.
        scalars: For the kernel.
    """
    words, overflow = rounding
    arguments = [*written, *read]
    halves = sum(1 << place for place, held in enumerate(arguments) if held.dtype is DType.HALF)
    ints = UpdateInts(count, halves, flags, overflow, len(arguments) if words else 0, len(words))
    plan.step(
        kernel, written, [*read, *words], ints=ints, items=-(-count // SPAN), reads_outputs=True, adds_up=adds_up,
        scalars=scalars,
    )


def _update(
    op: Op, plan: HostPlanner, kernel: Kernel[UpdateInts, Nothing], written: Sequence[str],
    state: dict[str, HostTensor], read: list[HostTensor], flags: int,
) -> None:
    """Append an update; the first state that is written stands in for absent ones, which the kernel leaves alone."""
    first = state[written[0]]
    targets = [state.get(name, first) for name in written]
    rounding = rounded(op, plan, written, state)
    update(plan, kernel, targets, read, first.num_elements, flags=flags, rounding=rounding)


def _emit_accumulate(op: Op, plan: HostPlanner) -> None:
    grad = plan.value(op.inputs[1])
    state = plan.update_in_place(op.inputs[0], op.outputs[0])
    rounding = rounded(op, plan, ("accumulator",), {"accumulator": state})
    update(plan, kernels.ACCUMULATE, [state], [grad], state.num_elements, rounding=rounding, adds_up=True)


def _emit_all_reduce(op: Op, plan: HostPlanner) -> None:
    plan.alias(op.outputs[0], plan.all_reduced(op.inputs[0]))


def _emit_fill_zero(op: Op, plan: HostPlanner) -> None:
    state = plan.update_in_place(op.inputs[0], op.outputs[0])
    num_bytes = state.num_elements * state.dtype.host_bytes
    plan.step(kernels.FILL_ZERO, [state], [], ints=FillZeroInts(num_bytes), items=-(-num_bytes // ZERO_SPAN))


def _emit_increment(op: Op, plan: HostPlanner) -> None:
    plan.step(kernels.INCREMENT, [plan.update_in_place(op.inputs[0], op.outputs[0])], [], reads_outputs=True)


def _emit_sgd(op: Op, plan: HostPlanner) -> None:
    read = [value_of(op, plan, name) for name in ("grad", "hyper", "step")]
    state = in_place(op, plan)
    flags = SgdFlag.HAS_MOMENTUM if "momentum_buffer" in state else 0
    _update(op, plan, kernels.SGD, ("param", "momentum_buffer"), state, read, flags)


def _emit_adam(decoupled: int) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        read = [value_of(op, plan, name) for name in ("grad", "hyper", "step")]
        state = in_place(op, plan)
        flags = decoupled | (AdamFlag.AMSGRAD if "max_exp_avg_sq" in state else 0)
        written = ("param", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")
        _update(op, plan, kernels.ADAM, written, state, read, flags)

    return emit


def _emit_rmsprop(variant: int) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        read = [value_of(op, plan, name) for name in ("grad", "hyper", "step")]
        state = in_place(op, plan)
        flags = variant | (RmspropFlag.HAS_MOMENTUM if "momentum_buffer" in state else 0)
        flags |= RmspropFlag.CENTRED if "grad_avg" in state else 0
        _update(op, plan, kernels.RMSPROP, ("param", "square_avg", "momentum_buffer", "grad_avg"), state, read, flags)

    return emit


register(
    OpSpec("ipu.accumulate.default", "accumulate", _lower(_SCALED_ADD), _emit_accumulate, is_in_place=True),
    OpSpec("ipu.all_reduce.default", "all_reduce", no_vertices, _emit_all_reduce, is_in_place=True),
    OpSpec("ipu.fill_zero.default", "fill_zero", _lower(FILL), _emit_fill_zero),
    OpSpec("ipu.increment.default", "increment", _lower_increment, _emit_increment),
    OpSpec("ipu.sgd.default", "sgd", _lower_sgd, _emit_sgd),
    OpSpec("ipu.adam.default", "adam", _lower(_ADAM), _emit_adam(0)),
    OpSpec("ipu.adamw.default", "adamw", _lower(_ADAM), _emit_adam(AdamFlag.DECOUPLED)),
    OpSpec("ipu.rmsprop.default", "rmsprop", _lower(_RMSPROP), _emit_rmsprop(0)),
    OpSpec("ipu.rmsprop_tf.default", "rmsprop", _lower(_RMSPROP), _emit_rmsprop(RmspropFlag.OF_TENSORFLOW)),
)
