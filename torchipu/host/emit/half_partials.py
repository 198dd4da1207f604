"""Host steps of products with half partials: sums are written back as halves every 16 channels.

Where the plan of the device lets several tiles share the summands, each sums a part of its own from zero, a run of
groups, and the parts are added up: the plan follows from the shapes and the machine, and so do the values. The
accumulators of that reduction hold floats (``accW``, ipu_hardware.md 2.2); what they come to is rounded to a half.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from torchipu._kernels.table.gemm import PANEL
from torchipu._kernels.table.half_partials import HALF_BLOCK, HALF_PRODUCT, HalfProductInts, HalfProductScalars
from torchipu.host.emit.items import LEAST_CHUNK_MACS, LEAST_ITEMS, grain_for
from torchipu.host.emit.packing import packed_panels, rows_apart
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocks import Along, Blocks
from torchipu.optable.host_tensor import HostTensor, Rounding, broadcast
from torchipu.optable.planner import HostPlanner

HALF_GROUP = 16  # channels that the matrix unit sums before it writes back, of halves; ipu_hardware.md 5
MOST_ROWS, MOST_PANELS = 112, 4


@dataclass(frozen=True, slots=True)
class Partials:
    """How the half partials of a product come about.

    Attributes:
        rounding: Of each.
        tiles: Tiles that share the summands.
        group: Channels that are summed as floats.
    """

    rounding: Rounding
    tiles: int = 1
    group: int = HALF_GROUP


def has_half_partials(op: Op) -> bool:
    """Whether an op is a product whose partials are rounded to half, which the kernels here alone do."""
    return op.attrs.get("partials") == "half" and op.outputs[0].dtype is DType.HALF


def partials_of(op: Op, result: Tensor, plan: HostPlanner, product: int = 0) -> Partials | None:
    """Return how the partials of a result are rounded; None where they are float.

    Args:
        op: A product.
        result: One of its results.
        plan: The planner.
        product: Which of the op's products it is, as its record counts them.
    """
    if op.attrs.get("partials") != "half" or result.dtype is not DType.HALF:
        return None
    tiles = op.attrs.get("summand_tiles") or (1,)
    assert isinstance(tiles, (tuple, list))
    return Partials(plan.rounding(op, result), tiles[product])


@dataclass(frozen=True, slots=True)
class Tap:
    """Summands that adjoin.

    Attributes:
        offset: Where they begin in the left operand.
        number: Of all taps of the device's product, the place of this one.
    """

    offset: int = 0
    number: int = 0


@dataclass(frozen=True, slots=True)
class Places:
    """Rows or summands that are places in an image, the first radix fastest.

    Attributes:
        sizes: Of each radix; their product is how many there are.
        strides: In an operand or a result.
    """

    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """A product of each of several groups; numbers are elements.

    Attributes:
        groups: Independent products.
        steps: From one group to the next in the left operand, the right one and the result.
        rows: Rows and where they lie in the left operand.
        out_rows: Where they lie in the result.
        numbers: Of rows among ``all_rows``, by which the random bits are numbered.
        first_number: Number of the first row.
        all_rows: Rows of a group of the device's product.
        channels: Summands of a tap.
        channel_step: From one to the next in the left operand.
        taps: Taps of the left operand.
        all_taps: Taps of the device's product.
        columns: Columns; with column taps those of one.
        out_column: From one to the next in the result.
        summands: Where they lie in the right operand, if it is an image; None for packed panels.
        column_taps: Where each tap of columns begins in the right operand and in the result.
    """

    groups: int
    steps: tuple[int, int, int]
    rows: Places
    out_rows: tuple[int, int, int, int]
    numbers: tuple[int, int, int, int]
    first_number: int
    all_rows: int
    channels: int
    channel_step: int
    taps: tuple[Tap, ...]
    all_taps: int
    columns: int
    out_column: int
    summands: Places | None = None
    column_taps: tuple[tuple[int, int], ...] = ((0, 0),)


def emit_layout(
    plan: HostPlanner, layout: Layout, out: HostTensor, left: HostTensor, right: HostTensor, partials: Partials, *,
    addend: HostTensor | None = None, addend_steps: tuple[int, int, int] = (0, 0, 0), alpha: float = 1.0,
    beta: float = 1.0, first: int = 0,
) -> None:
    """Emit one product.

    Args:
        plan: The planner.
        layout: What meets what.
        out: Where results go, float.
        left: Left operand, float.
        right: Right operand, float.
        partials: How partials are rounded.
        addend: Added to the results.
        addend_steps: Its steps by group, row and column.
        alpha: Factor of the product.
        beta: Factor of the addend.
        first: Element of the result that the first row begins with.
    """
    s, rounding, group = layout, partials.rounding, partials.group
    rows = prod(s.rows.sizes)
    panels = ceil_div(s.columns, PANEL) * len(s.column_taps)
    if not (s.groups and rows and panels):
        return
    per_tap = ceil_div(s.channels, group)
    tile_groups = max(1, ceil_div(s.all_taps * per_tap, partials.tiles))
    row_block, panel_block = _blocks(s.groups, rows, panels, whole=len(s.column_taps) > 1)
    items = s.groups * ceil_div(rows, row_block) * ceil_div(panels, panel_block)
    gathers = s.summands is not None
    summands = s.summands or Places((1, 1, 1, 1), (0, 0, 0, 0))
    rest = HostTensor(out.buffer, out.offset + first, (out.num_elements - first,), (1,), out.dtype)
    plan.step(
        HALF_PRODUCT, [rest],
        [left, right, *([] if addend is None else [addend]), *([rounding.random] if rounding.random else [])],
        ints=HalfProductInts(
            groups=s.groups, left_group=s.steps[0], right_group=s.steps[1], out_group=s.steps[2],
            row_sizes=s.rows.sizes, left_row=s.rows.strides, out_row=s.out_rows, number_row=s.numbers,
            first_number=s.first_number, all_rows=s.all_rows, channels=s.channels, left_channel=s.channel_step,
            num_taps=len(s.taps), columns=s.columns, out_column=s.out_column, panels=panels,
            num_column_taps=len(s.column_taps), gathers=gathers, summand_sizes=summands.sizes,
            right_summand=summands.strides, item_rows=row_block, item_panels=panel_block, size=group,
            tile_groups=tile_groups, all_groups=s.all_taps * per_tap, overflow=rounding.overflow,
            is_stochastic=rounding.random is not None, has_addend=addend is not None, addend=addend_steps,
            taps=(
                *(number for tap in s.taps for number in (tap.offset, 1 + tap.number * per_tap)),
                *(number for pair in s.column_taps for number in pair),
            ),
        ),
        scalars=HalfProductScalars(alpha, beta), items=items,
        grain=grain_for(items, s.groups * rows * panels * PANEL * s.channels * max(1, len(s.taps)), LEAST_CHUNK_MACS),
        scratch_bytes=row_block * (8 * PANEL + 24) + 8 * HALF_BLOCK,
        writes=[_written(s, row_block, panel_block)],
    )


def _blocks(groups: int, rows: int, panels: int, *, whole: bool) -> tuple[int, int]:
    """Rows and panels of an item, which takes ``whole`` rows of the result where they are no space of panels."""

    def items() -> int:
        return groups * ceil_div(rows, row_block) * ceil_div(panels, panel_block)

    row_block = ceil_div(rows, ceil_div(rows, MOST_ROWS))
    panel_block = panels if whole else min(MOST_PANELS, panels)
    while not whole and panel_block > 1 and items() < LEAST_ITEMS:
        panel_block = ceil_div(panel_block, 2)
    while row_block > (8 if whole else 32) and items() < LEAST_ITEMS:
        row_block = ceil_div(row_block, 2)
    return row_block, panel_block


def _written(s: Layout, row_block: int, panel_block: int) -> Blocks | None:
    """What items write; None where that is no space of blocks."""
    rows, groups = prod(s.rows.sizes), Along(s.groups, 1, max(1, s.groups), s.steps[2])
    (inner, middle, third, last), (step, outer, outmost, far) = s.rows.sizes, s.out_rows
    if third > 1 and last > 1:  # rows of images of three dimensions; where these adjoin, two radices do
        if outmost != outer * middle:
            return None
        middle, outmost = middle * third, far
    elif third == 1:
        outmost = far
    if middle > 1 and outer == inner * step:
        inner, middle, outer = inner * middle, 1, 0
    along = Along(rows, row_block, inner, step, middle, outer, outmost)
    if len(s.column_taps) == 1:
        return Blocks((groups, along, Along(s.columns, panel_block * PANEL, max(1, s.columns), s.out_column)))
    width = s.columns * len(s.column_taps)  # side by side, in whatever order
    return Blocks((groups, along, Along(width, width, width, 1)))


def emit_half_product(
    plan: HostPlanner, out: HostTensor, left: HostTensor, right: HostTensor, partials: Partials, *,
    addend: HostTensor | None = None, alpha: float = 1.0, beta: float = 1.0,
) -> None:
    """Emit ``out = alpha * left @ right + beta * addend``.

    Args:
        plan: The planner.
        out: [M, N] or [B, M, N], float, row-major.
        left: [M, K] or [B, M, K], float, one of the last two strides 1.
        right: [K, N] or [B, K, N], likewise.
        partials: How partials are rounded.
        addend: Anything that broadcasts to ``out``.
        alpha: Factor of the product.
        beta: Factor of the addend.
    """
    batch = out.shape[0] if len(out.shape) == 3 else 1
    (rows, columns), inner = out.shape[-2:], left.shape[-1]
    if not out.num_elements:
        return
    strides = (0, 0, 0) if addend is None else broadcast(addend, out.shape).strides
    group, row, column = (0,) * (3 - len(strides)) + strides
    apart = rows_apart(left)
    assert apart is not None
    packed = packed_panels(plan, right) if inner else right
    layout = Layout(
        batch,
        (left.strides[0] if len(left.shape) == 3 else 0, packed.strides[0] if inner and packed.shape[0] > 1 else 0,
         rows * columns),
        Places((rows, 1, 1, 1), (apart[0], 0, 0, 0)), (columns, 0, 0, 0), (1, 0, 0, 0), 0, rows, inner, apart[1],
        (Tap(),), 1, columns, 1,
    )
    emit_layout(
        plan, layout, out, left, packed, partials, addend=addend, addend_steps=(group, row, column), alpha=alpha,
        beta=beta,
    )
