"""Kernels of interpolation and of overlapping windows."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

FOR_AVX2_ALONE = True  # with AVX-512 they take as long, or longer


class WeightedTapsInts(NamedTuple):
    """Integers of ``weighted_taps``.

    Attributes:
        outputs: Along the dimension.
        inputs: Along the dimension.
        inner: Positions behind it.
    """

    outputs: int
    inputs: int
    inner: int


WEIGHTED_TAPS = Kernel(
    "weighted_taps",
    {
        "sums": "[outer, outputs, inner], of what the taps of an output take, in their order; zero without taps",
        "values": "[outer, inputs, inner]",
        "starts": "[outputs + 1] of int64: the first tap of each output, then the number of all",
        "sources": "of int64: the input that each tap takes",
        "weights": "of each tap",
    },
    WeightedTapsInts,
    Nothing,
    items="outer * outputs",
)


class WeightedColumnsInts(NamedTuple):
    """Integers of ``weighted_columns``.

    Attributes:
        outputs: Columns of the sums.
        inputs: Columns of the values.
        pieces: Of which a row is put together.
    """

    outputs: int
    inputs: int
    pieces: int


WEIGHTED_COLUMNS = Kernel(
    "weighted_columns",
    {
        "sums": "[rows, outputs], of what the taps of an output take, in their order; zero without taps",
        "values": "[rows, inputs]",
        "places": (
            "[pieces, 4] of int64: the first output of each piece, how many there are, the taps of each, and where the "
            "piece begins in what follows"
        ),
        "sources": "of int32, [taps, outputs] of each piece: the column that a tap takes",
        "weights": "likewise, of each tap",
    },
    WeightedColumnsInts,
    Nothing,
    items="rows * pieces",
)


class WeightedGroupsInts(NamedTuple):
    """Integers of ``weighted_groups``.

    Attributes:
        outputs: Columns of the sums.
        inputs: Columns of the values.
        groups: Of which a row is put together.
    """

    outputs: int
    inputs: int
    groups: int


GROUP = 8
"""Most outputs of a group, and lanes of each tap."""
WINDOW = 2 * GROUP
"""Neighbouring values of which a tap takes any."""
WEIGHTED_GROUPS = Kernel(
    "weighted_groups",
    {
        "sums": "[rows, outputs], of what the taps of an output take, in their order; zero without taps",
        "values": "[rows, inputs]",
        "sizes": "[groups, 2] of int32: how many outputs a group has, at most 8, and how many taps each of them",
        "bases": "[taps of all groups] of int32: the first of the 16 values that a tap of a group takes from",
        "lanes": "[taps of all groups, 8] of int32: which of these each output takes",
        "weights": "likewise, of each tap",
    },
    WeightedGroupsInts,
    Nothing,
    items="rows",
)


class FoldRowsInts(NamedTuple):
    """Integers of ``fold_rows``.

    Attributes:
        depth: Of the result.
        height: Of the result.
        columns: Of the result.
        padded_rows: Of the values, in depth and height together.
        padded_columns: Of the values.
        runs: Pieces of a row of the values.
    """

    depth: int
    height: int
    columns: int
    padded_rows: int
    padded_columns: int
    runs: int


FOLD_ROWS = Kernel(
    "fold_rows",
    {
        "sums": "[outer, depth, height, columns]",
        "values": "[outer, padded_rows, padded_columns]",
        "places": (
            "of int64: [depth + 1], the first source of each plane, then the number of all; the sources, as numbers of "
            "rows; the same of [height + 1]; of each run its first place among the values, its length, the column to "
            "which the first is added, and the step to the next; the first run is all columns, or is added to zeros too"
        ),
    },
    FoldRowsInts,
    Nothing,
    items="outer * depth * height",
)


class AddStridedInts(NamedTuple):
    """Integers of ``add_strided``.

    Attributes:
        dims: How many there are.
        layout: Their sizes, then the strides of the sum, then those of the addend.
    """

    dims: int
    layout: tuple[int, ...]


ADD_STRIDED = Kernel(
    "add_strided",
    {"sum": "read and written; its elements do not overlap", "addend": "added to it"},
    AddStridedInts,
    Nothing,
    items="rows of the last dimension",
)


WINDOW_ELEMENTS = 64
"""Elements behind the dimension of which windows are transposed together."""


class AddWindowsInts(NamedTuple):
    """Integers of ``add_windows``.

    Attributes:
        windows: Along the dimension.
        step: From the first position of a window to that of the next.
        size: Positions of a window.
        positions: Of the dimension.
        inner: Elements behind the dimension.
        block: Positions of an item.
        from_outer: Stride of what the windows hold, along what is before the dimension.
        from_window: From window to window.
        from_inner: Along what is behind the dimension.
        from_position: From position to position of a window.
    """

    windows: int
    step: int
    size: int
    positions: int
    inner: int
    block: int
    from_outer: int
    from_window: int
    from_inner: int
    from_position: int


ADD_WINDOWS = Kernel(
    "add_windows",
    {
        "sums": "[outer][positions][inner], of all windows at each position",
        "held": "[outer][windows][inner][size], by its strides",
    },
    AddWindowsInts,
    Nothing,
    items="outer * blocks of positions",
    scratch="size * WINDOW_ELEMENTS floats",
)
