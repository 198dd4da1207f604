"""What the reductions of PyTorch compute of rows, piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.reduction import Folding, Reduction, add_up, rows_of
from torchipu.device.tilings.stage import Taken, result
from torchipu.ir.graph import Op, Tensor, operand_labels
from torchipu.ir.types import DType

Dims = Callable[[Op, Tensor], tuple[int, ...]]
Reducing = Callable[[Op], Reduction]


def by(target: str, *, dims: Dims, as_list: bool = True) -> Reducing:
    """Return reductions whose partials are joined as their elements are.

    Args:
        target: What reduces rows.
        dims: Gives the dimensions that an op reduces.
        as_list: Whether ``target`` takes several dimensions.
    """

    def fold(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        attrs: dict[str, object] = {"dim": [1] if as_list else 1, "keepdim": True}
        if target.startswith(("aten.sum", "aten.prod")):
            attrs["dtype"] = types[0]
        return [code.run(target, [(types[0], (values[0].shape[0], 1))], attrs, self=values[0])[0]]

    def reduction(op: Op) -> Reduction:
        out = result(op)
        is_rounded = out.dtype is DType.HALF and not target.startswith(("aten.amax", "aten.amin"))
        partial = DType.FLOAT if is_rounded else out.dtype
        return _of_self(op, dims, fold, fold, (("folded", partial),))

    return reduction


def squares(op: Op) -> Reduction:
    """Return the reduction of all elements to the sum of their squares, a float on the tiles."""
    given = op.inputs[0]
    return _squares(given.num_elements, Taken(operand_labels(op)[0], given.dtype), Taken("out", DType.FLOAT), "sums")


def sum_of_squares(elements: int, read: Taken, name: str) -> Reduction:
    """Return the reduction of a value to the sum of its squares, which later sets of the op read as partials.

    Args:
        elements: Of the value.
        read: The value.
        name: Of the sum.
    """
    return _squares(elements, read, Taken(name, DType.FLOAT, is_partial=True), f"{name} of pieces")


def _squares(elements: int, read: Taken, made: Taken, sums: str) -> Reduction:
    def begin(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        value = code.cast(values[0], DType.FLOAT)
        return [code.summed(code.binary("mul", value, value))]

    def join(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        return [code.summed(values[0])]

    return Reduction(rows_of((elements,), (0,)), (read,), (made,), begin, join, ((sums, DType.FLOAT),))


def mean(*, dims: Dims) -> Reducing:
    """Return the reduction to means."""

    def reduction(op: Op) -> Reduction:
        source, out = op.inputs[0], op.outputs[0]
        scale = out.num_elements / max(1, source.num_elements)

        def finish(code: Code, sums: list[Tensor]) -> list[Tensor]:
            return [code.binary("mul", sums[0], scale, out.dtype)]

        return _of_self(op, dims, add_up, add_up, (("sums", DType.FLOAT),), finish)

    return reduction


def norm(*, dims: Dims, order: Callable[[Op], float]) -> Reducing:
    """Return the reduction to norms: that of norms of pieces is the norm of all."""

    def reduction(op: Op) -> Reduction:
        def fold(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
            attrs: dict[str, object] = {"ord": order(op), "dim": [1], "keepdim": True, "dtype": None}
            shape = values[0].shape[0], 1
            return [code.run("aten.linalg_vector_norm.default", [(types[0], shape)], attrs, self=values[0])[0]]

        return _of_self(op, dims, fold, fold, (("norms", DType.FLOAT),))

    return reduction


def extreme(target: str, *, dims: Dims, arg_only: bool = False) -> Reducing:
    """Return the reduction to extremes and where they are, the first of equal ones.

    Args:
        target: ``aten.max.dim`` or ``aten.min.dim``.
        dims: Gives the dimensions that an op reduces.
        arg_only: Whether only the places are asked for.
    """

    def found(code: Code, value: Tensor) -> list[Tensor]:
        shape = value.shape[0], 1
        return list(code.run(target, [(value.dtype, shape), (DType.LONG, shape)], {"dim": 1, "keepdim": True},
                             self=value))

    def begin(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        return found(code, values[0])

    def join(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        largest, piece = found(code, values[0])
        within = code.run("aten.gather.default", [(DType.LONG, piece.shape)], {"dim": 1, "sparse_grad": False},
                          self=values[1], index=piece)[0]
        return [largest, code.binary("add", code.binary("mul", piece, span), within)]

    def reduction(op: Op) -> Reduction:
        partials = (("extremes", op.inputs[0].dtype), ("places", DType.LONG))
        finish = (lambda code, values: values[1:]) if arg_only else None
        return _of_self(op, dims, begin, join, partials, finish)

    return reduction


def moments(*, dims: Dims, correction: Callable[[Op], float], root: bool) -> Reducing:
    """Return the reduction to variances: of pieces the mean, the squares about it, and how many elements they are of.

    Args:
        dims: Gives the dimensions that an op reduces.
        correction: What an op takes off the number of elements.
        root: Whether deviations are asked for.
    """

    def reduction(op: Op) -> Reduction:
        source, out = op.inputs[0], op.outputs[0]
        degrees = max(0.0, source.num_elements // max(1, out.num_elements) - correction(op))

        def finish(code: Code, values: list[Tensor]) -> list[Tensor]:
            centre, squares, _ = values
            spread = code.binary("div", squares, degrees, DType.FLOAT if root else out.dtype)
            made = [code.unary("sqrt", spread, out.dtype) if root else spread]
            return made if len(op.outputs) == 1 else [*made, code.cast(centre, op.outputs[1].dtype)]

        partials = (("means", DType.FLOAT), ("squares", DType.FLOAT), ("counts", DType.FLOAT))
        return _of_self(op, dims, _begin_moments, _join_moments, partials, finish)

    return reduction


def _begin_moments(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
    rows, count = values[0].shape
    attrs: dict[str, object] = {"dim": [1], "correction": 0, "keepdim": True}
    results = [(DType.FLOAT, (rows, 1))] * 2
    spread, centre = code.run("aten.var_mean.correction", results, attrs, self=values[0])
    return [centre, code.binary("mul", spread, count), code.full(count, DType.FLOAT, rows, 1)]


def _join_moments(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
    centres, squares, counts = values
    total = code.summed(counts)
    centre = code.binary("div", code.summed(code.binary("mul", centres, counts)), total)
    apart = code.binary("sub", centres, centre)
    between = code.binary("mul", code.binary("mul", apart, apart), counts)
    return [centre, code.summed(code.binary("add", squares, between)), total]


def _of_self(
    op: Op, dims: Dims, begin: Folding, join: Folding, partials: Sequence[tuple[str, DType]],
    finish: Callable[[Code, list[Tensor]], Sequence[Tensor]] | None = None,
) -> Reduction:
    source = op.inputs[0]
    return Reduction(
        rows_of(source.shape, dims(op, source)), (Taken("self", source.dtype),),
        [result(op, number) for number in range(len(op.outputs))], begin, join, partials, finish=finish,
    )
