"""Which ops the kernels of the blocked layout take for the activation at their end."""

from __future__ import annotations

from torchipu._kernels.table.conv_blocked import Activation
from torchipu.host.emit.half_partials import has_half_partials
from torchipu.ir.graph import Op, Tensor
from torchipu.optable.blocked import Rows

GELU, HARDTANH = "aten.gelu.default", "aten.hardtanh.default"
_BY_TARGET = {
    "aten.relu.default": Activation.RELU, "aten.hardswish.default": Activation.HARDSWISH,
    "aten.hardsigmoid.default": Activation.HARDSIGMOID, "aten.silu.default": Activation.SILU,
    "aten.sigmoid.default": Activation.SIGMOID,
}
TARGETS = (GELU, HARDTANH, *_BY_TARGET)
"""Ops of which some are such activations."""


def activation_of(op: Op) -> Activation:
    """Return the activation that an op is; ``NONE`` where it is no such op."""
    if op.target == GELU:
        return Activation.GELU if op.text("approximate", "none") == "none" else Activation.NONE
    if op.target == HARDTANH:
        is_relu6 = (op.number("min_val", -1), op.number("max_val", 1)) == (0, 6)
        return Activation.RELU6 if is_relu6 else Activation.NONE
    return _BY_TARGET.get(op.target, Activation.NONE)


def is_of_floats(op: Op, rows: Rows) -> bool:
    """Whether all that an op reads and its first result are float or half, channels second, the result of four dims.

    Products with half partials are none, nor is what has so many elements that 32 bits do not number them.
    """
    tensors = (*op.inputs, op.outputs[0])
    of_images = len(op.outputs[0].shape) == 4 and all(tensor not in rows for tensor in tensors)
    return of_images and is_floating(*tensors) and not has_half_partials(op)


def is_floating(*tensors: Tensor) -> bool:
    """Whether all tensors are float or half, none of so many elements that 32 bits do not number them."""
    return all(tensor.dtype.is_floating and tensor.num_elements < 2**32 for tensor in tensors)
