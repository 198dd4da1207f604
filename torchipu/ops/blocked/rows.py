"""Ops on images with their channels last, ``[N, H, W, C]`` or ``[N * H * W, C]``, computed with channels in blocks.

A network that has its channels second may put them last for a normalisation of each pixel and for linear layers, and
back. In blocks these views are all one, so that nothing is moved, and a linear layer is a convolution of one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit import conv_blocked, layer_norm_blocked
from torchipu.host.emit.conv_blocked import OpRounding
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.half_partials import has_half_partials
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.blocked.activations import activation_of, is_floating
from torchipu.ops.blocked.halves import emit_rounded, op_rounding
from torchipu.optable.blocked import (
    BlockedForm,
    BlockedPlanner,
    Rows,
    Sizes,
    Terms,
    follows_nothing,
    register_blocked,
    register_rows,
    saves_nothing,
)
from torchipu.optable.host_tensor import HostTensor, contiguous_strides

PERMUTE, MUL, ADD = "aten.permute.default", "aten.mul.Tensor", "aten.add.Tensor"
VIEWS = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
LAYER_NORM = "aten.native_layer_norm.default"
PRODUCTS = ("aten.addmm.default", "aten.mm.default")
# Measured as those of convolutions: what a pass over an element of its own takes.
PASS_NS = 0.4


# --------------------------------------------------------------------------- which values have their channels last
def _goes_last(op: Op) -> bool:
    return tuple(dim % 4 for dim in op.integers("dims")) == (0, 2, 3, 1) if len(op.inputs[0].shape) == 4 else False


def _comes_back(op: Op, rows: Rows) -> bool:
    """Whether channels that were last become second again, of the images that they were of."""
    x = op.inputs[0]
    if x not in rows or len(x.shape) != 4:
        return False
    images, channels, height, width = rows[x]
    return x.shape == (images, height, width, channels) and tuple(d % 4 for d in op.integers("dims")) == (0, 3, 1, 2)


def _rows_of_permute(op: Op, rows: Rows) -> Sizes | None:
    x = op.inputs[0]
    if x in rows or not is_floating(x) or not _goes_last(op) or not x.num_elements:
        return None
    images, channels, height, width = x.shape
    return images, channels, height, width


def _rows_of_view(op: Op, rows: Rows) -> Sizes | None:
    x, result = op.inputs[0], op.outputs[0]
    return rows.get(x) if result.shape and result.shape[-1] == x.shape[-1] else None


def _rows_of_product(op: Op, rows: Rows) -> Sizes | None:
    left = op.inputs[-2]
    if left not in rows or not is_floating(op.outputs[0]):
        return None
    images, _, height, width = rows[left]
    return images, op.outputs[0].shape[-1], height, width


def _rows_of_elementwise(op: Op, rows: Rows) -> Sizes | None:
    result = op.outputs[0]
    if not is_floating(result):
        return None
    return next((rows[x] for x in op.inputs if x in rows and x.shape == result.shape), None)


register_rows(PERMUTE, _rows_of_permute)
register_rows(LAYER_NORM, _rows_of_elementwise)
for _target in VIEWS:
    register_rows(_target, _rows_of_view)
for _target in PRODUCTS:
    register_rows(_target, _rows_of_product)
for _target in (
    MUL, ADD, "aten.gelu.default", "aten.relu.default", "aten.silu.default", "aten.hardswish.default",
    "aten.sigmoid.default",
):
    register_rows(_target, _rows_of_elementwise)


# --------------------------------------------------------------------------- views
def _is_view(op: Op, rows: Rows) -> bool:
    """Whether an op shows images in another shape, so that in blocks nothing changes."""
    if op.target == PERMUTE:
        return op.outputs[0] in rows or _comes_back(op, rows)
    return op.target in VIEWS and op.inputs[0] in rows and op.outputs[0] in rows


def _source(ops: Sequence[Op]) -> Sequence[Tensor]:
    return (ops[0].inputs[0],)


def _emit_view(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    plan.blocked_view(ops[0].outputs[0], ops[0].inputs[0])


for _target in (PERMUTE, *VIEWS):
    register_blocked(_target, BlockedForm(_is_view, follows_nothing, _source, saves_nothing, _emit_view))


# --------------------------------------------------------------------------- normalisation of each pixel
def _normalises(op: Op, rows: Rows) -> bool:
    tensors, x = (*op.inputs, op.outputs[0]), op.needed("input")
    return (
        x in rows and tuple(op.integers("normalized_shape")) == x.shape[-1:]
        and is_floating(*tensors)
    )


def _emit_layer_norm(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    (op,) = ops
    for empty in op.outputs[1:]:
        plan.output(empty)
    x, weight, bias = op.needed("input"), op.operand("weight"), op.operand("bias")
    source = plan.blocked(x)
    scale, shift = (None if held is None else plan.value(held, DType.FLOAT) for held in (weight, bias))

    def emit(out: HostTensor) -> None:
        layer_norm_blocked.emit(plan, plan.image_sizes(x), out, source, scale, shift, float(op.number("eps")))

    emit_rounded(op, plan, emit)


register_blocked(
    LAYER_NORM,
    BlockedForm(_normalises, follows_nothing, lambda ops: (ops[0].needed("input"),), saves_nothing, _emit_layer_norm),
)


# --------------------------------------------------------------------------- linear layers
def _multiplies(op: Op, rows: Rows) -> bool:
    left, right = op.inputs[-2:]
    if any(op.number(name, 1) != 1 for name in ("alpha", "beta")) or left not in rows or right in rows:
        return False
    tensors, result = (*op.inputs, op.outputs[0]), op.outputs[0]
    is_whole = result.num_elements > 0 and left.num_elements > 0
    bias = len(op.inputs) < 3 or op.inputs[0].shape == result.shape[-1:]
    return is_whole and bias and is_floating(*tensors) and not has_half_partials(op)


def _changes(ops: Sequence[Op], rows: Rows) -> list[Op]:
    return [op for op in ops if not _is_view(op, rows)]


def _other(before: Op, op: Op) -> Tensor:
    """Return the operand of a sum or product of two that the op before has not made."""
    left, right = op.inputs
    return right if left is before.outputs[0] else left


def _is_factor(before: Op, op: Op, rows: Rows) -> bool:
    """Whether each channel is multiplied by a number."""
    if op.target != MUL or len(op.inputs) != 2 or op.inputs[0] is op.inputs[1]:
        return False
    factor, result = _other(before, op), op.outputs[0]
    channels, at = (result.shape[-1], -1) if result in rows else (result.shape[1], -3)
    if before.outputs[0].shape != result.shape or prod(factor.shape) != channels:
        return False
    return len(factor.shape) >= -at and factor.shape[at] == channels


def _is_sum(before: Op, op: Op, rows: Rows) -> bool:
    """Whether another value of the same images, which shows them alike, is added."""
    if op.target != ADD or len(op.inputs) != 2 or op.inputs[0] is op.inputs[1] or op.number("alpha", 1) != 1:
        return False
    result, other = op.outputs[0], _other(before, op)
    alike = other.shape == before.outputs[0].shape == result.shape
    return alike and rows.get(other) == rows.get(before.outputs[0])


def _goes_on(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    """Whether an op goes on: views anywhere, the factors first, then the sum, then the activation."""
    if _is_view(after, rows):
        return True
    before, targets = ops[-1], [op.target for op in _changes(ops, rows)]
    if not is_floating(*after.inputs, after.outputs[0]):
        return False
    if any(activation_of(op) is not Activation.NONE for op in ops):
        return False
    if _is_factor(before, after, rows):
        return len(targets) == 1
    if _is_sum(before, after, rows):
        return ADD not in targets
    return activation_of(after) is not Activation.NONE


def _addend(ops: Sequence[Op]) -> Tensor | None:
    return next((_other(before, op) for before, op in pairwise(ops) if op.target == ADD), None)


def _sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    addend = _addend(ops)
    return (ops[0].inputs[-2], *([] if addend is None else [addend]))


def _gain_ns(ops: Sequence[Op], terms: Terms) -> float:
    """Return what is saved: the passes of what follows."""
    passes = sum(op.target in (MUL, ADD) or activation_of(op) is not Activation.NONE for op in ops[1:])
    return PASS_NS * ops[0].outputs[0].num_elements * min(passes, 1)


def _weight(right: Tensor, plan: BlockedPlanner) -> HostTensor:
    """Return the second operand as ``[results, channels]``, as layers mostly have it anyhow."""
    held = plan.value(right, DType.FLOAT, contiguous=False)
    turned = HostTensor(held.buffer, held.offset, held.shape[::-1], held.strides[::-1], held.dtype)
    if turned.strides == contiguous_strides(turned.shape):
        return turned
    fresh = plan.scratch(turned.shape)
    emit_copy(plan, fresh, turned)
    return fresh


def _rounded(ops: Sequence[Op], plan: BlockedPlanner) -> list[OpRounding | None]:
    """Return how the results of the ops become half, in the order in which an ending has them; views change none."""
    rounded: list[OpRounding | None] = [op_rounding(ops[0], plan), None, None, None]
    for op in ops[1:]:
        if op.target not in (PERMUTE, *VIEWS):
            rounded[{MUL: 1, ADD: 2}.get(op.target, 3)] = op_rounding(op, plan)
    return rounded


def _emit_product(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    product, result = ops[0], ops[-1].outputs[0]
    left, right = product.inputs[-2:]
    images, channels, height, width = plan.image_sizes(left)
    factor = next((_other(before, op) for before, op in pairwise(ops) if op.target == MUL), None)
    addend = _addend(ops)
    activation = next((found for op in ops[1:] if (found := activation_of(op)) is not Activation.NONE), Activation.NONE)
    ending = conv_blocked.Ending(
        bias=plan.value(product.inputs[0], DType.FLOAT) if len(product.inputs) == 3 else None,
        factor=None if factor is None else plan.value(factor, DType.FLOAT),
        addend=None if addend is None else plan.blocked(addend), activation=activation,
        rounded=_rounded(ops, plan),
    )
    source, weight = plan.blocked(left), _weight(right, plan)
    sizes = (images, 1, channels, product.outputs[0].shape[-1], height, width, height, width)
    window = (1, 1, 1, 1, 0, 0, 1, 1)
    conv_blocked.emit(plan, Shape(*sizes, *window), plan.blocked_output(result), source, weight, ending)


for _target in PRODUCTS:
    register_blocked(_target, BlockedForm(_multiplies, _goes_on, _sources, _gain_ns, _emit_product))
