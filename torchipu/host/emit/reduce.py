"""Reductions of values that lie anyhow: sums, products and extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torchipu._kernels.table.kernel import Kernel, Nothing
from torchipu._kernels.table.reduce import (
    INTEGER_PANEL,
    LOGSUMEXP_LANES,
    LOGSUMEXP_ROWS,
    REDUCE_COLUMNS,
    REDUCE_DIMS,
    REDUCE_FEW,
    REDUCE_PANEL,
    REDUCE_ROWS,
    REDUCE_SHORT,
    Folding,
    Integer,
    LogsumexpLanesInts,
    LogsumexpRowsInts,
    ReduceInts,
    ReduceScalars,
    ReduceSpace,
)
from torchipu.host.emit.copy import emit_copy
from torchipu.host.emit.stored import STORED
from torchipu.ir.sizes import flag_of, largest, of_numbers
from torchipu.ir.types import DType
from torchipu.optable.alternatives import EitherTensor, chosen, number_of, other_or
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor, collapse, contiguous_strides
from torchipu.optable.planner import HostPlanner
from torchipu.optable.samples import Samples

SHARE = 16384  # elements of one thread's share
LEAST_COLUMNS = 16  # fewer do not fill a vector
SHORT_ROW = 32  # up to which rows are turned into columns where extremes are sought with their places
MIN_CHUNK = 16384  # a long reduction is cut into chunks of at least this many elements ...
MAX_CHUNKS = 32  # ... but never more chunks than this: a fixed number, so that results do not depend on threads
LEAST_TALL = 16  # rows that are left where several of few columns are taken as one
MIN_COLUMNS = 8  # a vector's: of fewer columns most of one stays empty
MOST_IN_LANES = 2048
"""Exponentials that a lane adds up one after the other; longer sums go in blocks, and lose less."""
JOINING = {
    Folding.SUM_SQUARES: Folding.SUM, Folding.SUM_MAGNITUDES: Folding.SUM, Folding.LARGEST_MAGNITUDE: Folding.LARGEST,
}
"""How results of chunks are joined: squares and magnitudes have been taken by then."""

INTEGERS = {
    DType.LONG: Integer.LONG, DType.INT: Integer.INT, DType.SHORT: Integer.SHORT, DType.CHAR: Integer.CHAR,
    DType.UNSIGNED_CHAR: Integer.UNSIGNED_CHAR, DType.BOOL: Integer.UNSIGNED_CHAR,
}


_Walk = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides."""


def _split(held: HostTensor, dims: Sequence[int]) -> tuple[_Walk, _Walk]:
    """Return what is kept and what is reduced, merged where dimensions lie one after another.

    What is reduced is gone through as it lies: whole tensors with their channels last are one run.
    """
    halves = []
    kept = [d for d in range(len(held.shape)) if d not in dims]
    for half in (kept, sorted(dims, key=lambda d: -abs(held.strides[d]))):
        shape, (strides,) = collapse([held.shape[d] for d in half], [held.strides[d] for d in half])
        if 0 in shape:  # nothing to reduce: the kernels still divide by sizes
            shape, strides = (1,), (0,)
        halves.append((shape, strides))
    return halves[0], halves[1]


def rows_of(plan: HostPlanner, held: HostTensor, dims: Sequence[int]) -> HostTensor:
    """Return the operand as a dense ``[results, reduced]`` matrix, copied where it does not lie so."""
    kept = [d for d in range(len(held.shape)) if d not in dims]
    order = [*kept, *dims]
    view = HostTensor(
        held.buffer, held.offset, tuple(held.shape[d] for d in order), tuple(held.strides[d] for d in order),
        held.dtype,
    )
    rows, length = math.prod(held.shape[d] for d in kept), math.prod(held.shape[d] for d in dims)
    if not view.is_contiguous:
        dense = plan.scratch(view.shape, held.dtype)
        emit_copy(plan, dense, view)
        view = dense
    return HostTensor(view.buffer, view.offset, (rows, length), contiguous_strides((rows, length)), held.dtype)


