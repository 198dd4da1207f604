"""Floats of 8 bits: casts from and to them, and their products on a matrix unit that takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torchipu._kernels import fp8 as kernels
from torchipu.errors import ConstraintError
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.half_partials import emit_half_product
from torchipu.ops.lowering import elementwise_set, vector_codelet
from torchipu.ops.matrix_unit import matmul_vertices
from torchipu.ops.spec import FLOATING, HostPlanner, HostTensor, OpSpec, Vertices, register

if TYPE_CHECKING:
    from torchipu.target import Target

MANTISSA_BIAS_LARGEST = {"F143": (3, 8, 240.0), "F152": (2, 16, 57344.0)}  # ipu_hardware.md 5
CHANNELS = 32  # a group is twice as wide as one of halves; ipu_hardware.md 5
SPAN = 4096  # as in fp8_body.h

_CAST = vector_codelet("popops::Cast<quarter>", 2, 2, supervisor=12, worker_half=18, worker_single=19, code_bytes=220,
                       source="estimate: as the cast of halves")


def _lower_cast(op: Op, target: Target) -> tuple[Vertices, ...]:
    value = op.inputs[0]
    return (elementwise_set(target, _CAST, value.num_elements, DType.HALF),) if value.num_elements else ()


def _lower_matmul(op: Op, target: Target) -> tuple[Vertices, ...]:
    if not target.amp_macs_fp8:
        raise ConstraintError(
            f"the matrix unit of {target.title} takes no floats of 8 bits: there they are storage only",
            op=op.target, source=op.source, block=op.placement,
            remedy="set target='c600', or call torchipu.fp8.dequantise before the product",
        )
    left, right = op.inputs
    # Twice as many channels a cycle as of halves.
    inner = -(-left.shape[-1] * target.amp_macs_half_half // target.amp_macs_fp8)
    groups = left.shape[0] if len(left.shape) == 3 else 1
    return matmul_vertices(op, target, groups, left.shape[-2], inner, right.shape[-1], DType.HALF)


def _emit_quantise(op: Op, plan: HostPlanner) -> None:
    mantissa, bias, largest = MANTISSA_BIAS_LARGEST[str(op.attrs["format"])]
    held = plan.value(op.inputs[0], DType.FLOAT)
    scale = 2.0 ** -cast(int, op.attrs["scale"])
    plan.step(
        kernels.FP8_ENCODE, [plan.output(op.outputs[0])], [held], ints=(held.num_elements, mantissa, bias),
        scalars=(scale, largest), items=-(-held.num_elements // SPAN),
    )


def _decoded(plan: HostPlanner, tensor: Tensor, name: str, scale: int, into: HostTensor | None = None) -> HostTensor:
    """Emit the values of bytes as floats."""
    mantissa, bias, _ = MANTISSA_BIAS_LARGEST[name]
    held = plan.value(tensor)
    values = into or plan.scratch(held.shape)
    plan.step(
        kernels.FP8_DECODE, [values], [held], ints=(held.num_elements, mantissa, bias), scalars=(2.0**scale,),
        items=-(-held.num_elements // SPAN),
    )
    return values


def _emit_dequantise(op: Op, plan: HostPlanner) -> None:
    into = plan.output(op.outputs[0], DType.FLOAT)
    _decoded(plan, op.inputs[0], str(op.attrs["format"]), cast(int, op.attrs["scale"]), into)


def _emit_matmul(op: Op, plan: HostPlanner) -> None:
    names = (str(op.attrs[f"{side}_format"]) for side in ("left", "right"))
    left, right = (_decoded(plan, tensor, name, 0) for tensor, name in zip(op.inputs, names, strict=True))
    result = op.outputs[0]
    emit_half_product(
        plan, plan.output(result, DType.FLOAT), left, right, plan.rounding(op, result), group=CHANNELS,
        alpha=2.0 ** cast(int, op.attrs["scale"]),
    )


register(
    OpSpec("torchipu.fp8_quantise.default", "fp8_quantise", _lower_cast, _emit_quantise, dtypes=FLOATING),
    OpSpec("torchipu.fp8_dequantise.default", "fp8_dequantise", _lower_cast, _emit_dequantise,
           dtypes=(DType.UNSIGNED_CHAR,)),
    OpSpec("torchipu.fp8_matmul.default", "fp8_matmul", _lower_matmul, _emit_matmul, dtypes=(DType.UNSIGNED_CHAR,)),
)
