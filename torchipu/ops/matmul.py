"""Matrix products: mm, bmm, addmm, baddbmm."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchipu.device.bias import with_bias
from torchipu.device.integer_products import integer_vertices
from torchipu.device.product_sets import layer_vertices
from torchipu.device.tilings.products import Factor, Multiplication, addend_of, line, plane
from torchipu.host.emit.bfloat_matmul import emit_bfloat_product, factor, multiplies_bfloats
from torchipu.host.emit.half_partials import emit_half_product, partials_of
from torchipu.host.emit.integer_matmul import emit_integer_product, integer_type
from torchipu.host.emit.line_products import are_lines, emit_line_products
from torchipu.host.emit.matmul import emit_product, is_small, matrix, right_matrix
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.arguments import of_one_type
from torchipu.optable.codelet import Product, Vertices
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.host_tensor import broadcast
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, INTEGER, OpSpec, register

if TYPE_CHECKING:
    from torchipu.target import Target

# --------------------------------------------------------------------------- device side
def _operands(op: Op) -> tuple[Tensor, Tensor]:
    left = op.operand("self") if op.kind in ("mm", "bmm") else op.operand("mat1") or op.operand("batch1")
    right = op.operand("mat2") or op.operand("batch2")
    assert left is not None
    assert right is not None
    return left, right


def _products(op: Op) -> tuple[Product, ...]:
    left, right = _operands(op)
    groups = left.shape[0] if len(left.shape) == 3 else 1
    return (Product(groups, left.shape[-2], left.shape[-1], right.shape[-1]),)


def _lower(op: Op, target: Target) -> tuple[Vertices, ...]:
    left, _ = _operands(op)
    if not left.dtype.is_floating:
        return integer_vertices(target, op.outputs[0].num_elements, left.shape[-1], left.dtype, _describe)
    added = op.operand("self") if op.kind in ("addmm", "baddbmm") and op.number("beta", 1) != 0 else None
    return with_bias(layer_vertices(op, target, _products(op)[0], left.dtype, _describe), target, added, op.outputs[0])


def _describe(op: Op) -> Multiplication:
    (rows, inner), columns = _operands(op)[0].shape[-2:], op.outputs[0].shape[-1]
    left, right = ("self", "mat2") if op.kind in ("mm", "bmm") else op.operands[1:3]
    return Multiplication(
        Factor(left, line(inner, rows * inner, 1)), Factor(right, line(1, inner * columns, columns), inputs_first=True),
        inner, "out", plane(rows * columns, columns, 1), addend=addend_of(op), alpha=float(op.number("alpha", 1)),
    )


# --------------------------------------------------------------------------- host side
def _emit(op: Op, plan: HostPlanner) -> None:
    left, right = _operands(op)
    added = op.operand("self") if op.kind in ("addmm", "baddbmm") else None
    if not op.outputs[0].dtype.is_floating:
        _emit_integers(op, plan, left, right, added)
        return
    alpha, beta = (float(op.number(name, 1)) for name in ("alpha", "beta"))
    addend = plan.value(added, DType.FLOAT, contiguous=False) if added is not None and beta != 0 else None
    partials = partials_of(op, op.outputs[0], plan)
    if partials is not None:
        held = plan.output(op.outputs[0], DType.FLOAT)
        emit_half_product(
            plan, held, matrix(plan, left), matrix(plan, right), partials, addend=addend, alpha=alpha, beta=beta,
        )
        return
    if multiplies_bfloats(op, plan):
        emit_bfloat_product(
            plan, plan.product_output(op.outputs[0]), factor(plan, left), factor(plan, right), addend, alpha, beta,
        )
        return
    if _is_of_lines(op, left, right):
        emit_line_products(plan, plan.output(op.outputs[0], DType.FLOAT), left, right)
        return
    left_value = matrix(plan, left)
    right_value = right_matrix(plan, left_value, right)
    emit_product(plan, plan.output(op.outputs[0], DType.FLOAT), left_value, right_value, addend, alpha, beta)


def _is_of_lines(op: Op, left: Tensor, right: Tensor) -> bool:
    """Whether a product is one of many with a single row, column or summand, and not put in lanes."""
    if op.kind != "bmm" or any(tensor.dtype is not DType.FLOAT for tensor in (left, right)):
        return False
    (batch, rows, columns), inner = op.outputs[0].shape, left.shape[-1]
    is_shown = max(len(left.shape), len(right.shape)) > 3
    return is_shown or (are_lines(batch, rows, columns, inner) and not is_small(batch, rows, columns, inner))


ACCUMULATE = "ipu.accumulate.default"


def _adds_up(ops: Sequence[Op]) -> bool:
    """Whether a product and what accumulates it are all float, the accumulator row-major as it always is."""
    tensors = [tensor for op in ops for tensor in (*op.inputs, *op.outputs)]
    return all(tensor.dtype is DType.FLOAT for tensor in tensors) and 0 not in ops[0].inputs[0].shape


def _emit_accumulated(ops: Sequence[Op], plan: HostPlanner) -> None:
    """Add a product onto an accumulator as it is computed: the gradient of a weight is never written by itself."""
    product, accumulate = ops
    out = plan.update_in_place(accumulate.inputs[0], accumulate.outputs[0])
    if multiplies_bfloats(product, plan):
        first, second = (factor(plan, tensor) for tensor in _operands(product))
        emit_bfloat_product(plan, out, first, second, adds=True)
        return
    left, right = (matrix(plan, tensor) for tensor in _operands(product))
    emit_product(plan, out, left, right, adds=True)


register_fusion(Fusion(("aten.mm.default", ACCUMULATE), _adds_up, _emit_accumulated))


def _emit_integers(op: Op, plan: HostPlanner, left: Tensor, right: Tensor, added: Tensor | None) -> None:
    alpha, beta = (int(op.number(name, 1)) for name in ("alpha", "beta"))
    kind = integer_type(op.outputs[0].dtype)
    held, other = (plan.value(tensor, kind, contiguous=False) for tensor in (left, right))
    addend = None
    if added is not None and beta != 0:
        addend = broadcast(plan.value(added, kind, contiguous=False), op.outputs[0].shape)
    emit_integer_product(plan, plan.output(op.outputs[0], kind), held, other, addend, alpha, beta)


_ONE_TYPE = of_one_type(lambda op: op.inputs)
for _name in ("mm", "bmm", "addmm", "baddbmm"):
    register(OpSpec(f"aten.{_name}.default", _name, _lower, _emit, dtypes=(*FLOATING, *INTEGER), products=_products,
                    constraints=(_ONE_TYPE,)))
for _name in ("mm", "bmm"):  # halves whose product is float
    register(OpSpec(f"aten.{_name}.dtype", _name, _lower, _emit, dtypes=FLOATING, products=_products))
