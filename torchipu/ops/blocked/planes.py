"""Ops on planes with channels in blocks: pooling, means, products with a number for each plane, concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels.table.conv_blocked import Activation, BlockedWindow
from torchipu._kernels.table.pool_blocked import Pooling
from torchipu.host.emit import pool_blocked
from torchipu.host.emit.blocked_layout import blocked_shape, emit_from_blocked, emit_move
from torchipu.host.emit.conv_blocked import Ending
from torchipu.host.emit.vectors import vector_lanes
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType, Role
from torchipu.ops.blocked.activations import activation_of, is_floating, is_of_floats
from torchipu.ops.blocked.halves import emit_rounded, op_rounding
from torchipu.ops.pool import pair, strides_of
from torchipu.ops.reduce import reduced_dims
from torchipu.optable.blocked import BlockedForm, BlockedPlanner, Rows, follows_nothing, register_blocked, saves_nothing
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.pieces import place_of

LEAST_SHARE = 8
"""One over the part of its channels that is taken of an image, at least, for the image to be brought into blocks."""


# --------------------------------------------------------------------------- pooling
def _pools(op: Op, rows: Rows) -> bool:
    return is_of_floats(op, rows) and len(op.needed("self").shape) == 4 and prod(op.outputs[0].shape) > 0


def _window(op: Op) -> BlockedWindow:
    images, channels, height, width = op.needed("self").shape
    rows, columns = op.outputs[0].shape[2:]
    (kh, kw), (sh, sw), (ph, pw) = pair(op, "kernel_size"), strides_of(op), pair(op, "padding")
    dh, dw = pair(op, "dilation") if op.given("dilation") else (1, 1)
    blocks = -(-channels // vector_lanes())
    return BlockedWindow(images, blocks, 1, 1, height, width, rows, columns, kh, kw, sh, sw, ph, pw, dh, dw)


def _emit_pool(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    (op,) = ops
    pooling, divisor = Pooling.MAXIMUM, 0
    if op.target == "aten.avg_pool2d.default":
        pooling = Pooling.AVERAGE_WITH_PADDING if op.flag("count_include_pad") else Pooling.AVERAGE
        divisor = op.integer("divisor_override", 0)
    source = plan.blocked(op.needed("self"))
    window = _window(op)
    if pooling is Pooling.MAXIMUM:
        pool_blocked.emit_pool(plan, window, plan.blocked_output(op.outputs[0]), source, pooling, divisor)
    else:
        emit_rounded(op, plan, lambda out: pool_blocked.emit_pool(plan, window, out, source, pooling, divisor))


def _self(ops: Sequence[Op]) -> Sequence[Tensor]:
    return (ops[0].needed("self"),)


for _target, _is_exact in (("aten.max_pool2d_with_indices.default", True), ("aten.avg_pool2d.default", False)):
    register_blocked(_target, BlockedForm(
        _pools, follows_nothing, _self, saves_nothing, _emit_pool, is_exact=_is_exact,
    ))


# --------------------------------------------------------------------------- means of planes
def _is_of_planes(op: Op, rows: Rows) -> bool:
    x = op.needed("self")
    if x in rows or op.given("dtype") or not is_floating(x) or len(x.shape) != 4 or not prod(x.shape):
        return False
    return reduced_dims(op, x) == (2, 3)


def _emit_mean(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    """Emit means; where channels fill blocks they lie alike in both layouts, and nothing is moved."""
    x, result = ops[0].needed("self"), ops[0].outputs[0]
    images, channels = x.shape[:2]
    source = plan.blocked(x)
    if len(result.shape) == 4:
        emit_rounded(ops[0], plan, lambda out: pool_blocked.emit_mean(plan, out, source))
    elif channels % vector_lanes() == 0:
        pool_blocked.emit_mean(plan, plan.output(result, DType.FLOAT), source)
    else:
        held = plan.scratch(blocked_shape((images, channels, 1, 1)))
        pool_blocked.emit_mean(plan, held, source)
        out = plan.output(result, DType.FLOAT)
        planes = HostTensor(out.buffer, out.offset, (images, channels, 1, 1), (channels, 1, 1, 1), out.dtype)
        emit_from_blocked(plan, planes, held)


register_blocked("aten.mean.dim", BlockedForm(_is_of_planes, follows_nothing, _self, saves_nothing, _emit_mean))


# --------------------------------------------------------------------------- products with a number for each plane
def _gated_and_gate(op: Op) -> tuple[Tensor, Tensor] | None:
    """Return the planes and the numbers of a product of them; None where it is another one."""
    if len(op.inputs) != 2:
        return None
    for planes, gate in (op.inputs, op.inputs[::-1]):
        if planes.shape == op.outputs[0].shape and gate.shape == (*planes.shape[:2], 1, 1) != planes.shape:
            return planes, gate
    return None


def _gates(op: Op, rows: Rows) -> bool:
    return is_of_floats(op, rows) and _gated_and_gate(op) is not None and prod(op.outputs[0].shape) > 0


def _gate_sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    found = _gated_and_gate(ops[0])
    assert found is not None
    return found


def _activates(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    return len(ops) == 1 and is_of_floats(after, rows) and activation_of(after) is not Activation.NONE


def _emit_gate(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    planes, gate = _gate_sources(ops)
    result = ops[-1].outputs[0]
    factor, source = plan.blocked(gate), plan.blocked(planes)
    activation = activation_of(ops[-1])
    ends = None if activation is Activation.NONE else op_rounding(ops[-1], plan)
    ending = Ending(activation=activation, rounded=(op_rounding(ops[0], plan), None, None, ends))
    pool_blocked.emit_end(plan, result.shape, plan.blocked_output(result), source, ending, factor)


register_blocked("aten.mul.Tensor", BlockedForm(_gates, _activates, _gate_sources, saves_nothing, _emit_gate))


# --------------------------------------------------------------------------- channels beside others
def _joins_channels(op: Op, rows: Rows) -> bool:
    """Whether channels are put behind each other."""
    if not is_of_floats(op, rows) or op.integer("dim", 0) % 4 != 1 or not prod(op.outputs[0].shape):
        return False
    return all(len(x.shape) == 4 and x.shape[1] for x in op.inputs)


def _emit_cat(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    sources = [plan.blocked(tensor) for tensor in ops[0].inputs]
    out, first = plan.blocked_output(ops[0].outputs[0]), 0
    for tensor, held in zip(ops[0].inputs, sources, strict=True):
        emit_move(plan, out, held, source=0, target=first, channels=tensor.shape[1])
        first += tensor.shape[1]


register_blocked(
    "aten.cat.default",
    BlockedForm(_joins_channels, follows_nothing, lambda ops: ops[0].inputs, saves_nothing, _emit_cat, is_exact=True),
)


def _takes_channels(op: Op, rows: Rows) -> bool:
    """Whether neighbouring channels of images are taken: a good part of them, since all are brought into the layout."""
    if not is_of_floats(op, rows) or not prod(op.outputs[0].shape):
        return False
    place, whole = place_of(op), op.needed("self")
    if place is None or place.dim != 1 or whole.role is not Role.ACTIVATION:
        return False
    return op.outputs[0].num_elements * LEAST_SHARE >= whole.num_elements


def _emit_slice(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    (taken,), (whole,) = ops[0].outputs, _self(ops)
    place = place_of(ops[0])
    assert place is not None
    held = plan.blocked(whole)
    emit_move(plan, plan.blocked_output(taken), held, source=place.span[0], target=0, channels=taken.shape[1])


register_blocked(
    "aten.slice.Tensor", BlockedForm(_takes_channels, follows_nothing, _self, saves_nothing, _emit_slice, is_exact=True)
)
