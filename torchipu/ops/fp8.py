"""Floats of 8 bits: casts from and to them, and their products on a matrix unit that takes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from torchipu._kernels.table.fp8 import (
    FP8_DECODE,
    FP8_ENCODE,
    FP8_SPAN,
    Fp8DecodeInts,
    Fp8DecodeScalars,
    Fp8EncodeInts,
    Fp8EncodeScalars,
    Fp8Specials,
)
from torchipu.device.codelets import vector_codelet
from torchipu.device.compute_sets import elementwise_set, in_first
from torchipu.device.convolutions.sets import OUTPUT, Pass, convolution_sets
from torchipu.device.product_sets import matmul_vertices
from torchipu.device.tilings.pointwise import pointwise
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.errors import ConstraintError
from torchipu.host.emit import half_partial_conv
from torchipu.host.emit.copy import emit_fill
from torchipu.host.emit.half_partials import Partials, emit_half_product
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ir.vertices import Tiling
from torchipu.ops.convolution import Problem, problem_of
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.optable.volume import Volume

if TYPE_CHECKING:
    from torchipu.target import Target


class Format(NamedTuple):
    """A float of 8 bits.

    Attributes:
        mantissa: Bits of it.
        bias: Of the exponent.
        largest: The largest value.
        specials: Which bytes are no finite numbers.
    """

    mantissa: int
    bias: int
    largest: float
    specials: Fp8Specials = Fp8Specials.NEGATIVE_ZERO


F143, F152 = Format(3, 8, 240.0), Format(2, 16, 57344.0)  # ipu_hardware.md 5
FORMATS = {
    "F143": F143, "F152": F152, "e4m3fnuz": F143, "e5m2fnuz": F152,
    "e4m3fn": Format(3, 7, 448.0, Fp8Specials.ONES), "e5m2": Format(2, 15, 57344.0, Fp8Specials.IEEE),
}
"""By the names of the machine, and of torch for its types; the last two from the Open Compute Project's OFP8, 1.0."""
CHANNELS = 32  # a group is twice as wide as one of halves; ipu_hardware.md 5

_CAST = vector_codelet("popops::Cast<quarter>", 2, 2, supervisor=12, worker_half=18, worker_single=19, code_bytes=220,
                       source="estimate: as the cast of halves")


def _lower_cast(op: Op, target: Target) -> tuple[Vertices, ...]:
    value = op.inputs[0]
    if not value.num_elements:
        return ()
    return (replace(elementwise_set(target, _CAST, value.num_elements, DType.HALF), tiling=pointwise),)


def _lower_torch_cast(op: Op, target: Target) -> tuple[Vertices, ...]:
    if not target.amp_macs_fp8:
        raise ConstraintError(
            f"{target.title} has no floats of 8 bits, and the program casts torch.float8_{op.text('format')}",
            op=op.target, source=op.source, block=op.placement,
            remedy="set target='c600', cast to float16 before the compiled region, or call torchipu.fp8, whose bytes "
            "every machine stores",
        )
    return _lower_cast(op, target)


def _product_sets(
    op: Op, target: Target, groups: int, positions: int, inputs: int, outputs: int, tiling: Tiling,
) -> tuple[Vertices, ...]:
    """Compute sets of products of bytes: as of halves with half partials, twice as many channels a cycle."""
    _check_unit(op, target)
    inner = _taken(target, inputs)
    return in_first(
        matmul_vertices(_with_half_partials(op), target, groups, positions, inner, outputs, DType.HALF), tiling,
    )


def _with_half_partials(op: Op) -> Op:
    return replace(op, attrs={**op.attrs, "partials": "half"})


def _taken(target: Target, inputs: int) -> int:
    """Return how many channels of halves take the matrix unit as long as so many of bytes, and as many bytes."""
    return ceil_div(inputs * target.amp_macs_half_half, target.amp_macs_fp8)


def _check_unit(op: Op, target: Target) -> None:
    """Refuse products of bytes on a machine that only stores them."""
    if not target.amp_macs_fp8:
        raise ConstraintError(
            f"the matrix unit of {target.title} takes no floats of 8 bits: there they are storage only",
            op=op.target, source=op.source, block=op.placement,
            remedy="set target='c600', or call torchipu.fp8.dequantise before the product",
        )


def _lower_matmul(op: Op, target: Target) -> tuple[Vertices, ...]:
    left, right = op.inputs
    groups = left.shape[0] if len(left.shape) == 3 else 1
    return _product_sets(op, target, groups, left.shape[-2], left.shape[-1], right.shape[-1], _MATMUL)


def _problem_of(op: Op) -> Problem:
    return problem_of(replace(op, attrs={**op.attrs, "transposed": False}))


