"""The stages of losses of labels and of pairs, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import numpy as np

from torchipu.device.tilings.code import Code
from torchipu.device.tilings.reduction import Reduction, add_up
from torchipu.device.tilings.stage import Stage, Taken, operand, partial_of, result
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, everything, listed, ranges
from torchipu.ir.types import DType
from torchipu.ir.vertices import Sizes, VertexSet, one_a_run

NONE, MEAN, SUM = 0, 1, 2  # as PyTorch numbers what becomes of the losses


# --------------------------------------------------------------------------- losses of labels
def classes_of(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return samples, classes and positions of ``[C]`` or ``[N, C, ...]``."""
    return (1, shape[0], 1) if len(shape) == 1 else (shape[0], shape[1], prod(shape[2:]))


def _by_label(shape: tuple[int, ...]) -> Numbers:
    """Return the elements of each label: ``[labels, classes]``."""
    samples, classes, positions = classes_of(shape)
    numbers = np.arange(samples * classes * positions, dtype=np.int64).reshape(samples, classes, positions)
    return numbers.swapaxes(1, 2).reshape(-1, classes)


def picked(op: Op, runs: TileMapping, part: int) -> VertexSet:
    """Return vertices that pick the losses of their labels, and the weights of these.

    Args:
        op: ``nll_loss_forward``.
        runs: Of labels.
        part: The only one.
    """
    x, labels, weight = op.needed("self"), op.needed("target"), op.operand("weight")
    table, is_apart = _by_label(x.shape), _reduction(op, x) == NONE
    tiles, begin, end = one_a_run(runs)
    reads = [listed("self", table.reshape(-1), (end - begin) * table.shape[1]), ranges("target", begin, end)]
    if weight is not None:
        reads.append(everything("weight", weight.num_elements, len(tiles)))

    def code(sizes: Sizes) -> Graph:
        count, written = sizes[0], Code()
        values = [written.given(x.dtype, count, table.shape[1]), written.given(labels.dtype, count)]
        factor = written.given(weight.dtype, weight.num_elements) if weight is not None else None
        losses = _losses(written, op, values[0], values[1], factor, op.outputs[0].dtype if is_apart else DType.FLOAT)
        if is_apart:
            return written.graph([losses])
        ones = written.full(-1.0, DType.FLOAT, count, table.shape[1])  # whose losses are the weights
        return written.graph([losses, _losses(written, op, ones, values[1], factor, DType.FLOAT)])

    writes = [ranges("out", begin, end)] if is_apart else [
        ranges(name, begin, end, DType.FLOAT) for name in ("losses", "weights")]
    return VertexSet(tiles, tuple(reads), tuple(writes), (end - begin).reshape(-1, 1), code)


def _losses(code: Code, op: Op, x: Tensor, labels: Tensor, weight: Tensor | None, dtype: DType) -> Tensor:
    attrs: dict[str, object] = {"reduction": NONE, "ignore_index": op.integer("ignore_index")}
    return code.run("aten.nll_loss_forward.default", [(dtype, labels.shape), (DType.FLOAT, ())], attrs, self=x,
                    target=labels, weight=weight)[0]


def _reduction(op: Op, x: Tensor) -> int:
    """Return what becomes of the losses; a lone sample has the same one whichever way."""
    reduction = op.integer("reduction")
    return SUM if reduction == NONE and len(x.shape) == 1 else reduction


def joined(op: Op) -> Reduction:
    """Return the reduction of picked losses and of their weights."""
    reduction, labels = _reduction(op, op.needed("self")), op.needed("target").num_elements
    if reduction == NONE:
        return _no_weight(op)

    def finish(code: Code, sums: list[Tensor]) -> list[Tensor]:
        loss, weight = sums
        made = code.binary("div", loss, weight, op.outputs[0].dtype) if reduction == MEAN else code.cast(
            loss, op.outputs[0].dtype)
        return [made, code.cast(weight, op.outputs[1].dtype)]

    return Reduction(
        np.arange(labels, dtype=np.int64).reshape(1, -1), (partial_of("losses"), partial_of("weights")),
        (result(op), result(op, 1)), add_up, add_up, (("losses.sums", DType.FLOAT), ("weights.sums", DType.FLOAT)),
        finish=finish,
    )