def columns_of(plan: HostPlanner, held: HostTensor, dims: Sequence[int]) -> HostTensor | None:
    """Return the operand as dense matrices ``[matrices, reduced, columns]``; None where rows are better gone along.

    To take rows of a few values one by one takes longer than to turn them into columns, of which each lane has one.

    Args:
        plan: Receives a copy where the operand does not lie so.
        held: The operand, any strides.
        dims: That are reduced; one of them, or None is returned.
    """
    if len(dims) != 1 or held.num_elements == 0:
        return None
    dim = dims[0]
    before, extent, behind = math.prod(held.shape[:dim]), held.shape[dim], math.prod(held.shape[dim + 1 :])
    if behind >= LEAST_COLUMNS:
        lies = held
        if not held.is_contiguous:
            lies = plan.scratch(held.shape, held.dtype)
            emit_copy(plan, lies, held)
        shape = (before, extent, behind)
        return HostTensor(lies.buffer, lies.offset, shape, contiguous_strides(shape), held.dtype)
    if extent > SHORT_ROW or before * behind < LEAST_COLUMNS:
        return None
    turned = held.permuted((dim, *(other for other in range(len(held.shape)) if other != dim)))
    lies = plan.scratch(turned.shape, held.dtype)
    emit_copy(plan, lies, turned)
    shape = (1, extent, before * behind)
    return HostTensor(lies.buffer, lies.offset, shape, contiguous_strides(shape), held.dtype)


