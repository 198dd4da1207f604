"""A matrix product with the bias that torch adds apart where the layer's input is a view of several dimensions."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit.bfloat_matmul import emit_bfloat_product, factor, multiplies_bfloats
from torchipu.host.emit.matmul import emit_product, matrix
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.fusions.conv_epilogue import ADD, addend_of
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

PRODUCT = "aten.mm.default"
VIEWS = ("aten.view.default", "aten._unsafe_view.default")


def applies(ops: Sequence[Op]) -> bool:
    """Whether one row is added to all rows. What differs from row to row is added quicker in a pass of its own."""
    product, add = ops[0], ops[-1]
    tensors = [tensor for op in ops for tensor in (*op.inputs, *op.outputs)]
    if any(tensor.dtype is not DType.FLOAT for tensor in tensors):
        return False  # halves are rounded after each op
    if len(add.inputs) != 2 or add.inputs[0] is add.inputs[1] or add.number("alpha", 1) != 1:
        return False
    shape, bias = add.outputs[0].shape, addend_of(ops[-2], add)
    columns = product.outputs[0].shape[-1]
    if ops[-2].outputs[0].shape != shape or shape[-1:] != (columns,) or 0 in shape:
        return False
    return bias.shape[-1:] == (columns,) and bias.num_elements == columns


def _emit(ops: Sequence[Op], plan: HostPlanner) -> None:
    product, add = ops[0], ops[-1]
    columns = product.outputs[0].shape[-1]
    bias = plan.value(addend_of(ops[-2], add), DType.FLOAT)
    row = HostTensor(bias.buffer, bias.offset, (columns,), (1,), DType.FLOAT)
    emit_layer(plan, product, ("self", "mat2"), add.outputs[0], row)


def emit_layer(
    plan: HostPlanner, product: Op, names: tuple[str, str], result: Tensor, bias: HostTensor | None,
    activation: Activation = Activation.NONE,
) -> None:
    """Emit a product, a row that is added to all of its rows, and an activation.

    Args:
        plan: The planner.
        product: The op of the product.
        names: Of its operands.
        result: What comes of all of it, row-major as the product is, perhaps of another shape.
        bias: The row, floats.
        activation: Of the sums.
    """
    rows, columns = product.outputs[0].shape
    is_of_bfloats = multiplies_bfloats(product, plan)
    left, right = ((factor if is_of_bfloats else matrix)(plan, product.needed(name)) for name in names)
    held = plan.product_output(result) if is_of_bfloats else plan.output(result, DType.FLOAT)
    out = HostTensor(held.buffer, held.offset, (rows, columns), (columns, 1), held.dtype)
    (emit_bfloat_product if is_of_bfloats else emit_product)(plan, out, left, right, bias, activation=activation)


register_fusion(
    Fusion((PRODUCT, ADD), applies, _emit), *(Fusion((PRODUCT, view, ADD), applies, _emit) for view in VIEWS),
)
