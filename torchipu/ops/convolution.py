"""The records of convolutions: one to three dimensions, plain and transposed, and their gradients.

A transposed convolution is the input gradient of a plain one, whose input it gives and whose output it takes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from torchipu._kernels.table.conv import CONV_BIAS, ConvBiasInts
from torchipu.device.bias import with_bias
from torchipu.device.convolutions.sets import INPUT, OUTPUT, WEIGHT, Pass, convolution_sets, summand_tiles
from torchipu.device.tilings.channel_sums import ChannelSums
from torchipu.device.tilings.convolutions import input_product, output_product, weight_product
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.products import Multiplication
from torchipu.host.emit import bfloat_conv, conv, conv_product, half_partial_conv, volume
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.conv_weights import weights_as_held
from torchipu.host.emit.copy import emit_fill
from torchipu.host.emit.half_partials import Partials, partials_of
from torchipu.host.emit.items import grain_for
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.arguments import at_least
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Product, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.marks import BFLOATS
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.optable.volume import Volume

if TYPE_CHECKING:
    from torchipu.target import Target


@dataclass(frozen=True, slots=True)
class Problem:
    """A plain convolution of three dimensions; unused ones come first and have size 1.

    Attributes:
        volume: Sizes; of a transposed convolution those of the plain one that it is the gradient of.
        dimensions: Dimensions of the user's convolution.
        is_transposed: Whether the op's input is the plain convolution's output.
    """

    volume: Volume
    dimensions: int
    is_transposed: bool

    @property
    def planar(self) -> Shape:
        """The same sizes without the depth."""
        v = self.volume
        sizes = (v.size, v.out, v.window, v.stride, v.padding, v.dilation)
        return Shape(v.n, v.g, v.ic, v.oc, *(value for triple in sizes for value in triple[1:]))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to multiply."""
        return self.volume.macs == 0

    @property
    def is_planar(self) -> bool:
        """Whether it is one of at most two dimensions and not of nothing."""
        return self.dimensions <= 2 and not self.is_empty

    @property
    def is_plain(self) -> bool:
        """Whether it is a convolution of at most two dimensions, not transposed and not of nothing."""
        return self.is_planar and not self.is_transposed


def problem_of(op: Op) -> Problem:
    """Return the sizes of a convolution or of its gradient."""
    x, weight = op.needed("input"), op.needed("weight")
    dimensions = len(weight.shape) - 2
    stride, padding, dilation = (_triple(op, name, dimensions) for name in ("stride", "padding", "dilation"))
    transposed = op.flag("transposed")
    groups = op.integer("groups")
    given, window = _filled(x.shape[2:]), _filled(weight.shape[2:])
    if transposed:
        extra = _triple(op, "output_padding", dimensions, default=0)
        size = _filled(tuple(
            (given[i] - 1) * stride[i] - 2 * padding[i] + dilation[i] * (window[i] - 1) + extra[i] + 1 for i in range(3)
        ))
        out = given
    else:
        size = given
        out = _filled(tuple(
            (given[i] + 2 * padding[i] - dilation[i] * (window[i] - 1) - 1) // stride[i] + 1 for i in range(3)
        ))
    # Either way the first size of the weights counts the channels of the plain convolution's output.
    sizes = Volume(
        x.shape[0], groups, weight.shape[1], weight.shape[0] // groups, size, out, window,
        stride, padding, dilation,
    )
    return Problem(sizes, dimensions, transposed)


def _filled(values: tuple[int, ...], fill: int = 1) -> tuple[int, int, int]:
    """Return one to three sizes as three."""
    first, second, third = (fill,) * (3 - len(values)) + tuple(values)
    return first, second, third


def _triple(op: Op, name: str, dimensions: int, default: int | None = None) -> tuple[int, int, int]:
    """Return an argument of one value, or of one a dimension, as three; absent ones do nothing."""
    values = op.integers(name)
    values = values * dimensions if len(values) == 1 else values
    neutral = {"stride": 1, "dilation": 1}.get(name, 0)
    return _filled(values, neutral if default is None else default)


