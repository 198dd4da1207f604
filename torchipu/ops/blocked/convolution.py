"""A convolution and what follows it, with channels in blocks: a normalisation, a sum, an activation.

A depthwise convolution may go on behind one of a single pixel, with what follows it in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit import conv_blocked, depthwise_blocked, merged_groups, pointwise_depthwise, winograd
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.conv_weights import weights_as_held
from torchipu.host.emit.vectors import has_bfloat_products, vector_lanes
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.blocked.activations import activation_of, is_of_floats
from torchipu.ops.blocked.endings import activation_in, addend_of, factor_of, goes_on, rounded_in
from torchipu.ops.blocked.norm import NORM, norm_of
from torchipu.ops.blocked.views import is_view, without_views
from torchipu.ops.convolution import is_bfloat_product, problem_of
from torchipu.ops.fusions.conv_epilogue import ADD, CONVOLUTION, adds_like
from torchipu.ops.fusions.picked import RELU
from torchipu.optable.blocked import BlockedForm, BlockedPlanner, Rows, Terms, register_blocked
from torchipu.optable.host_tensor import HostTensor

# Measured with vectors of eight lanes; both scale with them.
PLAIN_NS, BLOCKED_NS = 0.0345, 0.0265  # of a multiplication and addition
# Saved where a group has one channel: for a row of an image, which the plain form lays out by itself, for an element of
# it, and for a result. Measured with vectors of eight and of sixteen lanes, for which they are about alike, and raised
# by what `layouts.REORDER_NS` was seen to say too much there.
DEPTHWISE_ROW_NS, DEPTHWISE_INPUT_NS, DEPTHWISE_NS = 8.0, 0.4, 0.4
# Saved besides where there are several groups, of whose few channels the plain form reads a pixel for few sums: for a
# row of results, and for a multiplication and addition where windows have strides. Measured with 8 and with 16 lanes.
GROUPED_ROW_NS, GROUPED_STRIDED_NS = 8.0, 0.008
# Saved of a multiplication and addition where groups fill half a vector, products with the zeros between two groups
# counted, of lines in windows of so many places or more: with shorter ones, and of images, the plain form is quicker.
NARROW_NS, NARROW_WINDOW = 0.014, 7
# Saved besides for an element of the input where windows that do not overlap are four columns apart or more, as those
# of patches: the plain form reads them one by one. By lanes.
PATCH_NS = {8: 0.2, 16: 1.2}
PATCH_STRIDE = 4
ACTIVATION_NS = 0.4  # for an element, where it would be a pass of its own
PACK_NS = 0.8  # of a weight
BFLOAT_NS = 0.0105  # of one of bfloats, where the plain form is a product of matrices of these


def _shape(op: Op) -> Shape:
    return problem_of(op).planar


def _serves(op: Op, rows: Rows) -> bool:
    problem = problem_of(op)
    if not is_of_floats(op, rows) or not problem.is_planar:
        return False
    s = problem.planar
    if problem.is_transposed:
        return conv_blocked.serves_input(s)
    return depthwise_blocked.serves(s) or conv_blocked.serves(_merged(s))


def _merged(s: Shape) -> Shape:
    """Return the convolution that is computed: two groups in one where they fill half a vector and that pays."""
    are_lines = s.h == s.kh == 1 and s.kw >= NARROW_WINDOW
    return (merged_groups.merged(s) if are_lines else None) or s


def _parted(ops: Sequence[Op]) -> tuple[Sequence[Op], Sequence[Op]]:
    """Return a convolution of one pixel and what follows it, if there is one, then the last, likewise."""
    last = max(place for place, op in enumerate(ops) if op.target == CONVOLUTION)
    return ops[:last], ops[last:]


def _goes_deep(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    """Whether a depthwise convolution reads what one of a pixel makes, and nothing else of that is asked."""
    if problem_of(ops[0]).is_transposed or problem_of(after).is_transposed:
        return False
    if any(op.target in (CONVOLUTION, ADD) for op in ops[1:]) or after.needed("weight") is ops[-1].outputs[0]:
        return False
    return _serves(after, rows) and pointwise_depthwise.serves(_shape(ops[0]), _shape(after))


def _follows(ops: Sequence[Op], after: Op, rows: Rows) -> bool:
    """Whether an op goes on: the normalisation first, then the sum, then the activation, or a depthwise convolution."""
    if after.target == CONVOLUTION:
        return _goes_deep(ops, after, rows)
    _, ops = _parted(ops)
    if is_view(after, rows) or len(without_views(ops)) < len(ops):
        return goes_on(ops, after, rows)
    if not is_of_floats(after, rows) or activation_of(ops[-1]) is not Activation.NONE:
        return False
    if after.target == NORM:
        return len(ops) == 1
    if after.target == ADD:
        return ops[-1].target != ADD and adds_like(ops[-1], after)
    return activation_of(after) is not Activation.NONE


def _sources(ops: Sequence[Op]) -> Sequence[Tensor]:
    addend = addend_of(_parted(ops)[1])
    read = [] if _either(ops) else [ops[0].needed("input")]
    return (*read, *([] if addend is None else [addend]))


def _either(ops: Sequence[Op]) -> Sequence[Tensor]:
    """Return the input, where the kernel reads it row-major as well."""
    inner, _ = _parted(ops)
    reads_plain = not inner and not problem_of(ops[0]).is_transposed and _reads_plain(_shape(ops[0]))
    return [ops[0].needed("input")] if reads_plain else []


def _reads_plain(s: Shape) -> bool:
    """Whether the kernel reads a row-major input: so few channels fill a block badly, or each is laid out anyhow."""
    return s.ic * s.g <= vector_lanes() and not depthwise_blocked.serves(s)


def product_gain_ns(s: Shape, weights: int, terms: Terms, *, is_plain: bool = False) -> float:
    """Return the nanoseconds that blocks save of a product that is a convolution of these sizes.

    Args:
        s: Sizes.
        weights: To be packed.
        terms: Of the plan.
        is_plain: Whether the input is row-major.
    """
    lanes = vector_lanes()
    padded = -(-s.oc // lanes) * lanes / s.oc
    gain = s.macs * (PLAIN_NS - BLOCKED_NS * padded) * 8 / lanes
    if not terms.packs_ahead:
        gain -= PACK_NS * weights * padded
    if transforms(s, terms) and not is_plain:
        gain += winograd.saved_ns(s, packs_ahead=terms.packs_ahead)
    return gain


def bfloat_gain_ns(s: Shape, terms: Terms) -> float:
    """Return what a product of these sizes saves in the plain form where that is one of bfloats."""
    if terms.is_strict or not has_bfloat_products():
        return 0.0
    return s.macs * (PLAIN_NS * 8 / vector_lanes() - BFLOAT_NS)


def grouped_gain_ns(s: Shape, level_ns: float, strided_ns: float) -> float:
    """Return what blocks save besides of a convolution of several groups, or of one of its gradients.

    Args:
        s: Sizes of the convolution.
        level_ns: Saved for a multiplication and addition without strides.
        strided_ns: Likewise with strides.
    """
    if s.g == 1:
        return 0.0
    return GROUPED_ROW_NS * s.n * s.g * s.oc * s.oh + s.macs * (strided_ns if s.sh * s.sw > 1 else level_ns)


def _patch_gain_ns(s: Shape) -> float:
    """Return what blocks save besides of a convolution whose windows are patches."""
    are_patches = s.sw >= max(PATCH_STRIDE, s.kw) and s.sh >= s.kh
    return PATCH_NS[vector_lanes()] * s.input_elements if are_patches else 0.0


def transforms(s: Shape, terms: Terms) -> bool:
    """Whether a convolution of these sizes over blocks is computed by Winograd's transforms."""
    return not terms.is_strict and winograd.serves(s) and winograd.saved_ns(s, packs_ahead=terms.packs_ahead) > 0


