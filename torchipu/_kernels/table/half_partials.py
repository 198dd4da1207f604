"""Kernels of products with half partials; floats hold the halves."""

from typing import NamedTuple

from .kernel import Kernel

HALF_BLOCK = 512
"""Summands, or places, that are taken at a time."""
Radices = tuple[int, int, int, int]
"""Rows or summands may be places in an image, counted with the first of four radices fastest."""


class HalfProductInts(NamedTuple):
    """Integers of ``half_product``.

    Attributes:
        groups: Independent products.
        left_group: Stride of the left operand from one to the next.
        right_group: Of the right operand.
        out_group: Of the result.
        row_sizes: Radices of the rows.
        left_row: Strides of the left operand along them.
        out_row: Of the result.
        number_row: Of the numbers of rows, by which random bits are numbered.
        first_number: Number of the first row.
        all_rows: Rows of a group of the device's product.
        channels: Summands of a tap.
        left_channel: Stride of the left operand from one to the next.
        num_taps: Taps of the left operand.
        columns: Of one tap of them.
        out_column: Stride of the result from one to the next.
        panels: Of all column taps.
        num_column_taps: How many there are.
        gathers: Whether the rows of the right operand are places in an image, else packed panels.
        summand_sizes: Radices of these places.
        right_summand: Strides of the right operand along them.
        item_rows: Rows of an item.
        item_panels: Panels of an item.
        size: Channels that are summed before the sum becomes a half.
        tile_groups: Such groups of a tile of the device.
        all_groups: Of the device's product.
        overflow: What becomes of one.
        is_stochastic: Whether random words decide how sums are rounded.
        has_addend: Whether there is one.
        addend: Its strides by group, row and column.
        taps: Of each tap where its channels begin in the left operand and the number of its first group of them; then
            of each tap of the columns where it begins in the right operand and in the result.
    """

    groups: int
    left_group: int
    right_group: int
    out_group: int
    row_sizes: Radices
    left_row: Radices
    out_row: Radices
    number_row: Radices
    first_number: int
    all_rows: int
    channels: int
    left_channel: int
    num_taps: int
    columns: int
    out_column: int
    panels: int
    num_column_taps: int
    gathers: bool
    summand_sizes: Radices
    right_summand: Radices
    item_rows: int
    item_panels: int
    size: int
    tile_groups: int
    all_groups: int
    overflow: int
    is_stochastic: bool
    has_addend: bool
    addend: tuple[int, int, int]
    taps: tuple[int, ...]


class HalfProductScalars(NamedTuple):
    """Real numbers of ``half_product``.

    Attributes:
        alpha: Factor of the sums.
        beta: Factor of the addend.
    """

    alpha: float
    beta: float


HALF_PRODUCT = Kernel(
    "half_product",
    {
        "out": "alpha * sum + beta * addend", "left": "halves by value",
        "right": "packed by `matmul_pack`, taps and their channels being the summands; or in an image, where each "
        "summand is a place, whose channels are the columns",
        "addend?": "where has_addend", "random?": "words of the result, where is_stochastic",
    },
    HalfProductInts,
    HalfProductScalars,
    items="groups * blocks of rows * blocks of panels",
    scratch="floats: 64 for each row of an item; int64: 3 for each row of an item, HALF_BLOCK",
)
