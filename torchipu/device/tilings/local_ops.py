"""Ops of vertices, added one by one, with results in the types that they are written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType


class LocalOps:
    """Collects the ops of a vertex.

    Args:
        inputs: What it reads.
    """

    def __init__(self, *inputs: Tensor) -> None:
        self.inputs = inputs
        self.ops: list[Op] = []

    def add(
        self, target: str, inputs: Sequence[Tensor], operands: Sequence[str], shape: Sequence[int], dtype: DType, /,
        **attrs: object,
    ) -> Tensor:
        """Append an op and return its result.

        Args:
            target: Overload.
            inputs: Operands.
            operands: Their names in the schema.
            shape: Of the result.
            dtype: Of the result.
            **attrs: Arguments that are not tensors.
        """
        made = Tensor(f"value{len(self.ops)}", tuple(shape), dtype)
        self.ops.append(Op(target.split(".")[1], tuple(inputs), (made,), attrs, target, tuple(operands)))
        return made

    def unary(self, target: str, value: Tensor, shape: Sequence[int] | None = None, /, **attrs: object) -> Tensor:
        """Append an op of one operand, whose result has its type, and its shape where no other one is given."""
        return self.add(target, (value,), ("self",), value.shape if shape is None else shape, value.dtype, **attrs)

    def graph(self, *results: tuple[Tensor, DType]) -> Graph:
        """Return the code, with results in the types that they are written in.

        Args:
            *results: Results, each of an op of its own, and their types.
        """
        made = {tensor: replace(tensor, dtype=dtype) for tensor, dtype in results}
        ops = tuple(replace(
            op, inputs=tuple(made.get(one, one) for one in op.inputs),
            outputs=tuple(made.get(one, one) for one in op.outputs),
        ) for op in self.ops)
        return Graph("vertex", self.inputs, tuple(made[tensor] for tensor, _ in results), ops)