def emit_reduction(
    plan: HostPlanner, out: HostTensor, held: HostTensor, dims: Sequence[int], folding: Folding, *,
    scale: float = 1.0, root: bool = False,
) -> None:
    """Emit the reduction of float values to ``out``, row-major over the kept dimensions.

    Args:
        plan: Receives the steps.
        out: FLOAT, as many elements as the kept dimensions have.
        held: FLOAT operand, any strides; HALF or BFLOAT where `reduces_stored` says so.
        dims: Dimensions to reduce, ascending.
        folding: What becomes of the values.
        scale: Multiplies the result.
        root: Take the square root of that.
    """
    if out.num_elements == 0:
        return
    (kept, kept_strides), (reduced, reduced_strides) = _split(held, dims)
    if len(kept) > REDUCE_DIMS or len(reduced) > REDUCE_DIMS:
        held, dims = rows_of(plan, held, dims), (1,)
        (kept, kept_strides), (reduced, reduced_strides) = _split(held, dims)
    total, results = math.prod(held.shape[d] for d in dims), math.prod(kept)
    columns = _columns((kept, kept_strides), (reduced, reduced_strides))
    together = _rows_together(columns, total, reduced_strides, held)
    if together > 1:  # a row of as many columns as a panel has; then these, which are few
        rest, dim = kept[:-1], len(kept) - 1
        wide = HostTensor(held.buffer, held.offset, (*rest, total // together, together * columns),
                          (*kept_strides[:-1], together * columns, 1), held.dtype)
        sums = plan.scratch((*rest, together, columns))
        emit_reduction(plan, sums, wide, (dim,), folding)
        emit_reduction(plan, out, sums, (dim,), JOINING.get(folding, folding), scale=scale, root=root)
        return
    most = _most_together(columns, total, reduced_strides, held)
    if most > 2 * together and type(total) is int:
        rest, outer = kept[:-1], kept_strides[:-1]
        sums, dim, main = plan.scratch((*rest, most + 1, columns)), len(rest), total // most * most
        for begin, rows, count in ((0, main // most, most), (main, total - main, 1)):  # a few rows are left over
            part = HostTensor(
                held.buffer, held.offset + begin * columns, (*rest, rows, count * columns),
                (*outer, count * columns, 1), held.dtype,
            )
            place = HostTensor(
                sums.buffer, sums.offset + (most * columns if begin else 0), (*rest, count, columns), sums.strides,
                sums.dtype,
            )
            found = place if place.is_contiguous else plan.scratch(place.shape)
            emit_reduction(plan, found, part, (dim,), folding)
            if found is not place:
                emit_copy(plan, place, found)
        emit_reduction(plan, out, sums, (dim,), JOINING.get(folding, folding), scale=scale, root=root)
        return
    if _are_few(columns, reduced, held) and columns < results:
        columns = 0
    items = results if not columns else results // columns * -(-columns // REDUCE_PANEL)
    cutting = cutting_of(plan, out, total, results, items)
    target = cutting.target(plan, out, results)
    if columns:
        kept, kept_strides = (kept[:-1], kept_strides[:-1]) if len(kept) > 1 else ((1,), (0,))
    is_cut, last = cutting.is_cut, cutting.is_cut is False
    plan.step(
        REDUCE_COLUMNS if columns else REDUCE_ROWS, [target], [held],
        ints=ReduceInts(
            folding, _space(kept, kept_strides), _space(reduced, reduced_strides), total, cutting.chunk,
            cutting.chunks, number_of(is_cut, False, root), columns, STORED[held.dtype],
        ),
        scalars=ReduceScalars(number_of(is_cut, 1.0, scale)), items=items * cutting.chunks,
        grain=largest(1, SHARE // largest(1, cutting.chunk * (min(columns, REDUCE_PANEL) if columns else 1))),
        writes=[Blocks.of((results // columns, columns), (1, REDUCE_PANEL)) if columns else Blocks.of((results,), (1,))]
        if last else [],
        samples=None if columns else chosen(is_cut, None, _samples(results, out, held, dims)),
    )
    if last:
        return
    # rows leave their partials beside each other, columns one block of results after another
    shape, dim = ((cutting.partials, results), 0) if columns else ((results, cutting.partials), 1)
    with plan.only_where(is_cut):
        joining = JOINING.get(folding, folding)
        emit_reduction(plan, out, partials_of(target, shape), (dim,), joining, scale=scale, root=root)


def _samples(results: int, out: HostTensor, held: HostTensor, dims: Sequence[int]) -> Samples:
    """Return the samples of a reduction: of each result what is reduced to it, wherever that lies."""
    kept = [dim for dim in range(len(held.shape)) if dim not in dims]
    return Samples.of(results, out, held.permuted([*kept, *dims]))


def emit_logsumexp(plan: HostPlanner, out: HostTensor, held: HostTensor, dims: Sequence[int]) -> None:
    """Emit ``log(sum(exp(held)))`` over some dimensions, ascending, without overflow; all is FLOAT."""
    (kept, kept_strides), (reduced, reduced_strides) = _split(held, dims)
    total = math.prod(reduced)
    is_one_run = len(reduced) == 1 and len(kept) <= REDUCE_DIMS and held.num_elements > 0
    are_beside = kept_strides[-1] == 1 and kept[-1] >= MIN_COLUMNS and reduced_strides[-1] != 1
    if is_one_run and (total <= MOST_IN_LANES if are_beside else total <= REDUCE_SHORT):
        plan.step(
            LOGSUMEXP_LANES, [out], [held],
            ints=LogsumexpLanesInts(total, reduced_strides[0], are_beside, _space(kept, kept_strides)),
            items=out.num_elements, grain=largest(REDUCE_PANEL if are_beside else 1, SHARE // (8 * total)),
            writes=[Blocks.of((out.num_elements,), (1,))], samples=_samples(out.num_elements, out, held, dims),
        )
        return
    rows = rows_of(plan, held, dims)
    plan.step(
        LOGSUMEXP_ROWS, [out], [rows], ints=LogsumexpRowsInts(rows.shape[1]), items=rows.shape[0],
        grain=largest(1, SHARE // (8 * largest(1, rows.shape[1]))), writes=[Blocks.of(rows.shape[:1], (1,))],
        samples=Samples.of(rows.shape[0], out, rows),
    )


def reduces_stored(held: HostTensor, dims: Sequence[int], folding: Folding) -> bool:
    """Whether halves or bfloats are reduced as they lie, along rows, or added down columns.

    To make floats of them is a pass of its own.
    """
    if held.dtype not in (DType.HALF, DType.BFLOAT) or not held.num_elements:
        return False
    kept, reduced = _split(held, dims)
    if max(len(kept[0]), len(reduced[0])) > REDUCE_DIMS:
        return False
    if _columns(kept, reduced):
        return folding is Folding.SUM
    return bool(reduced[1][-1] == 1 and reduced[0][-1] > REDUCE_FEW)


def _columns(kept: _Walk, reduced: _Walk) -> int:
    """Return how many columns lie beside each other down which is reduced; 0 where rows are."""
    (shape, strides), (_, reduced_strides) = kept, reduced
    return shape[-1] if strides[-1] == 1 and reduced_strides[-1] != 1 and shape[-1] > 1 else 0


def _rows_together(columns: int, total: int, strides: Sequence[int], held: HostTensor) -> int:
    """Return how many rows of few columns are taken as one, where they lie one behind the other; 1 for each alone."""
    most = _most_together(columns, total, strides, held)
    return next(count for count in range(most, 0, -1) if total % count == 0)


def _most_together(columns: int, total: int, strides: Sequence[int], held: HostTensor) -> int:
    """Return how many rows of few columns may be taken as one, where they lie one behind the other."""
    if not columns or tuple(strides) != (columns,) or held.dtype is not DType.FLOAT:
        return 1
    return max(1, min(REDUCE_PANEL // columns, total // LEAST_TALL))


def _are_few(columns: int, reduced: Sequence[int], held: HostTensor) -> bool:
    """Whether columns are so few and short that each of them takes a lane of a vector, beside those of other rows."""
    return columns < MIN_COLUMNS and len(reduced) == 1 and reduced[0] <= REDUCE_SHORT and held.dtype is DType.FLOAT


@dataclass(frozen=True, slots=True)
class Cutting:
    """How what is reduced is cut into chunks, whose partial results another step joins.

    Attributes:
        chunk: Elements of a chunk.
        chunks: How many.
        is_cut: Whether there are several; a number, where sizes decide.
        partials: As many, and several in any case: for steps of which a plan has none for a single one.
    """

    chunk: int
    chunks: int
    is_cut: Any
    partials: int

    def target(self, plan: HostPlanner, out: HostTensor, results: int) -> HostTensor:
        """Return where so many results of each chunk go: beside each other, or where those of a single one are due."""
        if self.is_cut is False:
            return out
        return other_or(self.is_cut, plan.scratch((self.partials * results,), DType.FLOAT), out)

    def decided(self) -> Cutting:
        """Return the same where steps differ by whether it is cut."""
        return replace(self, is_cut=bool(self.is_cut), partials=self.chunks)


def cutting_of(plan: HostPlanner, out: HostTensor, total: int, results: int, items: int) -> Cutting:
    """Return how a reduction is cut.

    Args:
        plan: The planner.
        out: Where results are due: where these become halves, it is decided what step makes them.
        total: Elements that are reduced to a result.
        results: How many.
        items: Of a reduction that is not cut.
    """
    chunk, chunks, is_several = chunks_of(total, results, items)
    is_cut = flag_of(is_several) if plan.stays_floats(out) else bool(is_several)
    return Cutting(chunk, chunks, is_cut, chunks if isinstance(is_cut, bool) else largest(2, chunks))


def partials_of(target: HostTensor, shape: tuple[int, ...]) -> HostTensor:
    """Return the results of chunks, which lie where they went to."""
    held = target.other if isinstance(target, EitherTensor) else target
    return HostTensor(held.buffer, held.offset, shape, contiguous_strides(shape), DType.FLOAT)


@of_numbers
def chunks_of(total: int, results: int, items: int) -> tuple[int, int, bool]:
    """Return the length and the number of chunks of the reduced space, and whether these are several.

    They are several only when few items share much work.
    """
    work = total * results
    chunks = max(1, min(MAX_CHUNKS, work // MIN_CHUNK, total // 32, -(-MAX_CHUNKS // items)))
    chunk = -(-total // chunks) if total else 1
    chunks = max(1, -(-total // chunk))
    return chunk, chunks, chunks > 1


def _space(shape: Sequence[int], strides: Sequence[int]) -> ReduceSpace:
    return ReduceSpace(len(shape), _filled(shape), _filled(strides))


def _filled(numbers: Sequence[int]) -> tuple[int, int, int, int, int, int, int, int]:
    a, b, c, d, e, f, g, h = (*numbers, *(0,) * (REDUCE_DIMS - len(numbers)))
    return a, b, c, d, e, f, g, h


def emit_exact(
    plan: HostPlanner, kernel: Kernel[ReduceInts, Nothing], out: HostTensor, held: HostTensor, dims: Sequence[int],
    folding: Folding,
) -> None:
    """Emit an integer or bool reduction; order does not matter to these."""
    (kept, kept_strides), (reduced, reduced_strides) = _split(held, dims)
    if len(kept) > REDUCE_DIMS or len(reduced) > REDUCE_DIMS:
        held, dims = rows_of(plan, held, dims), (1,)
        (kept, kept_strides), (reduced, reduced_strides) = _split(held, dims)
    total, items = math.prod(held.shape[d] for d in dims), out.num_elements
    columns = _columns((kept, kept_strides), (reduced, reduced_strides)) if total > 0 else 0
    if columns:
        items = items // columns * -(-columns // INTEGER_PANEL)
        kept, kept_strides = (kept[:-1], kept_strides[:-1]) if len(kept) > 1 else ((1,), (0,))
    plan.step(
        kernel, [out], [held],
        ints=ReduceInts(
            folding, _space(kept, kept_strides), _space(reduced, reduced_strides), total, max(1, total), chunks=1,
            root=False, columns=columns, integer=INTEGERS[held.dtype],
        ),
        items=items, grain=largest(1, SHARE // largest(1, total * (min(columns, INTEGER_PANEL) or 1))),
    )