def _supports(op: Op) -> bool:
    x, weight = op.operand("input"), op.operand("weight")
    return x is not None and weight is not None and len(x.shape) == len(weight.shape) and 3 <= len(x.shape) <= 5


# --------------------------------------------------------------------------- host side
def _emit_plain(
    plan: HostPlanner, p: Problem, out: HostTensor, x: HostTensor, weight: HostTensor, bias: HostTensor | None,
    partials: Partials | None,
) -> None:
    """Emit the output of the plain convolution; its partials are half where it is said how they are rounded."""
    if partials is not None:
        half_partial_conv.emit_forward(plan, p.volume, out, x, weight, bias, partials)
    elif p.dimensions == 3:
        volume.emit_forward(plan, p.volume, out, x, weight, bias)
    else:
        conv.emit_forward(plan, p.planar, out, x, weight, bias)


def _emit_input_gradient(
    plan: HostPlanner, p: Problem, dx: HostTensor, dy: HostTensor, weight: HostTensor, partials: Partials | None,
) -> None:
    if partials is not None:
        half_partial_conv.emit_input_gradient(plan, p.volume, dx, dy, weight, partials)
    elif p.dimensions == 3:
        volume.emit_input_gradient(plan, p.volume, dx, dy, weight)
    else:
        conv.emit_input_gradient(plan, p.planar, dx, dy, weight)


def _weights(op: Op, plan: HostPlanner, *, is_plain: bool, partials: Partials | None) -> HostTensor:
    """Return the weights for the plain convolution, or for the gradient of its input, as its kernels read them."""
    p, weight = problem_of(op), op.needed("weight")
    is_planar = is_plain and partials is None and p.is_planar
    if is_planar and not p.planar.is_of_whole_images and conv_product.serves(p.planar):
        return weights_as_held(plan, weight)
    return plan.value(weight, DType.FLOAT)


def _emit_weight_gradient(
    plan: HostPlanner, p: Problem, dw: HostTensor, dy: HostTensor, x: HostTensor, partials: Partials | None,
) -> None:
    if partials is not None:
        half_partial_conv.emit_weight_gradient(plan, p.volume, dw, dy, x, partials)
    elif p.dimensions == 3:
        volume.emit_weight_gradient(plan, p.volume, dw, dy, x)
    else:
        conv.emit_weight_gradient(plan, p.planar, dw, dy, x)


def is_bfloat_product(op: Op) -> bool:
    """Whether a convolution is one of bfloats that a processor may compute as a product of matrices of these."""
    p = problem_of(op)
    return bool(op.attrs.get(BFLOATS)) and p.is_plain and bfloat_conv.serves(p.planar)


def _emit_bfloat_product(op: Op, plan: HostPlanner) -> None:
    x, bias = plan.value(op.needed("input"), DType.BFLOAT, contiguous=False), op.operand("bias")
    weight = plan.value(op.needed("weight"), DType.BFLOAT)
    added = None if bias is None else plan.value(bias, DType.FLOAT)
    is_level = problem_of(op).dimensions == 2 and x.strides[1] == 1 and x.shape[1] > 1
    result = op.outputs[0]
    out = plan.product_output(result, x if is_level and x.is_dense else None)
    bfloat_conv.emit_forward(plan, problem_of(op).planar, out, x, weight, added)


def _emit_convolution(op: Op, plan: HostPlanner) -> None:
    if plan.multiplies_bfloats and is_bfloat_product(op):
        _emit_bfloat_product(op, plan)
        return
    p, out = problem_of(op), plan.output(op.outputs[0], DType.FLOAT)
    partials = partials_of(op, op.outputs[0], plan)
    bias = op.operand("bias")
    added = plan.value(bias, DType.FLOAT) if bias is not None else None
    if p.is_empty:
        emit_fill(plan, out, 0.0)
    else:
        x = plan.value(op.needed("input"), DType.FLOAT)
        weight = _weights(op, plan, is_plain=not p.is_transposed, partials=partials)
        if not p.is_transposed:
            _emit_plain(plan, p, out, x, weight, added, partials)
            return
        _emit_input_gradient(plan, p, out, x, weight, partials)
    if added is not None and out.num_elements:
        volume.emit_bias(plan, out, added, out.shape[1])