def input_gain_ns(s: Shape, terms: Terms) -> float:
    """Return the nanoseconds that blocks save of the gradient of the input of a convolution of these sizes."""
    parts = [part.shape for part in conv_blocked.input_parts(s) if part.shape.macs]
    return sum(product_gain_ns(part, part.g * part.oc * part.summands, terms) for part in parts)


def depthwise_gain_ns(s: Shape) -> float:
    """Return the nanoseconds that blocks save of a convolution of single channels, or of its input's gradient."""
    laid_out = DEPTHWISE_ROW_NS * s.n * s.g * s.h + DEPTHWISE_INPUT_NS * s.input_elements
    return laid_out + DEPTHWISE_NS * s.output_elements


def _gain_ns(ops: Sequence[Op], terms: Terms) -> float:
    inner, ops = _parted(ops)
    if inner:
        return _gain_ns(inner, terms) + _gain_ns(ops, terms)
    s = _shape(ops[0])
    if problem_of(ops[0]).is_transposed:
        return input_gain_ns(s, terms)
    last = without_views(ops)[-1]
    ended = ACTIVATION_NS * s.output_elements if last.target not in (CONVOLUTION, RELU) else 0.0
    if depthwise_blocked.serves(s):
        return depthwise_gain_ns(s) + ended
    if _merged(s) is not s:
        return NARROW_NS * 8 / vector_lanes() * s.macs + ended
    saved = product_gain_ns(s, s.g * s.oc * s.summands, terms, is_plain=_reads_plain(s))
    if len(without_views(ops)) == 1 and is_bfloat_product(ops[0]):
        return saved - bfloat_gain_ns(s, terms)
    return saved + grouped_gain_ns(s, 0.0, GROUPED_STRIDED_NS) + _patch_gain_ns(s) + ended


