"""Ops on images with their channels last, ``[N, H, W, C]`` or ``[N * H * W, C]``, computed with channels in blocks.

A network that has its channels second may put them last for a normalisation of each pixel and for linear layers, and
back. In blocks these views are all one, so that nothing is moved, and a linear layer is a convolution of one pixel.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchipu.host.emit import conv_blocked, layer_norm_blocked
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.half_partials import has_half_partials
from torchipu.host.emit.vectors import has_bfloat_products
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.blocked import activations
from torchipu.ops.blocked.activations import is_floating
from torchipu.ops.blocked.endings import ADD, MUL, activation_in, addend_of, bias_of, factor_of, goes_on, rounded_in
from torchipu.ops.blocked.halves import emit_rounded
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
from torchipu.optable.marks import BFLOATS

LAYER_NORM = "aten.native_layer_norm.default"
PRODUCTS = ("aten.addmm.default", "aten.mm.default")
# Measured as those of convolutions: what a pass over an element of its own takes.
PASS_NS = 0.4


# --------------------------------------------------------------------------- which values have their channels last
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


register_rows(LAYER_NORM, _rows_of_elementwise)
for _target in PRODUCTS:
    register_rows(_target, _rows_of_product)
for _target in (MUL, ADD, *activations.TARGETS):
    register_rows(_target, _rows_of_elementwise)


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
    if op.attrs.get(BFLOATS) and has_bfloat_products():
        return False
    is_whole = result.num_elements > 0 and left.num_elements > 0
    bias = len(op.inputs) < 3 or op.inputs[0].shape == result.shape[-1:]
    return is_whole and bias and is_floating(*tensors) and not has_half_partials(op)


def _sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    addend = addend_of(ops)
    return (ops[0].inputs[-2], *([] if addend is None else [addend]))


def _gain_ns(ops: Sequence[Op], terms: Terms) -> float:
    """Return what is saved: a pass over what follows, other than an activation that the plain product ends with."""
    passes = any(op.target in (MUL, ADD) for op in ops)
    return PASS_NS * ops[0].outputs[0].num_elements if passes else 0.0


def _weight(right: Tensor, plan: BlockedPlanner) -> HostTensor:
    """Return the second operand as ``[results, channels]``, as layers mostly have it anyhow."""
    held = plan.value(right, DType.FLOAT, contiguous=False)
    turned = HostTensor(held.buffer, held.offset, held.shape[::-1], held.strides[::-1], held.dtype)
    if turned.strides == contiguous_strides(turned.shape):
        return turned
    fresh = plan.scratch(turned.shape)
    emit_copy(plan, fresh, turned)
    return fresh


def _emit_product(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    product, result = ops[0], ops[-1].outputs[0]
    left, right = product.inputs[-2:]
    images, channels, height, width = plan.image_sizes(left)
    bias = product.inputs[0] if len(product.inputs) == 3 else bias_of(ops)
    factor, addend = factor_of(ops), addend_of(ops)
    ending = conv_blocked.Ending(
        bias=None if bias is None else plan.value(bias, DType.FLOAT),
        factor=None if factor is None else plan.value(factor, DType.FLOAT),
        addend=None if addend is None else plan.blocked(addend), activation=activation_in(ops),
        rounded=rounded_in(ops, plan),
    )
    source, weight = plan.blocked(left), _weight(right, plan)
    sizes = (images, 1, channels, product.outputs[0].shape[-1], height, width, height, width)
    window = (1, 1, 1, 1, 0, 0, 1, 1)
    conv_blocked.emit(plan, Shape(*sizes, *window), plan.blocked_output(result), source, weight, ending)


for _target in PRODUCTS:
    register_blocked(_target, BlockedForm(_multiplies, goes_on, _sources, _gain_ns, _emit_product))