def present_results(op: Op) -> tuple[bool, ...]:
    """Which of the three gradients the op has."""
    return op.flags("present", op.flags("output_mask"))


def _emit_backward(op: Op, plan: HostPlanner) -> None:
    dx = op.outputs[0] if present_results(op)[0] else None
    if dx is not None and plan.wanted(dx):
        p, dy = problem_of(op), op.needed("grad_output")
        if plan.multiplies_bfloats and is_bfloat_product(op) and bfloat_conv.serves_gradients(p.planar):
            pair = plan.value(dy, DType.BFLOAT, contiguous=False), plan.value(op.needed("weight"), DType.BFLOAT)
            bfloat_conv.emit_input_gradient(plan, p.planar, plan.product_output(dx), *pair)
            emit_parameter_gradients(op, plan)
            return
        held, partials = plan.output(dx, DType.FLOAT), partials_of(op, dx, plan)
        if p.is_empty:
            emit_fill(plan, held, 0.0)
        elif p.is_transposed:
            held_weight = _weights(op, plan, is_plain=True, partials=partials)
            _emit_plain(plan, p, held, plan.value(dy, DType.FLOAT), held_weight, None, partials)
        else:
            pair = plan.value(dy, DType.FLOAT), _weights(op, plan, is_plain=False, partials=partials)
            _emit_input_gradient(plan, p, held, *pair, partials)
    emit_parameter_gradients(op, plan)


def weight_gradient(op: Op) -> Tensor | None:
    """Return the gradient of the weights, where the op has it."""
    present = present_results(op)
    return op.outputs[present[0]] if present[1] else None


def emit_parameter_gradients(op: Op, plan: HostPlanner, *, has_weight: bool = True) -> None:
    """Emit the gradients of the weights, unless ``has_weight`` says no, and of the bias, where they are wanted."""
    dy, x = (op.needed(name) for name in ("grad_output", "input"))
    p, results = problem_of(op), iter(op.outputs)
    _, dw, db = (next(results) if given else None for given in present_results(op))
    has_weight = has_weight and dw is not None and plan.wanted(dw)
    if not has_weight and (db is None or not plan.wanted(db)):
        return
    is_of_bfloats = plan.multiplies_bfloats and is_bfloat_product(op) and bfloat_conv.serves_weight(p.planar)
    if dw is not None and has_weight and is_of_bfloats:
        held_dy, held_x = (plan.value(tensor, DType.BFLOAT, contiguous=False) for tensor in (dy, x))
        bfloat_conv.emit_weight_gradient(plan, p.planar, plan.output(dw, DType.FLOAT), held_dy, held_x)
        has_weight = False
    if not has_weight and (db is None or not plan.wanted(db)):
        return
    dy_value = plan.value(dy, DType.FLOAT)
    if dw is not None and has_weight:
        held = plan.output(dw, DType.FLOAT)
        if p.is_empty:
            emit_fill(plan, held, 0.0)
        else:
            pair = dy_value, plan.value(x, DType.FLOAT)
            first, second = reversed(pair) if p.is_transposed else pair
            _emit_weight_gradient(plan, p, held, first, second, partials_of(op, dw, plan, product=1))
    if db is not None and plan.wanted(db):
        _emit_bias_gradient(plan, plan.output(db, DType.FLOAT), dy_value)


def _emit_bias_gradient(plan: HostPlanner, db: HostTensor, dy: HostTensor) -> None:
    samples, channels, positions = dy.shape[0], dy.shape[1], prod(dy.shape[2:])
    plan.step(
        CONV_BIAS, [db], [dy], ints=ConvBiasInts(samples, channels, positions), items=channels,
        grain=grain_for(channels, dy.num_elements, 16384), writes=[Blocks.of((channels,), (1,))],
    )


# --------------------------------------------------------------------------- device side
def _forward_pass(p: Problem) -> Pass:
    return Pass(INPUT if p.is_transposed else OUTPUT, p.volume)


def _backward_passes(p: Problem) -> tuple[Pass, Pass]:
    """The input's gradient, then the weights', of which positions are the summands."""
    return Pass(OUTPUT if p.is_transposed else INPUT, p.volume), Pass(WEIGHT, p.volume)


