"""Products of a matrix and a vector: mv and addmv, as products with a matrix of one column or one row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchipu.device.bias import with_bias
from torchipu.device.integer_products import integer_vertices
from torchipu.device.product_sets import matmul_vertices
from torchipu.device.tilings.products import Factor, Multiplication, addend_of, line, plane
from torchipu.host.emit.integer_matmul import emit_integer_product, integer_type
from torchipu.host.emit.matmul import emit_product, matrix
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.arguments import of_one_type
from torchipu.optable.codelet import Vertices
from torchipu.optable.host_tensor import HostTensor, broadcast
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, INTEGER, OpSpec, register

if TYPE_CHECKING:
    from torchipu.target import Target


def _operands(op: Op) -> tuple[Tensor, Tensor]:
    held, vector = op.operand("self") if op.kind == "mv" else op.operand("mat"), op.operand("vec")
    assert held is not None
    assert vector is not None
    return held, vector


def _lower(op: Op, target: Target) -> tuple[Vertices, ...]:
    held, _ = _operands(op)
    rows, inner = held.shape
    if not held.dtype.is_floating:
        return integer_vertices(target, rows, inner, held.dtype, _describe)
    added = op.operand("self") if op.kind == "addmv" and op.number("beta", 1) != 0 else None
    return with_bias(
        matmul_vertices(op, target, 1, rows, inner, 1, held.dtype, _describe), target, added, op.outputs[0],
    )


def _describe(op: Op) -> Multiplication:
    inner = _operands(op)[0].shape[1]
    return Multiplication(
        Factor("self" if op.kind == "mv" else "mat", line(inner, 0, 1)), Factor("vec", line(1, 0, 1)), inner, "out",
        plane(0, 1, 0), addend=addend_of(op, columns=False), alpha=float(op.number("alpha", 1)),
    )


def _column(held: HostTensor) -> HostTensor:
    """Show a vector as a matrix of one column."""
    return HostTensor(held.buffer, held.offset, (*held.shape, 1), (*held.strides, 1), held.dtype)


def _turned(held: HostTensor) -> HostTensor:
    return HostTensor(held.buffer, held.offset, held.shape[::-1], held.strides[::-1], held.dtype)


def _emit(op: Op, plan: HostPlanner) -> None:
    left, right = _operands(op)
    dtype = op.outputs[0].dtype
    kind = DType.FLOAT if dtype.is_floating else integer_type(dtype)
    alpha, beta = op.number("alpha", 1), op.number("beta", 1)
    out = _column(plan.output(op.outputs[0], kind))
    added = op.operand("self") if op.kind == "addmv" and beta != 0 else None
    addend = None if added is None else _column(broadcast(plan.value(added, kind), op.outputs[0].shape))
    vector = _column(plan.value(right, kind))
    if not dtype.is_floating:
        held = plan.value(left, kind, contiguous=False)
        emit_integer_product(plan, out, held, vector, addend, int(alpha), int(beta))
        return
    held = matrix(plan, left)
    if held.strides[0] == 1 and held.strides[1] != 1:  # columns lie dense: sum them, rather than each row
        turned = None if addend is None else _turned(addend)
        emit_product(plan, _turned(out), _turned(vector), _turned(held), turned, float(alpha), float(beta))
        return
    emit_product(plan, out, held, vector, addend, float(alpha), float(beta))


for _name in ("mv", "addmv"):
    register(OpSpec(f"aten.{_name}.default", _name, _lower, _emit, dtypes=(*FLOATING, *INTEGER),
                    constraints=(of_one_type(lambda op: op.inputs),)))
