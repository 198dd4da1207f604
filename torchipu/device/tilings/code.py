"""Writes the code of vertices, op by op."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import lookup


class Code:
    """Ops on what a vertex has, in the order in which they are asked for.

    Args:
        before: Code that vertices have already, which this one goes on from.
    """

    def __init__(self, before: Graph | None = None) -> None:
        self.inputs: list[Tensor] = [*before.inputs] if before else []
        self.ops: list[Op] = [*before.ops] if before else []

    # ------------------------------------------------------------------ what a vertex has
    def given(self, dtype: DType, *shape: int) -> Tensor:
        """Return the next value that the vertex reads."""
        tensor = Tensor(f"in{len(self.inputs)}", shape, dtype)
        self.inputs.append(tensor)
        return tensor

    def part(self, tensor: Tensor, *shape: int) -> Tensor:
        """Return the next value that the vertex reads: a part of one of the graph."""
        made = replace(tensor, name=f"in{len(self.inputs)}", shape=shape)
        self.inputs.append(made)
        return made

    # ------------------------------------------------------------------ ops
    def run(
        self, target: str, results: Sequence[tuple[DType, tuple[int, ...]]], attrs: Mapping[str, object] | None = None,
        /, **operands: Tensor | Sequence[Tensor] | None,
    ) -> tuple[Tensor, ...]:
        """Append an op.

        Args:
            target: ATen overload, or an op of ours.
            results: Element type and shape of each result.
            attrs: Arguments that are not tensors.
            **operands: Those that are, or lists of them; None for absent ones.
        """
        spec = lookup(target)
        assert spec is not None, target
        names: list[str] = []
        inputs: list[Tensor] = []
        for name, value in operands.items():
            if isinstance(value, Tensor):
                names.append(name)
                inputs.append(value)
            elif value is not None:
                names.append(f"{name}[{'x' * len(value)}]")
                inputs.extend(value)
        made = tuple(Tensor(f"v{len(self.ops)}.{k}", shape, dtype) for k, (dtype, shape) in enumerate(results))
        self.ops.append(Op(spec.kind, tuple(inputs), made, attrs or {}, target, tuple(names)))
        return made

    def again(
        self, op: Op, inputs: Sequence[Tensor], *shapes: tuple[int, ...], **attrs: object,
    ) -> tuple[Tensor, ...]:
        """Append an op of the graph once more.

        Args:
            op: The op.
            inputs: What it takes here.
            *shapes: Of its results.
            **attrs: Arguments that are others here.
        """
        made = tuple(
            replace(tensor, name=f"v{len(self.ops)}.{k}", shape=shape)
            for k, (tensor, shape) in enumerate(zip(op.outputs, shapes, strict=True))
        )
        self.ops.append(replace(op, inputs=tuple(inputs), outputs=made, attrs={**op.attrs, **attrs}))
        return made

    # ------------------------------------------------------------------ element by element
    def unary(self, name: str, value: Tensor, dtype: DType | None = None, /, **attrs: object) -> Tensor:
        """Return a function of each element, such as ``exp``."""
        return self.run(f"aten.{name}.default", [(dtype or value.dtype, value.shape)], attrs, self=value)[0]

    def binary(
        self, name: str, left: Tensor, right: Tensor | float, dtype: DType | None = None, /, **attrs: object,
    ) -> Tensor:
        """Return a function of pairs of elements, broadcast, such as ``sub``; in float where either is."""
        if name in ("add", "sub"):
            attrs = {"alpha": 1, **attrs}
        if not isinstance(right, Tensor):
            attrs = {"other": right, **attrs}
            return self.run(f"aten.{name}.Tensor", [(dtype or left.dtype, left.shape)], attrs, self=left)[0]
        shape = np.broadcast_shapes(left.shape, right.shape)
        kind = DType.FLOAT if DType.FLOAT in (left.dtype, right.dtype) else left.dtype
        return self.run(f"aten.{name}.Tensor", [(dtype or kind, shape)], attrs, self=left, other=right)[0]

    def rest(self, value: Tensor, divisor: int) -> Tensor:
        """Return what is left of each element divided by a whole number, as Python has it."""
        return self.run("aten.remainder.Scalar", [(value.dtype, value.shape)], {"other": divisor}, self=value)[0]

    def quotient(self, value: Tensor, divisor: Tensor | int) -> Tensor:
        """Return each element divided by a whole number, rounded down; by one of its own where there are as many."""
        if isinstance(divisor, Tensor):
            return self.run("aten.floor_divide.default", [(value.dtype, value.shape)], self=value, other=divisor)[0]
        return self.run("aten.floor_divide.default", [(value.dtype, value.shape)], {"other": divisor}, self=value)[0]

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

    def cast(self, value: Tensor, dtype: DType) -> Tensor:
        """Return a value in another type."""
        return value if value.dtype is dtype else self.copied(value, dtype)

    def copied(self, value: Tensor, dtype: DType) -> Tensor:
        """Return a value of its own, in a type: each that a vertex writes is another."""
        if value.dtype is dtype:
            return self.unary("clone", value)
        return self.unary("_to_copy", value, dtype, dtype=dtype, non_blocking=False)

    # ------------------------------------------------------------------ of nothing
    def full(self, number: float, dtype: DType, *shape: int) -> Tensor:
        """Return a value whose elements are all one number."""
        return self.run("aten.full.default", [(dtype, shape)],
                        {"size": list(shape), "fill_value": number, "dtype": dtype})[0]

    def numbered(self, first: int, count: int) -> Tensor:
        """Return so many whole numbers from one on."""
        attrs = {"start": first, "end": first + count, "step": 1, "dtype": DType.LONG}
        return self.run("aten.arange.start_step", [(DType.LONG, (count,))], attrs)[0]

    # ------------------------------------------------------------------ along a dimension
    def summed(
        self, value: Tensor, dtype: DType = DType.FLOAT, /, *, dim: int = 1, keepdim: bool = True, **attrs: object,
    ) -> Tensor:
        """Return sums along a dimension: those of the rows of a matrix, as ``[n, 1]``, where no other is named."""
        shape = (*value.shape[:dim], *(1,) * keepdim, *value.shape[dim + 1 :])
        attrs = {"dim": [dim], "keepdim": keepdim, "dtype": dtype, **attrs}
        if value.dtype.is_floating and dtype.is_floating:
            del attrs["dtype"]  # what is added up is not rounded before
        return self.run("aten.sum.dim_IntList", [(dtype, shape)], attrs, self=value)[0]

    def reduced(self, reduce: str, value: Tensor) -> Tensor:
        """Return the product, or the largest or least element, of each row of a matrix, as ``[n, 1]``."""
        attrs: dict[str, object] = {"dim": [1], "keepdim": True}
        if reduce == "prod":
            attrs = {"dim": 1, "keepdim": True, "dtype": value.dtype}
        target = "aten.prod.dim_int" if reduce == "prod" else f"aten.{reduce}.default"
        return self.run(target, [(value.dtype, (value.shape[0], 1))], attrs, self=value)[0]

    def largest(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """Return the largest element of each row of a matrix, and its place there: ``[n, 1]``.

        Of several it is the first, of several NaN the last, as pools have it; `aten.max.dim` has the first of either.
        """
        count, width = value.shape
        images, window = (count, 1, 1, 1), {"kernel_size": [1, width], "stride": [1, width]}
        most, place = self.run(
            "aten.max_pool2d_with_indices.default", [(value.dtype, images), (DType.LONG, images)],
            {**window, "padding": [0, 0], "dilation": [1, 1], "ceil_mode": False},
            self=self.shaped(value, count, 1, 1, width),
        )
        return self.shaped(most, count, 1), self.shaped(place, count, 1)

    def sliced(self, value: Tensor, dim: int, start: int, end: int) -> Tensor:
        """Return the elements of a range of a dimension."""
        shape = (*value.shape[:dim], end - start, *value.shape[dim + 1 :])
        attrs = {"dim": dim, "start": start, "end": end, "step": 1}
        return self.run("aten.slice.Tensor", [(value.dtype, shape)], attrs, self=value)[0]

    def gathered(self, value: Tensor, index: Tensor) -> Tensor:
        """Return elements of the rows of a matrix by their places in there."""
        return self.run("aten.gather.default", [(value.dtype, index.shape)], {"dim": 1, "sparse_grad": False},
                        self=value, index=index)[0]

    def added_by_index(self, rows: Tensor, index: Tensor, source: Tensor) -> Tensor:
        """Return the rows of a matrix with elements of others added: one index for all rows, or each its own."""
        operands = {"self": rows, "index": index}
        if len(index.shape) == 1:
            return self.run("aten.index_add.default", [(rows.dtype, rows.shape)], {"dim": 1, "alpha": 1},
                            **operands, source=source)[0]
        return self.run("aten.scatter_add.default", [(rows.dtype, rows.shape)], {"dim": 1}, **operands, src=source)[0]

    def reduced_by_index(self, reduce: str, rows: Tensor, index: Tensor, source: Tensor) -> Tensor:
        """Return the rows of a matrix joined with elements of others by ``prod``, ``amax`` or ``amin``; see above."""
        name, given = ("index_reduce.default", "source") if len(index.shape) == 1 else ("scatter_reduce.two", "src")
        attrs = {"dim": 1, "reduce": reduce, "include_self": True}
        return self.run(f"aten.{name}", [(rows.dtype, rows.shape)], attrs, self=rows, index=index, **{given: source})[0]

    def joined(self, values: Sequence[Tensor], dim: int) -> Tensor:
        """Return values one behind the other along a dimension."""
        first, size = values[0], sum(value.shape[dim] for value in values)
        shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
        return self.run("aten.cat.default", [(first.dtype, shape)], {"dim": dim}, tensors=values)[0]

    # ------------------------------------------------------------------ in another shape
    def shaped(self, value: Tensor, *shape: int) -> Tensor:
        """Return the same elements in another shape."""
        return self.run("aten.view.default", [(value.dtype, shape)], {"size": shape}, self=value)[0]

    def column(self, value: Tensor) -> Tensor:
        """Return a row of elements as ``[n, 1]``."""
        return self.run("aten.unsqueeze.default", [(value.dtype, (*value.shape, 1))], {"dim": 1}, self=value)[0]

    def turned(self, value: Tensor) -> Tensor:
        """Return matrices with rows and columns exchanged."""
        *outer, rows, columns = value.shape
        attrs = {"dim0": len(outer), "dim1": len(outer) + 1}
        return self.run("aten.transpose.int", [(value.dtype, (*outer, columns, rows))], attrs, self=value)[0]

    # ------------------------------------------------------------------ results
    def graph(self, outputs: Sequence[Tensor], dtypes: Sequence[DType] = ()) -> Graph:
        """Return what was written.

        Args:
            outputs: What the vertex writes.
            dtypes: Types to make the last ops of these give, where they are not known before; empty for those that
                they have.
        """
        if not dtypes:
            return Graph("vertex", tuple(self.inputs), tuple(outputs), tuple(self.ops))
        made = {tensor: replace(tensor, dtype=dtype) for tensor, dtype in zip(outputs, dtypes, strict=True)}
        ops = tuple(replace(
            op, inputs=tuple(made.get(one, one) for one in op.inputs),
            outputs=tuple(made.get(one, one) for one in op.outputs),
        ) for op in self.ops)
        return Graph("vertex", tuple(self.inputs), tuple(made[tensor] for tensor in outputs), ops)