def _ending(ops: Sequence[Op], plan: BlockedPlanner) -> conv_blocked.Ending:
    """Return what becomes of the sums of a convolution."""
    bias, factor, addend = ops[0].operand("bias"), factor_of(ops), addend_of(ops)
    flags, epsilon = 0, 0.0
    norm: list[HostTensor] = []
    if len(ops) > 1 and ops[1].target == NORM:
        flags, norm, epsilon = norm_of(ops[1], plan)
    return conv_blocked.Ending(
        bias=None if bias is None else plan.value(bias, DType.FLOAT), norm=norm,
        factor=None if factor is None else plan.value(factor, DType.FLOAT),
        addend=None if addend is None else plan.blocked(addend), flags=flags, epsilon=epsilon,
        activation=activation_in(ops), rounded=rounded_in(ops, plan),
    )


def emit_input_gradient(
    plan: BlockedPlanner, s: Shape, dx: HostTensor, dy: HostTensor, weight: HostTensor, ending: conv_blocked.Ending,
) -> None:
    """Emit the gradient of the input of a convolution of these sizes, or a transposed convolution, which is one.

    See `conv_blocked.emit_input_gradient`, whose products may be transformed.
    """
    is_transformed = winograd.serves(s) and transforms(winograd.input_shape(s), plan.terms)
    emit = winograd.emit_input_gradient if is_transformed else conv_blocked.emit_input_gradient
    emit(plan, s, dx, dy, weight, ending)


def emit_convolution(
    plan: BlockedPlanner, s: Shape, out: HostTensor, x: HostTensor, weight: HostTensor, ending: conv_blocked.Ending,
) -> None:
    """Emit a convolution of values in the blocked layout; see `conv_blocked.emit`, likewise."""
    emit = winograd.emit if transforms(s, plan.terms) else conv_blocked.emit
    emit(plan, s, out, x, weight, ending)


def _emit(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    inner, ops = _parted(ops)
    if inner:
        _emit_both(inner, ops, plan)
        return
    convolution, s = ops[0], _shape(ops[0])
    x, weight = convolution.needed("input"), convolution.needed("weight")
    ending = _ending(ops, plan)
    if problem_of(convolution).is_transposed:
        source, held = plan.blocked(x), weights_as_held(plan, weight)
        emit_input_gradient(plan, s, plan.blocked_output(ops[-1].outputs[0]), source, held, ending)
        return
    is_plain = _reads_plain(s) and not plan.is_blocked(x)
    out = plan.blocked_output(ops[-1].outputs[0])
    if _merged(s) is s:
        held = weights_as_held(plan, weight)
    else:
        held, s = merged_groups.emit_weights(plan, s, plan.value(weight, DType.FLOAT)), _merged(s)
    source = plan.value(x, DType.FLOAT) if is_plain else plan.blocked(x)
    if depthwise_blocked.serves(s):
        depthwise_blocked.emit(plan, s, out, source, held, ending, is_plain=is_plain)
    elif is_plain:
        conv_blocked.emit(plan, s, out, source, held, ending, is_plain=True)
    else:
        emit_convolution(plan, s, out, source, held, ending)


def _emit_both(inner: Sequence[Op], ops: Sequence[Op], plan: BlockedPlanner) -> None:
    """Emit a convolution of one pixel and the depthwise one behind it."""
    endings = _ending(inner, plan), _ending(ops, plan)
    source = plan.blocked(inner[0].needed("input"))
    weights = weights_as_held(plan, inner[0].needed("weight")), plan.value(ops[0].needed("weight"), DType.FLOAT)
    out = plan.blocked_output(ops[-1].outputs[0])
    pointwise_depthwise.emit(plan, _shape(inner[0]), _shape(ops[0]), out, source, weights, endings)


def _reads_rows(ops: Sequence[Op]) -> bool:
    """Whether the plain form is a product of matrices of bfloats, which reads images in any order."""
    return len(without_views(ops)) == 1 and is_bfloat_product(ops[0]) and has_bfloat_products()


register_blocked(
    CONVOLUTION, BlockedForm(_serves, _follows, _sources, _gain_ns, _emit, reads_rows=_reads_rows, either=_either),
)
