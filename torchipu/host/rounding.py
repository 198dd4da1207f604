"""Rounding within the steps that compute: which steps write a half result, and what they leave for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torchipu._kernels.table.round_blocks import BLOCK_DIMS, BlockDim, RoundBlocksInts
from torchipu.host.steps import Ending, Step
from torchipu.ir.types import DType
from torchipu.optable.blocks import Along, Blocks
from torchipu.optable.host_tensor import HostTensor, Rounding

MOST_SCRATCH_FLOATS = 256 * 1024
"""Results of a chunk that may stay in scratch: what a second-level cache holds."""
NEAR_FLOATS = 4096
"""Results of a chunk where it may have any number of items: half a first-level cache has them until all are rounded."""


@dataclass(frozen=True, slots=True)
class Computed:
    """A result that an op computes as floats and stores as halves, or as bfloats.

    Attributes:
        floats: As they are computed, row-major.
        halves: Where they are stored, row-major.
        rounding: How.
    """

    floats: HostTensor
    halves: HostTensor
    rounding: Rounding


def end_steps(steps: Sequence[Step], result: Computed) -> bool:
    """Let the steps of an op round what they write; return whether they do.

    Those that write the last of it are told to: one step that writes all, or several that write a part each.

    Args:
        steps: All steps of the op.
        result: Which of its results; nothing outside the steps looks at the floats.
    """
    buffer = result.floats.buffer
    writing = [step for step in steps if any(held.buffer == buffer for held in step.outputs)]
    last = _last_to_write(writing, buffer, result.floats.num_elements)
    if not last:
        return False
    touching = [step for step in steps if any(held.buffer == buffer for held in (*step.outputs, *step.inputs))]
    is_read = len(touching) > len(last) or any(
        sum(held.buffer == buffer for held in step.outputs) > 1 for step, _, _ in last
    )
    for step, place, blocks in last:
        begins = step.outputs[place].offset - result.floats.offset  # the step may write a view
        placed = simplified(replace(blocks, first=blocks.first + begins))
        ending = Ending(place, result.halves, result.rounding, placed, begins, is_last=not is_read)
        # Several steps meet in one cache line of the halves alone; their floats may lie anywhere.
        per_item = 0 if is_read or step.reads_outputs else ending.blocks.item_floats
        if per_item and step.samples is not None:  # which are computed alike in any chunk
            step.grain = max(1, step.grain // 4, min(step.grain, NEAR_FLOATS // per_item))
        if per_item * step.grain <= MOST_SCRATCH_FLOATS and per_item:
            ending = replace(ending, item_floats=per_item)
        step.endings = (*step.endings, ending)
        step.joining = None  # every run has random bits of its own
    return True


def _last_to_write(writing: Sequence[Step], buffer: int, count: int) -> list[tuple[Step, int, Blocks]]:
    """Return the steps after which a result is there, and where among their outputs; none where unclear."""
    found = []
    for step in writing:
        places = [place for place, held in enumerate(step.outputs) if held.buffer == buffer]
        if not places or step.together or step.kernel is None or step.is_there is not True:
            return []
        blocks = step.writes[places[0]] if places[0] < len(step.writes) else None
        if blocks is not None and blocks.num_blocks != step.items:
            raise ValueError(f"{step.kernel.name} has {step.items} items, which write {blocks.num_blocks} blocks")
        found.append((step, places[0], blocks))
    whole = [(step, place, blocks) for step, place, blocks in found[-1:] if blocks and blocks.num_elements == count]
    if whole:
        return whole
    parts = [(step, place, blocks) for step, place, blocks in found if blocks is not None and not step.reads_outputs]
    is_whole = len(parts) == len(found) and sum(blocks.num_elements for _, _, blocks in parts) == count
    return parts if is_whole else []


def simplified(blocks: Blocks) -> Blocks:
    """Join dimensions that items do not cut with those before them where their elements adjoin."""
    dims: list[Along] = []
    for dim in blocks.dims:
        before = dims[-1] if dims else None
        is_plain = dim.inner >= dim.size and dim.block >= dim.size
        if before is not None and is_plain and before.inner >= before.size and (
            before.step == dim.step * dim.size or before.size == 1
        ):
            dims[-1] = Along(
                before.size * dim.size, before.block * dim.size, before.size * dim.size, dim.step,
            )
        else:
            dims.append(dim)
    return replace(blocks, dims=tuple(dims))


def ints_of(ending: Ending) -> RoundBlocksInts:
    """Return the integers of the kernel that rounds.

    Raises:
        ValueError: The blocks have too many dimensions.
    """
    dims = ending.blocks.dims
    if len(dims) > BLOCK_DIMS:
        raise ValueError(f"items write blocks of {len(dims)} dimensions, at most {BLOCK_DIMS}")
    steps = [dim.step if dim.size > 1 else 1 << 62 for dim in dims]
    return RoundBlocksInts(
        ending.rounding.overflow, ending.blocks.first, ending.begins, len(dims),
        along=steps.index(min(steps)) if steps else 0, keeps=ending.keeps,
        to_bfloats=ending.halves.dtype is DType.BFLOAT,
        run=ending.blocks.item_floats, elements=ending.blocks.num_elements,
        dims=tuple(
            BlockDim(dim.size, dim.block, max(1, dim.inner), max(1, dim.step), max(1, dim.middle), dim.outer,
                     dim.outmost)
            for dim in dims
        ),
    )