def _no_weight(op: Op) -> Reduction:
    """Return the sum of no weights, which eager mode gives beside losses that are not reduced."""

    def zero(code: Code, values: list[Tensor], types: Sequence[DType], span: int) -> list[Tensor]:
        return [code.full(0.0, types[0], 1, 1)]

    return Reduction(np.zeros((1, 1), np.int64), (), (result(op, 1),), zero, zero, (("nothing", DType.FLOAT),))


def spread(op: Op, runs: TileMapping, part: int) -> VertexSet:
    """Return vertices that make the gradients of all classes of their labels, of which one is not 0.

    Args:
        op: ``nll_loss_backward``.
        runs: Of labels.
        part: The only one.
    """
    x, names = op.needed("self"), ("grad_output", "self", "target", "weight", "total_weight")
    table = _by_label(x.shape)
    tiles, begin, end = one_a_run(runs)
    counts = (end - begin) * table.shape[1]
    is_apart = op.integer("reduction") == NONE and len(x.shape) > 1
    given = {name: op.operand(name) for name in names if name != "self" and op.operand(name) is not None}

    def region(name: str) -> Region:
        if name == "target" or (name == "grad_output" and is_apart):
            return ranges(name, begin, end)
        return everything(name, op.needed(name).num_elements, len(tiles))

    def code(sizes: Sizes) -> Graph:
        count, written = sizes[0], Code()
        shapes = {"target": (count,), "grad_output": (count,) if is_apart else (), "total_weight": ()}
        values = {name: written.given(op.needed(name).dtype, *shapes.get(name, op.needed(name).shape))
                  for name in given}
        zeros = written.full(0.0, x.dtype, count, table.shape[1])  # only its shape matters
        reduction = op.integer("reduction") if len(x.shape) > 1 or op.integer("reduction") != NONE else SUM
        attrs: dict[str, object] = {"reduction": reduction, "ignore_index": op.integer("ignore_index")}
        held = {name: zeros if name == "self" else values.get(name) for name in names}
        return written.graph(written.run(
            "aten.nll_loss_backward.default", [(op.outputs[0].dtype, zeros.shape)], attrs, **held))

    writes = (listed("out", table.reshape(-1), counts),)
    return VertexSet(tiles, tuple(map(region, given)), writes, (end - begin).reshape(-1, 1), code)


# --------------------------------------------------------------------------- losses of pairs
Computed = tuple[Callable[[Op], Stage], ...]


def difference(op: Op) -> Stage:
    """Take the target from the input."""
    return Stage((operand(op, "self"), operand(op, "target")), (partial_of("difference"),),
                 lambda c, v: [c.binary("sub", v[0], v[1], DType.FLOAT)])


def _kept(op: Op) -> Taken:
    """Return the writing of losses: results as they are, or partials of their sum."""
    return result(op) if op.outputs[0].num_elements == op.needed("self").num_elements else partial_of("losses")


def of_difference(op: Op) -> Stage:
    """Compute the losses of differences: of an input with a target of 0."""
    target = op.target
    attrs = {name: value for name, value in op.attrs.items() if name in ("beta", "delta")}

    def code(c: Code, values: list[Tensor]) -> Sequence[Tensor]:
        zeros = c.full(0.0, DType.FLOAT, *values[0].shape)
        return c.run(target, [(_kept(op).dtype, zeros.shape)], {"reduction": NONE, **attrs}, self=values[0],
                     target=zeros)

    return Stage((partial_of("difference"),), (_kept(op),), code)


