"""A matrix product, its bias and the activation that alone reads it: the host activates what its cache still holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.fusions import biased_product
from torchipu.ops.fusions.conv_epilogue import ADD, addend_of
from torchipu.ops.fusions.picked import RELU, are_floats
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner

BIASED, PLAIN = "aten.addmm.default", biased_product.PRODUCT
ACTIVATIONS = {
    "aten.gelu.default": Activation.GELU, RELU: Activation.RELU, "aten.silu.default": Activation.SILU,
}


def _applies(ops: Sequence[Op]) -> bool:
    """Whether the kernel knows the activation, and all that is added is one row."""
    first, last = ops[0], ops[-1]
    if not are_floats(ops) or 0 in first.outputs[0].shape or last.text("approximate", "none") == "tanh":
        return False
    if ops[-2].target == ADD:
        return biased_product.applies(ops[:-1])
    if first.target == PLAIN:
        return True
    columns, row = first.outputs[0].shape[-1], first.needed("self")
    is_row = row.shape[-1:] == (columns,) and row.num_elements == columns
    return is_row and all(first.number(name, 1) == 1 for name in ("alpha", "beta"))


def _added(ops: Sequence[Op]) -> Tensor | None:
    """Return the bias."""
    if ops[-2].target == ADD:
        return addend_of(ops[-3], ops[-2])
    return ops[0].needed("self") if ops[0].target == BIASED else None


def _emit(ops: Sequence[Op], plan: HostPlanner) -> None:
    first, last = ops[0], ops[-1]
    names = ("self", "mat2") if first.target == PLAIN else ("mat1", "mat2")
    added, bias = _added(ops), None
    if added is not None:
        row = plan.value(added, DType.FLOAT)
        bias = HostTensor(row.buffer, row.offset, first.outputs[0].shape[-1:], (1,), DType.FLOAT)
    biased_product.emit_layer(plan, first, names, last.outputs[0], bias, ACTIVATIONS[last.target])


_VIEWED = ((), *((view,) for view in biased_product.VIEWS))
for _view, _activation in product(_VIEWED, ACTIVATIONS):
    register_fusion(
        *(Fusion((_first, *_view, _activation), _applies, _emit) for _first in (BIASED, PLAIN)),
        Fusion((PLAIN, *_view, ADD, _activation), _applies, _emit),
    )