def _lower_convolution(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Compute sets of a convolution of bytes, pairs of which the matrix unit takes as it takes halves."""
    _check_unit(op, target)
    v = _problem_of(op).volume
    pairs = replace(v, ic=_taken(target, v.ic))
    return in_first(convolution_sets(Pass(OUTPUT, pairs), _with_half_partials(op), target, DType.HALF), _CONVOLUTION)


def _lower_convolution_backward(op: Op, target: Target) -> tuple[Vertices, ...]:
    v = _problem_of(op).volume
    taps = prod(-(-window // stride) for window, stride in zip(v.window, v.stride, strict=True))
    return (
        *_product_sets(op, target, v.g, v.n * prod(v.size), v.oc * taps, v.ic, _INPUT_GRADIENT),
        *_product_sets(op, target, v.g, v.summands, v.n * prod(v.out), v.oc, _WEIGHT_GRADIENT),
    )


# Half partials are added up in the order of the whole sum, so that a vertex has all summands of its results.
def _matmul_slices(op: Op) -> Slicing:
    last = len(op.inputs[0].shape) - 1
    (*batch, rows, _), columns = op.inputs[0].shape, op.inputs[1].shape[-1]
    axes = [Axis(size, dict.fromkeys(("left", "right", "out"), (place, 1))) for place, size in enumerate(batch)]
    axes.append(Axis(rows, {"left": (last - 1, 1), "out": (last - 1, 1)}))
    axes.append(Axis(columns, {"right": (last, 1), "out": (last, 1)}))
    return Slicing(axes)


def _convolution_slices(op: Op) -> Slicing:
    v = _problem_of(op).volume
    samples = Axis(v.n, {"input": (0, 1), "out": (0, 1)})
    if v.g == 1:
        return Slicing((samples, Axis(v.oc, {"weight": (0, 1), "out": (1, 1)})))
    groups = Axis(v.g, {"input": (1, v.ic), "weight": (0, v.oc), "out": (1, v.oc)})
    return Slicing((samples, groups), attrs=_fewer_groups)


def _input_gradient_slices(op: Op) -> Slicing:
    v = _problem_of(op).volume
    samples = Axis(v.n, {"grad_output": (0, 1), "input": (0, 1), "out": (0, 1)})
    if v.g == 1:
        return Slicing((samples, Axis(v.ic, {"input": (1, 1), "weight": (1, 1), "out": (1, 1), "out1": (1, 1)})))
    return Slicing((samples, _groups_of_gradient(v)), attrs=_fewer_groups)


def _weight_gradient_slices(op: Op) -> Slicing:
    v = _problem_of(op).volume
    if v.g == 1:
        outputs = Axis(v.oc, {"grad_output": (1, 1), "weight": (0, 1), "out1": (0, 1)})
        return Slicing((Axis(v.ic, {"input": (1, 1), "weight": (1, 1), "out": (1, 1), "out1": (1, 1)}), outputs), (1,))
    whole = Axis(1, {})  # of the samples, of which groups come second everywhere
    return Slicing((whole, _groups_of_gradient(v)), (1,), attrs=_fewer_groups)


def _groups_of_gradient(v: Volume) -> Axis:
    return Axis(v.g, {
        "grad_output": (1, v.oc), "input": (1, v.ic), "weight": (0, v.oc), "out": (1, v.ic), "out1": (0, v.oc),
    })


def _fewer_groups(ranges: Sequence[tuple[int, int]]) -> dict[str, object]:
    begin, end = ranges[1]
    return {"groups": end - begin}


_MATMUL, _CONVOLUTION = sliced(_matmul_slices), sliced(_convolution_slices)
_INPUT_GRADIENT, _WEIGHT_GRADIENT = sliced(_input_gradient_slices), sliced(_weight_gradient_slices)


def _emit_quantise(op: Op, plan: HostPlanner) -> None:
    is_torchs = op.target == TORCH_ENCODE
    held = plan.value(op.inputs[0], DType.FLOAT)
    scale = 1.0 if is_torchs else 2.0 ** -op.integer("scale")
    is_stochastic = op.target == STOCHASTICALLY
    format = FORMATS[op.text("format")]
    plan.step(
        FP8_ENCODE, [plan.output(op.outputs[0])], [held, *([plan.random_state(op)] if is_stochastic else [])],
        ints=Fp8EncodeInts(
            elements=held.num_elements, mantissa=format.mantissa, bias=format.bias, specials=format.specials,
            saturates=not is_torchs and op.flag("saturates"), is_stochastic=is_stochastic,
        ),
        scalars=Fp8EncodeScalars(scale, format.largest), items=-(-held.num_elements // FP8_SPAN),
    )


def _decoded(plan: HostPlanner, tensor: Tensor, name: str, scale: int, into: HostTensor | None = None) -> HostTensor:
    """Emit the values of bytes as floats."""
    format = FORMATS[name]
    held = plan.value(tensor)
    values = into or plan.scratch(held.shape)
    plan.step(
        FP8_DECODE, [values], [held],
        ints=Fp8DecodeInts(held.num_elements, format.mantissa, format.bias, format.specials),
        scalars=Fp8DecodeScalars(2.0**scale), items=-(-held.num_elements // FP8_SPAN),
        writes=[Blocks.of((held.num_elements,), (FP8_SPAN,))],
    )
    return values


def _emit_dequantise(op: Op, plan: HostPlanner) -> None:
    into = plan.output(op.outputs[0], DType.FLOAT)
    scale = 0 if op.target == TORCH_DECODE else op.integer("scale")
    _decoded(plan, op.inputs[0], op.text("format"), scale, into)


def _emit_matmul(op: Op, plan: HostPlanner) -> None:
    names = (op.text(f"{side}_format") for side in ("left", "right"))
    left, right = (_decoded(plan, tensor, name, 0) for tensor, name in zip(op.inputs, names, strict=True))
    result = op.outputs[0]
    emit_half_product(
        plan, plan.output(result, DType.FLOAT), left, right, Partials(plan.rounding(op, result), group=CHANNELS),
        alpha=2.0 ** op.integer("scale"),
    )


def _emit_convolution(op: Op, plan: HostPlanner) -> None:
    p, result = _problem_of(op), op.outputs[0]
    held = plan.output(result, DType.FLOAT)
    if p.is_empty:
        emit_fill(plan, held, 0.0)
        return
    names = (op.text(f"{side}_format") for side in ("input", "weight"))
    x, weight = (_decoded(plan, tensor, name, 0) for tensor, name in zip(op.inputs, names, strict=True))
    half_partial_conv.emit_forward(
        plan, p.volume, held, x, weight, None, Partials(plan.rounding(op, result), group=CHANNELS),
        alpha=2.0 ** op.integer("scale"),
    )


def _emit_convolution_backward(op: Op, plan: HostPlanner) -> None:
    p, (dx, dw) = _problem_of(op), op.outputs
    names, scales = op.text("formats").split(","), op.integers("scales")
    held = {one: plan.output(one, DType.FLOAT) for one in (dx, dw) if plan.wanted(one)}
    if p.is_empty:
        for one in held.values():
            emit_fill(plan, one, 0.0)
        return
    dy, x, weight = (_decoded(plan, tensor, name, 0) for tensor, name in zip(op.inputs, names, strict=True))
    if dx in held:
        half_partial_conv.emit_input_gradient(
            plan, p.volume, held[dx], dy, weight, Partials(plan.rounding(op, dx), group=CHANNELS),
            alpha=2.0 ** (scales[0] + scales[2]),
        )
    if dw in held:
        half_partial_conv.emit_weight_gradient(
            plan, p.volume, held[dw], dy, x, Partials(plan.rounding(op, dw), group=CHANNELS),
            alpha=2.0 ** (scales[0] + scales[1]),
        )


CODES = (DType.UNSIGNED_CHAR,)
STOCHASTICALLY = "torchipu.fp8_quantise_stochastically.default"
TORCH_ENCODE, TORCH_DECODE = "torchipu.float8_encode.default", "torchipu.float8_decode.default"

register(
    OpSpec("torchipu.fp8_quantise.default", "fp8_quantise", _lower_cast, _emit_quantise, dtypes=FLOATING),
    OpSpec(STOCHASTICALLY, "fp8_quantise", _lower_cast, _emit_quantise, dtypes=FLOATING, is_random=True),
    OpSpec("torchipu.fp8_dequantise.default", "fp8_dequantise", _lower_cast, _emit_dequantise, dtypes=CODES),
    OpSpec(TORCH_ENCODE, "float8_encode", _lower_torch_cast, _emit_quantise, dtypes=FLOATING),
    OpSpec(TORCH_DECODE, "float8_decode", _lower_torch_cast, _emit_dequantise, dtypes=CODES),
    OpSpec("torchipu.fp8_matmul.default", "fp8_matmul", _lower_matmul, _emit_matmul, dtypes=CODES),
    OpSpec("torchipu.fp8_convolution.default", "fp8_convolution", _lower_convolution, _emit_convolution, dtypes=CODES),
    OpSpec(
        "torchipu.fp8_convolution_backward.default", "fp8_convolution_backward", _lower_convolution_backward,
        _emit_convolution_backward, dtypes=CODES,
    ),
)