def of_pairs(op: Op) -> Stage:
    """Compute the losses of pairs themselves, with their weights."""
    names = [name for name in ("self", "target", "weight", "pos_weight") if op.operand(name) is not None]

    def code(c: Code, values: list[Tensor]) -> Sequence[Tensor]:
        return c.run(op.target, [(_kept(op).dtype, values[0].shape)], {"reduction": NONE},
                     **dict(zip(names, values, strict=True)))

    return Stage([_paired(op, name) for name in names], (_kept(op),), code)


def _paired(op: Op, name: str) -> Taken:
    """Return the reading of an operand that may be one row, which then repeats; also one of a single element."""
    elements, held = op.needed("self").num_elements, op.needed(name)
    index = None if held.num_elements == elements else np.arange(elements, dtype=np.int64) % held.num_elements
    return Taken(name, held.dtype, index)


def summed(op: Op) -> Reduction:
    """Return the reduction of losses of pairs."""
    elements = op.needed("self").num_elements
    share = 1 / elements if op.integer("reduction") == MEAN else 1.0
    return Reduction(
        np.arange(elements, dtype=np.int64).reshape(1, -1), (_kept(op),), (result(op),), add_up, add_up,
        finish=lambda code, sums: [code.binary("mul", sums[0], share, op.outputs[0].dtype)],
    )


def _upstream(op: Op) -> tuple[Taken, float]:
    """Return the reading of the gradient of the loss, and by how much it is shared out."""
    elements, held = op.needed("self").num_elements, op.needed("grad_output")
    index = np.zeros(elements, np.int64) if held.num_elements == 1 else None
    share = 1 / elements if op.integer("reduction") == MEAN else 1.0
    return Taken("grad_output", held.dtype, index), share


def slope(op: Op) -> Stage:
    """Compute how losses go with differences; see ``of_difference``."""
    attrs = {name: value for name, value in op.attrs.items() if name in ("beta", "delta")}

    def code(c: Code, values: list[Tensor]) -> Sequence[Tensor]:
        zeros, ones = (c.full(number, DType.FLOAT, *values[0].shape) for number in (0.0, 1.0))
        return c.run(op.target, [(DType.FLOAT, zeros.shape)], {"reduction": NONE, **attrs}, grad_output=ones,
                     self=values[0], target=zeros)

    return Stage((partial_of("difference"),), (partial_of("slope"),), code)


def scaled(name: str, factor: float = 1.0) -> Callable[[Op], Stage]:
    """Return the product of a partial with the gradient of the loss.

    Args:
        name: Of the partial.
        factor: Multiplies it too.
    """

    def stage(op: Op) -> Stage:
        upstream, share = _upstream(op)

        def code(c: Code, values: list[Tensor]) -> list[Tensor]:
            made = c.binary("mul", values[0], values[1], DType.FLOAT)
            return [c.binary("mul", made, factor * share, op.outputs[0].dtype)]

        return Stage((partial_of(name), upstream), (result(op),), code)

    return stage


def entropy_slope(op: Op) -> Stage:
    """Divide differences by how far probabilities are from 0 and 1."""
    upstream, share = _upstream(op)
    weight = [operand(op, "weight")] if op.operand("weight") is not None else []

    def code(c: Code, values: list[Tensor]) -> list[Tensor]:
        apart, x, gradient, *weights = values
        wide = c.cast(x, DType.FLOAT)
        from_one = c.binary("sub", c.full(1.0, DType.FLOAT), wide)
        room = c.unary("clamp", c.binary("mul", from_one, wide), DType.FLOAT, min=1e-12, max=None)
        made = c.binary("div", c.binary("mul", apart, gradient), room)
        for value in weights:
            made = c.binary("mul", made, value, DType.FLOAT)
        return [c.binary("mul", made, share, op.outputs[0].dtype)]

    return Stage((partial_of("difference"), operand(op, "self"), upstream, *weight), (result(op),), code)
