"""What boolean masks select: elements taken from a source in order, the reverse, and positions of non-zero elements."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torchipu._kernels.table.indexing import (
    MASK_BLOCK,
    MASK_COMPACT,
    MASK_COUNT,
    MASK_SCATTER,
    NONZERO,
    MaskCountInts,
    MaskedInts,
    NonzeroInts,
)
from torchipu.device.codelets import MULTI_SLICE, busiest_elements, reduction_codelet
from torchipu.device.compute_sets import GATHERED_SHARE, fits_tile
from torchipu.device.tilings.masked import counted, taken
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.shares import of_everything
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.arguments import BOOLEAN_MASK
from torchipu.optable.codelet import Vertices
from torchipu.optable.host_tensor import HostTensor, broadcast
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register
from torchipu.target import Target

_COUNT = reduction_codelet("popops::Reduce<add,int>")


def _spread(plan: HostPlanner, held: HostTensor, shape: tuple[int, ...]) -> HostTensor:
    """Return a row-major tensor repeated to a shape."""
    shown = broadcast(held, shape)
    if shown.is_contiguous:
        return shown
    fresh = plan.scratch(shape, held.dtype)
    emit_copy(plan, fresh, shown)
    return fresh


def _counts(plan: HostPlanner, mask: HostTensor) -> HostTensor:
    """Return how many elements each block of a mask sets."""
    blocks = -(-mask.num_elements // MASK_BLOCK)
    counts = plan.scratch((max(1, blocks),), DType.LONG)
    plan.step(MASK_COUNT, [counts], [mask], ints=MaskCountInts(mask.num_elements), items=blocks, grain=8)
    return counts


def _emit_masked_scatter(op: Op, plan: HostPlanner) -> None:
    out = plan.output(op.outputs[0])
    base = _spread(plan, plan.value(op.needed("self")), out.shape)
    mask = _spread(plan, plan.value(op.needed("mask"), DType.BOOL), out.shape)
    source = plan.value(op.needed("source"), out.dtype)
    ints = MaskedInts(out.num_elements, out.dtype.host_bytes, source.num_elements)
    plan.step(MASK_SCATTER, [out], [base, source, mask, _counts(plan, mask)], ints=ints,
              items=-(-out.num_elements // MASK_BLOCK), grain=8)


def _emit_masked_scatter_grad(op: Op, plan: HostPlanner) -> None:
    """Collect the gradients where the mask is set; the rest of the source has none."""
    dy = plan.value(op.needed("grad_output"))
    mask = _spread(plan, plan.value(op.needed("mask"), DType.BOOL), dy.shape)
    out = plan.output(op.outputs[0])
    emit_fill(plan, out, 0)
    ints = MaskedInts(dy.num_elements, dy.dtype.host_bytes, out.num_elements)
    plan.step(MASK_COMPACT, [out], [dy, mask, _counts(plan, mask)], ints=ints, items=-(-dy.num_elements // MASK_BLOCK),
              grain=8, reads_outputs=True)


def _emit_nonzero(op: Op, plan: HostPlanner) -> None:
    """List the coordinates of non-zero elements, as many as asked for; what is missing gets the fill value."""
    mask, out = plan.value(op.needed("self"), DType.BOOL), plan.output(op.outputs[0])
    fill = op.attrs.get("fill_value", -1)
    assert isinstance(fill, int)
    emit_fill(plan, out, fill)
    size, dims = out.shape
    ints = NonzeroInts(mask.num_elements, size, dims, mask.shape)
    plan.step(NONZERO, [out], [mask, _counts(plan, mask)], ints=ints,
              items=-(-mask.num_elements // MASK_BLOCK), grain=8, reads_outputs=True)


def _lower(op: Op, target: Target, taking: bool) -> tuple[Vertices, ...]:
    """Lower to a count of the elements before each tile's, and a look-up of what they take.

    Args:
        op: The op.
        target: The machine.
        taking: Whether elements of the mask take what the result is made of; else each of the result may be any.
    """
    result, mask = op.outputs[0], op.operand("mask") or op.needed("self")
    if result.num_elements == 0 or mask.num_elements == 0:
        return ()
    count = _count_set(target, mask.num_elements)
    look = _look_set(op, target, result)
    if not fits_tile(target, sum(tensor.device_bytes for tensor in op.inputs)):
        return count, look
    before = replace(count, tiling=counted if taking else nothing_left)
    return before, replace(look, tiling=taken(count.elements) if taking else of_everything)


def _count_set(target: Target, elements: int) -> Vertices:
    """Return the set that counts, of a mask, what each tile holds."""
    held = busiest_elements(target, elements, 1, 1)
    work = {"elements": 1, "partials": held, "vector_width": 4, "element_bytes": 1, "is_strided": 0}
    return Vertices(_COUNT, ceil_div(elements, held), lambda count: work, max_tiles=target.num_tiles)


def _look_set(op: Op, target: Target, result: Tensor) -> Vertices:
    """Return the set that takes elements one by one, of all there are: which of them is known only when it runs."""
    element_bytes = result.dtype.device_bytes
    num_bytes = min(sum(tensor.device_bytes for tensor in op.inputs), int(GATHERED_SHARE * target.tile_memory_bytes))
    return Vertices(
        MULTI_SLICE, result.num_elements,
        lambda count: {"rows": count, "elements": count, "element_bytes": element_bytes},
        grain=target.vector_width(element_bytes), gathered_bytes=num_bytes, fragments=len(op.inputs),
        temporary_bytes=num_bytes,
    )


_LOWER_SCATTER, _LOWER_COMPACT = partial(_lower, taking=True), partial(_lower, taking=False)
register(
    OpSpec("aten.masked_scatter.default", "masked_scatter", _LOWER_SCATTER, _emit_masked_scatter,
           constraints=(BOOLEAN_MASK,)),
    OpSpec("aten.masked_scatter_backward.default", "masked_scatter_backward", _LOWER_COMPACT,
           _emit_masked_scatter_grad),
    OpSpec("aten.nonzero_static.default", "nonzero_static", _LOWER_COMPACT, _emit_nonzero),
)
