"""Updates that are scaled by norms of whole tensors: LAMB and LARS, whose vertices each have a run of a weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchipu.device.tilings.folds import sum_of_squares
from torchipu.device.tilings.pointwise import operand_region
from torchipu.device.tilings.reduction import Reduction
from torchipu.device.tilings.stage import Taken
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Region, everything, ranges
from torchipu.ir.types import DType, Role
from torchipu.ir.vertices import Sizes, VertexSet, local, one_a_run

DIRECTION = "direction"
OF_WEIGHTS, OF_OTHER = "squares of weights", "squares of what they are compared with"
"""Partials: the sums of squares that the ratio is made of."""
LAMB_DIRECTION, LAMB_APPLY = "ipu.lamb_direction.default", "ipu.lamb_apply.default"
LARS_APPLY = "ipu.lars_apply.default"
_SQUARES = OF_WEIGHTS, OF_OTHER


# --------------------------------------------------------------------------- norms
def weights(op: Op) -> Reduction:
    """Return the reduction of the weights to the sum of their squares."""
    given = op.needed("param")
    return sum_of_squares(given.num_elements, Taken("param", given.dtype), OF_WEIGHTS)


def directions(op: Op) -> Reduction:
    """Return the reduction of the direction of an update to the sum of its squares."""
    read = Taken(DIRECTION, DType.FLOAT, is_partial=True)
    return sum_of_squares(op.needed("param").num_elements, read, OF_OTHER)


def gradients(op: Op) -> Reduction:
    """Return the reduction of the gradient to the sum of its squares."""
    given = op.needed("grad")
    return sum_of_squares(given.num_elements, Taken("grad", given.dtype), OF_OTHER)


# --------------------------------------------------------------------------- elements
def lamb_direction(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices that update the averages, and make the direction."""
    names = "param", "grad", "exp_avg", "exp_avg_sq", "hyper", "step"
    return _of_elements(op, runs, LAMB_DIRECTION, names, ("exp_avg", "exp_avg_sq"), direction=True)


def lamb_apply(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices that update the weights by the direction."""
    return _of_elements(op, runs, LAMB_APPLY, ("param", DIRECTION, *_SQUARES, "hyper"), ("param",))


def lars_apply(op: Op, runs: TileMapping, part: int = 0) -> VertexSet:
    """Return the vertices that update weights and momentum."""
    names = "param", "momentum_buffer", "grad", *_SQUARES, "hyper"
    return _of_elements(op, runs, LARS_APPLY, names, ("param", "momentum_buffer"))


def _of_elements(
    op: Op, runs: TileMapping, target: str, names: Sequence[str], written: Sequence[str], *, direction: bool = False,
) -> VertexSet:
    """Return one vertex for each run of the weight.

    Args:
        op: The update.
        runs: Of the weight.
        target: Of what a vertex computes.
        names: What it reads.
        written: The states that it overwrites.
        direction: Whether it makes the direction besides.
    """
    tiles, begin, end = one_a_run(runs)
    given = dict(zip(operand_labels(op), op.inputs, strict=True))
    weight = op.needed("param")
    states = [name for name in op.operands if name not in ("grad", "hyper", "step")]
    reads: list[Region] = []
    for name in names:
        if name == DIRECTION:
            reads.append(ranges(name, begin, end, DType.FLOAT))
        elif name in _SQUARES:
            nobody = np.zeros_like(begin)
            reads.append(ranges(name, nobody, nobody + 1, DType.FLOAT))
        elif name in ("hyper", "step"):
            reads.append(everything(name, given[name].num_elements, len(begin)))
        else:
            reads.append(operand_region(name, given[name], weight, begin, end))
    numbers = [states.index(name) for name in written]
    writes = [ranges("out" if number == 0 else f"out{number}", begin, end) for number in numbers]
    writes += [ranges(DIRECTION, begin, end, DType.FLOAT)] if direction else []

    def code(sizes: Sizes) -> Graph:
        inputs = tuple(_part(name, given, sizes[0]) for name in names)
        made = tuple(local(op.outputs[number], *sizes) for number in numbers)
        made += (Tensor("made", sizes, DType.FLOAT),) if direction else ()
        inner = Op(target.split(".")[1], inputs, made, op.attrs, target, tuple(names))
        return Graph("vertex", inputs, made, (inner,))

    return VertexSet(tiles, tuple(reads), tuple(writes), (end - begin).reshape(-1, 1), code)


def _part(name: str, given: dict[str, Tensor], count: int) -> Tensor:
    """Return what a vertex reads under a name; sums of squares are doubles, which are floats on the tile."""
    if name == DIRECTION:
        return Tensor(name, (count,), DType.FLOAT)
    if name in _SQUARES:
        return Tensor(name, (1,), DType.LONG, Role.GRADIENT)
    tensor = given[name]
    return local(tensor, *(tensor.shape if name in ("hyper", "step") else (count,)))
