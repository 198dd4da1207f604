"""What an op without a record costs: an estimate from its bytes and elements; the values come from ATen."""

from __future__ import annotations

from torchipu.device.codelets import busiest_elements, vector_codelet
from torchipu.ir.graph import Op
from torchipu.optable.codelet import Vertices
from torchipu.target import Target

# A typical elementwise op with two operands takes 3 cycles a vector; unknown ones are taken to be twice as dear.
GENERIC = vector_codelet("torchipu::Generic", 6, 6, code_bytes=600, source="estimate")


def lower_generic(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Estimate an op of kind ``generic``: one compute set over its largest tensor, all operands gathered first.

    Args:
        op: The op.
        target: The machine.

    Returns:
        One compute set; none when the op touches no elements.
    """
    tensors = (*op.inputs, *op.outputs)
    largest = max(tensors, key=lambda tensor: tensor.num_elements, default=None)
    if largest is None or largest.num_elements == 0:
        return ()
    width = target.vector_width(largest.dtype.device_bytes)
    mine = busiest_elements(target, largest.num_elements, width, largest.dtype.device_bytes)
    share = mine / largest.num_elements
    gathered = int(share * sum(tensor.device_bytes for tensor in op.inputs))
    fixed = {"vector_width": width, "element_bytes": largest.dtype.device_bytes}
    return (
        Vertices(
            GENERIC, largest.num_elements, lambda count: {"elements": count, **fixed}, grain=width,
            gathered_bytes=gathered, temporary_bytes=gathered,
        ),
    )