def _forward_products(op: Op) -> tuple[Product, ...]:
    return (_forward_pass(problem_of(op)).product,)


def _backward_products(op: Op) -> tuple[Product, ...]:
    return tuple(one.product for one in _backward_passes(problem_of(op)))


def _forward_tiles(op: Op, target: Target) -> tuple[int, ...]:
    return summand_tiles((_forward_pass(problem_of(op)),), op, target)


def _backward_tiles(op: Op, target: Target) -> tuple[int, ...]:
    return summand_tiles(_backward_passes(problem_of(op)), op, target)


def _sums_channels_first(op: Op) -> bool:
    """Whether the elements of a window are added up one after the other, as half partials are."""
    return op.attrs.get("partials") == "half"


def _describe_convolution(op: Op) -> Multiplication:
    bias = None if op.operand("bias") is None else "bias"
    describe = input_product if op.flag("transposed") else output_product
    return describe(
        problem_of(op).volume, "input", "weight", "out", bias, channels_first=_sums_channels_first(op)
    )


def _describe_gradient(number: int, op: Op) -> Multiplication:
    """Return the product of the input's gradient, or the weights'."""
    is_transposed, result = op.flag("transposed"), "out1" if number and present_results(op)[0] else "out"
    if number == 0:
        describe = output_product if is_transposed else input_product
        return describe(
            problem_of(op).volume, "grad_output", "weight", result, channels_first=_sums_channels_first(op)
        )
    pair = ("input", "grad_output") if is_transposed else ("grad_output", "input")
    return weight_product(problem_of(op).volume, *pair, result)


def _lower_convolution(op: Op, target: Target) -> tuple[Vertices, ...]:
    dtype, result = op.inputs[0].dtype, op.outputs[0]
    sets = convolution_sets(_forward_pass(problem_of(op)), op, target, dtype, _describe_convolution)
    return with_bias(sets, target, op.operand("bias"), result)


def _lower_backward(op: Op, target: Target) -> tuple[Vertices, ...]:
    sets: tuple[Vertices, ...] = ()
    present = present_results(op)
    for number, one in enumerate(_backward_passes(problem_of(op))):
        if present[number]:
            describe = partial(_describe_gradient, number)
            sets += convolution_sets(one, op, target, op.inputs[0].dtype, describe)
    return _with_bias_gradient(op, sets) if sets and present[2] else sets


def _with_bias_gradient(op: Op, sets: tuple[Vertices, ...]) -> tuple[Vertices, ...]:
    """Let the first set sum up the gradient of the bias beside its own work, and the last one add up the partials."""
    dy, number = op.needed("grad_output"), sum(present_results(op)[:2])
    samples, channels, places = dy.shape[0], dy.shape[1], prod(dy.shape[2:])
    # Sets whose vertices an earlier one has taken over have none to add sums to.
    working = [place for place, one in enumerate(sets) if one.tiling is not nothing_left]
    shares = sets[working[0]].elements // max(1, channels) if len(working) > 1 else 1
    sums = ChannelSums("grad_output", number, samples, channels, places, max(1, min(shares, samples * places)))
    if 0 in dy.shape or any(one.tiling is None for one in sets):
        return tuple(replace(one, tiling=None) for one in sets)
    made = list(sets)
    for number, tiling in ((working[0], sums.first), (working[-1], sums.last))[: len(working)]:
        given = sets[number].tiling
        assert given is not None
        made[number] = replace(sets[number], tiling=tiling(given))
    return tuple(made)


_WINDOWS = at_least(1, "stride", "dilation", "groups"), at_least(0, "padding", "output_padding")
register(
    OpSpec(
        "aten.convolution.default", "convolution", _lower_convolution, _emit_convolution, dtypes=FLOATING,
        constraints=_WINDOWS, supports=_supports, products=_forward_products, summand_tiles=_forward_tiles,
    ),
    OpSpec(
        "aten.convolution_backward.default", "convolution_backward", _lower_backward, _emit_backward, dtypes=FLOATING,
        constraints=_WINDOWS, supports=_supports, products=_backward_products, summand_tiles=_backward_tiles,
    ),
)
