"""Kernels of scaled dot-product attention. Strides are in elements; that of the last dimension is 1."""

from typing import NamedTuple

from .kernel import Kernel

QUERIES_AT_ONCE = 28
"""Queries of which the forward holds the scores at a time: those for a few hundred keys stay in the first cache."""


class AttentionInts(NamedTuple):
    """Integers of ``attention`` and ``attention_backward``.

    Attributes:
        batch: Samples.
        heads: Of each sample.
        queries: Of each head.
        keys: Of each head.
        width: Of a query, key or value.
        rows: Queries taken at a time, those of an item in the forward.
        columns: Keys taken at a time, a multiple of 32. Where these are all keys, the backward forms weights anew and
            looks at ``out`` and ``logsumexp`` for infinities and NaNs alone.
        is_causal: Whether later keys are hidden from a query.
        has_mask: Whether there is one.
        query: Strides along batch, head and position.
        key: Likewise.
        value: Likewise.
        mask: Strides along batch, head, query and key.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    rows: int
    columns: int
    is_causal: bool
    has_mask: bool
    query: tuple[int, int, int]
    key: tuple[int, int, int]
    value: tuple[int, int, int]
    mask: tuple[int, int, int, int]


class AttentionScalars(NamedTuple):
    """Real numbers of both.

    Attributes:
        scale: Of the scores.
    """

    scale: float


ATTENTION = Kernel(
    "attention",
    {
        "out": "softmax(scale * query @ key^T + mask) @ value, [batch][heads][queries][width]",
        "logsumexp": "the logarithm of the softmax's denominator, [batch][heads][queries]",
        "query": "[batch][heads][queries][width]", "key": "[batch][heads][keys][width]", "value": "likewise",
        "mask?": "added to the scores, where has_mask",
    },
    AttentionInts,
    AttentionScalars,
    items="batch * heads * blocks of queries",
    scratch="columns * width, columns times width rounded up to 32, QUERIES_AT_ONCE * columns, "
    "rows * width + 2 * rows floats",
)
ATTENTION_BACKWARD = Kernel(
    "attention_backward",
    {
        "dquery": "row-major [batch][heads][queries][width]", "dkey": "row-major [batch][heads][keys][width]",
        "dvalue": "likewise", "dout": "row-major", "out": "row-major", "logsumexp": "of the forward",
        "query": "[batch][heads][queries][width]", "key": "[batch][heads][keys][width]", "value": "likewise",
        "mask?": "where has_mask",
    },
    AttentionInts,
    AttentionScalars,
    items="batch * heads",
    scratch="2 * columns * width + 2 * rows * columns + queries floats",
)
