"""Kernels that move, fill and number elements, which are opaque words of 1, 2, 4 or 8 bytes."""

from typing import NamedTuple

from .kernel import Kernel, Nothing

MAX_COPY_DIMS = 12
PANEL_BYTES = 64
LEAST_PANEL = 16
"""Rows of a panel of a transpose: as many as elements of PANEL_BYTES, but at least so many."""


class CopyInts(NamedTuple):
    """Integers of ``copy`` and ``transpose``.

    Attributes:
        num_dims: From 1 to MAX_COPY_DIMS.
        element_bytes: Size of an element.
        layout: The sizes of all dimensions, the strides in the target, and those in the source.
    """

    num_dims: int
    element_bytes: int
    layout: tuple[int, ...]


COPY = Kernel(
    "copy", {"target": "written", "source": "read"}, CopyInts, Nothing,
    items="elements, counted with the last dimension fastest",
)
TRANSPOSE = Kernel(
    "transpose",
    {"target": "its last dimension is dense", "source": "its last dimension but one is dense, either way"},
    CopyInts,
    Nothing,
    items="outer indices * panels of rows (of the last dimension but one)",
)


class PieceOfRow(NamedTuple):
    """What rows have of a piece.

    Attributes:
        first: The first element of a row that is the piece's.
        elements: Of each row, at least one.
        apart: Elements from what a row has of the piece to what the next one has.
    """

    first: int
    elements: int
    apart: int


class ConcatenateRowsInts(NamedTuple):
    """Integers of ``concatenate_rows``.

    Attributes:
        element_bytes: Size of an element.
        row_elements: From a row of the result to the next.
        num_pieces: At most MAX_PIECES.
        pieces: Each that is copied.
    """

    element_bytes: int
    row_elements: int
    num_pieces: int
    pieces: tuple[PieceOfRow, ...]


MAX_PIECES = 32
PIECE_BLOCK = 2048
"""Bytes of rows that are put together of all pieces before the next rows are."""
CONCATENATE_ROWS = Kernel(
    "concatenate_rows",
    {"rows": "[rows, row_elements], of which pieces are written", "pieces*": "of each what the first row has of it"},
    ConcatenateRowsInts,
    Nothing,
    items="rows",
)


class PadRowsInts(NamedTuple):
    """Integers of ``pad_rows``.

    Attributes:
        element_bytes: Size of an element.
        columns: Elements of a row of the result.
        runs: Pieces of which it is put together.
        num_dims: Of the rows, at most MAX_COPY_DIMS.
        sizes: Of the result, without its rows.
    """

    element_bytes: int
    columns: int
    runs: int
    num_dims: int
    sizes: tuple[int, ...]


PAD_ROWS = Kernel(
    "pad_rows",
    {
        "padded": "row-major [*sizes, columns]",
        "held": "read, whatever its layout",
        "places": (
            "of int64: for each dimension of sizes, one after another, how far from the first element lies what an "
            "index takes; then of each run its length, how far its first element lies, and the step to the next"
        ),
    },
    PadRowsInts,
    Nothing,
    items="rows",
)


class FillInts(NamedTuple):
    """Integers of ``fill``.

    Attributes:
        element_bytes: Size of an element.
        bits: Of the value.
    """

    element_bytes: int
    bits: int


FILL = Kernel("fill", {"target": "row-major"}, FillInts, Nothing, items="elements")


class ArangeInts(NamedTuple):
    """Integers of ``arange``.

    Attributes:
        is_long: Whether the range is of int64, and not of floats.
        first: Of a range of int64.
        step: Likewise.
    """

    is_long: bool
    first: int
    step: int


class ArangeScalars(NamedTuple):
    """Real numbers of ``arange``.

    Attributes:
        first: Of a range of floats.
        step: Likewise.
    """

    first: float
    step: float


ARANGE = Kernel("arange", {"range": "row-major"}, ArangeInts, ArangeScalars, items="elements")


class LinspaceInts(NamedTuple):
    """Integers of ``linspace``.

    Attributes:
        is_long: Whether the range is of int64, rounded towards zero, and not of floats.
        steps: Elements.
    """

    is_long: bool
    steps: int


class LinspaceScalars(NamedTuple):
    """Real numbers of ``linspace``; its second half counts back from the last.

    Attributes:
        first: The first element.
        last: The last one.
        step: Between two of them.
    """

    first: float
    last: float
    step: float


LINSPACE = Kernel("linspace", {"range": "row-major"}, LinspaceInts, LinspaceScalars, items="elements")


class TriangleInts(NamedTuple):
    """Integers of ``triangle``.

    Attributes:
        element_bytes: Size of an element.
        rows: Of a matrix.
        columns: Of a matrix.
        diagonal: Added to the number of a row.
        upper: Whether columns are kept from there on, and not up to there.
    """

    element_bytes: int
    rows: int
    columns: int
    diagonal: int
    upper: bool


TRIANGLE = Kernel(
    "triangle", {"target": "row-major [..., rows, columns]", "source": "likewise"}, TriangleInts, Nothing,
    items="rows of all matrices",
)
