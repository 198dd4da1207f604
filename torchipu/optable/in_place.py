"""Which operands of an op its result may lie on, where nothing reads them afterwards."""

from __future__ import annotations

from torchipu.ir.graph import Op, Tensor
from torchipu.optable.spec import spec_of


def overwritable(op: Op) -> tuple[Tensor, ...]:
    """Return the operands whose place the first result may take, those before others that Poplar would take first.

    Vertices read an element before they write the one at the same place: all elementwise ops, which Poplar computes in
    place where PopART lets it, and those whose record names operands. A cast makes elements of another size.
    """
    spec = spec_of(op)
    if spec is None or spec.is_view or spec.is_in_place or not op.outputs:
        return ()
    result = op.outputs[0]
    if spec.instruction is not None:
        candidates = op.inputs if len(op.outputs) == 1 else ()
    else:
        candidates = tuple(tensor for name in spec.overwrites if (tensor := op.operand(name)) is not None)
    return tuple(
        tensor for tensor in dict.fromkeys(candidates) if tensor.shape == result.shape and tensor.dtype is result.dtype
    )
