"""What ops say of themselves beside their operands, with its type."""

from __future__ import annotations

from torchipu.ir.graph import Op, Tensor


def needed(op: Op, name: str) -> Tensor:
    """Return an operand that the schema demands."""
    tensor = op.operand(name)
    assert tensor is not None, f"{op.target} without {name}"
    return tensor


def dim_of(op: Op, rank: int) -> int:
    """Return the attribute ``dim`` as a non-negative number; 0 for 0-d tensors."""
    dim = op.attrs["dim"]
    assert isinstance(dim, int)
    return dim % max(1, rank)
