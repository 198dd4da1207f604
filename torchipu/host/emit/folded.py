"""Reductions by the chain that makes what is reduced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torchipu._kernels.table.reduce import REDUCE_PANEL, Folding
from torchipu.host.emit.reduce import (
    JOINING,
    LEAST_TALL,
    MIN_COLUMNS,
    cutting_of,
    emit_reduction,
    partials_of,
)
from torchipu.ir.graph import Tensor
from torchipu.ir.sizes import of_numbers
from torchipu.optable.alternatives import number_of
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import ChainFold, HostPlanner

LEAST_FOLDED = 1 << 9
"""Elements of a value that a chain rather reduces than stores: of fewer it does not matter."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How a value without gaps is reduced in the order in which it lies.

    Attributes:
        results: Rows, or stacks of columns.
        length: Elements of a row, or rows of a stack.
        columns: Elements side by side down which is reduced; 0 where rows are reduced.
    """

    results: int
    length: int
    columns: int


def walk_of(held: HostTensor, dims: Sequence[int]) -> Walk | None:
    """Return how some dimensions of a value are reduced; None where what is kept lies in several places between them.

    Args:
        held: Without gaps in some order of its dimensions.
        dims: Which are reduced.
    """
    order = [dim for dim in held.order if held.shape[dim] != 1]
    kept = [dim for dim in order if dim not in dims]
    reduced = [place for place, dim in enumerate(order) if dim in dims]
    if not reduced or kept != sorted(kept) or reduced != list(range(reduced[0], reduced[0] + len(reduced))):
        return None
    before, behind = order[:reduced[0]], order[reduced[-1] + 1:]
    length = math.prod(held.shape[order[place]] for place in reduced)
    return Walk(
        math.prod(held.shape[dim] for dim in before), length,
        math.prod(held.shape[dim] for dim in behind) if behind else 0,
    )


def emit_by_chain(
    plan: HostPlanner, source: Tensor, dims: Sequence[int], folding: Folding, output: Callable[[], HostTensor], *,
    scale: float = 1.0, root: bool = False,
) -> bool:
    """Emit a reduction by the chain that makes what is reduced, and return whether there is one that can.

    Args:
        plan: Receives the steps.
        source: What is reduced, of floating type.
        dims: Dimensions to reduce, ascending.
        folding: What becomes of the values.
        output: Returns FLOAT storage for the results.
        scale: Multiplies the result.
        root: Take the square root of that.
    """
    held = plan.foldable(source)
    if held is None or held.num_elements < LEAST_FOLDED:
        return False
    walk = walk_of(held, dims)
    if walk is None:
        return False
    results, length, columns = walk.results, walk.length, walk.columns
    together = _rows_together(length, columns) if columns else 1
    if columns and columns * together < MIN_COLUMNS:
        return False
    out = output()
    length, width = (length // together, columns * together) if columns else (length, 0)
    each = results * (width or 1)
    cutting = cutting_of(plan, out, length, each, results * (-(-width // REDUCE_PANEL) if width else 1))
    if not width or together > 1:  # other steps altogether
        cutting = cutting.decided()
    is_joined = together > 1 or cutting.is_cut
    target = plan.scratch((cutting.chunks * each,)) if together > 1 else cutting.target(plan, out, each)
    fold = ChainFold(
        target, folding, results, length, width, cutting.chunk, cutting.chunks, number_of(is_joined, 1.0, scale),
        number_of(is_joined, False, root), cutting.is_cut,
    )
    plan.fold_chain(source, fold)
    if is_joined is False:
        return True
    # Rows leave their partials beside each other, columns one block of results after another.
    shape = (cutting.partials, results, together, columns) if width else (results, cutting.partials)
    dims, joining = (0, 2) if width else (1,), JOINING.get(folding, folding)
    with plan.only_where(is_joined):
        emit_reduction(plan, out, partials_of(target, shape), dims, joining, scale=scale, root=root)
    return True


@of_numbers
def _rows_together(length: int, columns: int) -> int:
    """Return how many rows of few columns are taken as one, which a panel has room for."""
    most = max(1, min(REDUCE_PANEL // columns, length // LEAST_TALL))
    return next(count for count in range(most, 0, -1) if length % count == 0)
