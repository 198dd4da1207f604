"""Writes the code of vertices, op by op."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import lookup


class Code:
    """Ops on what a vertex has, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.inputs: list[Tensor] = []
        self.ops: list[Op] = []

    def given(self, dtype: DType, *shape: int) -> Tensor:
        """Return the next value that the vertex reads."""
        tensor = Tensor(f"in{len(self.inputs)}", shape, dtype)
        self.inputs.append(tensor)
        return tensor

    def run(
        self, target: str, results: Sequence[tuple[DType, tuple[int, ...]]], attrs: dict[str, object] | None = None,
        /, **operands: Tensor | None,
    ) -> tuple[Tensor, ...]:
        """Append an op.

        Args:
            target: ATen overload, or an op of ours.
            results: Element type and shape of each result.
            attrs: Arguments that are not tensors.
            **operands: Those that are; None for absent ones.
        """
        spec = lookup(target)
        assert spec is not None, target
        given = {name: tensor for name, tensor in operands.items() if tensor is not None}
        made = tuple(Tensor(f"v{len(self.ops)}.{k}", shape, dtype) for k, (dtype, shape) in enumerate(results))
        self.ops.append(Op(spec.kind, tuple(given.values()), made, attrs or {}, target, tuple(given)))
        return made

    def unary(self, name: str, value: Tensor, dtype: DType | None = None, /, **attrs: object) -> Tensor:
        """Return a function of each element, such as ``exp``."""
        return self.run(f"aten.{name}.default", [(dtype or value.dtype, value.shape)], attrs, self=value)[0]

    def binary(self, name: str, left: Tensor, right: Tensor | float, dtype: DType | None = None) -> Tensor:
        """Return a function of pairs of elements, broadcast, such as ``sub``; in float where either is."""
        attrs: dict[str, object] = {"alpha": 1} if name in ("add", "sub") else {}
        if not isinstance(right, Tensor):
            attrs = {"other": right, **attrs}
            return self.run(f"aten.{name}.Tensor", [(dtype or left.dtype, left.shape)], attrs, self=left)[0]
        shape = np.broadcast_shapes(left.shape, right.shape)
        kind = DType.FLOAT if DType.FLOAT in (left.dtype, right.dtype) else left.dtype
        return self.run(f"aten.{name}.Tensor", [(dtype or kind, shape)], attrs, self=left, other=right)[0]

    def compared(self, name: str, left: Tensor, right: Tensor | float) -> Tensor:
        """Return the truth of a comparison of elements, such as ``eq``."""
        if not isinstance(right, Tensor):
            return self.run(f"aten.{name}.Scalar", [(DType.BOOL, left.shape)], {"other": right}, self=left)[0]
        shape = np.broadcast_shapes(left.shape, right.shape)
        return self.run(f"aten.{name}.Tensor", [(DType.BOOL, shape)], self=left, other=right)[0]

    def chosen(self, condition: Tensor, left: Tensor, right: Tensor, dtype: DType | None = None) -> Tensor:
        """Return the elements of one value where a condition holds, those of another elsewhere."""
        shape = np.broadcast_shapes(condition.shape, left.shape, right.shape)
        return self.run("aten.where.self", [(dtype or left.dtype, shape)], condition=condition, self=left,
                        other=right)[0]

    def full(self, number: float, dtype: DType, *shape: int) -> Tensor:
        """Return a value whose elements are all one number."""
        return self.run("aten.full.default", [(dtype, shape)],
                        {"size": list(shape), "fill_value": number, "dtype": dtype})[0]

    def summed(self, value: Tensor, dtype: DType = DType.FLOAT) -> Tensor:
        """Return the sums of the rows of a matrix, as ``[n, 1]``."""
        return self.run("aten.sum.dim_IntList", [(dtype, (value.shape[0], 1))],
                        {"dim": [1], "keepdim": True, "dtype": dtype}, self=value)[0]

    def cast(self, value: Tensor, dtype: DType) -> Tensor:
        """Return a value in another type."""
        return value if value.dtype is dtype else self.copied(value, dtype)

    def copied(self, value: Tensor, dtype: DType) -> Tensor:
        """Return a value of its own, in a type: each that a vertex writes is another."""
        return self.unary("_to_copy", value, dtype, dtype=dtype, non_blocking=False)

    def graph(self, outputs: Sequence[Tensor]) -> Graph:
        """Return what was written."""
        return Graph("vertex", tuple(self.inputs), tuple(outputs), tuple(self.ops))
