"""Regions of vertices that touch blocks of a value, of which many touch the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from torchipu.ir.mapping import TileMapping
from torchipu.ir.region import Numbers, Region, listed
from torchipu.ir.types import DType

Key = TypeVar("Key")


def blocks(
    name: str, keys: Sequence[Key], make: Callable[[Key], Numbers], dtype: DType | None = None,
    shift: Numbers | None = None,
) -> Region:
    """Return a region in which each vertex touches a block; equal blocks are worked out once.

    Args:
        name: Of the value.
        keys: The block of each vertex.
        make: Lists the elements of a block.
        dtype: Of partials.
        shift: ``[vertices]``, what is added to the elements of each vertex, if anything.
    """
    numbers: dict[Key, int] = {}
    which = np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)
    lists = [np.asarray(make(key), np.int64).reshape(-1) for key in numbers]
    apart = listed(name, np.concatenate(lists) if lists else np.zeros(0, np.int64), [len(one) for one in lists])
    lengths = np.diff(apart.first)[which]
    first = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    runs = np.arange(first[-1], dtype=np.int64) + np.repeat(apart.first[which] - first[:-1], lengths)
    begin = apart.begin[runs]
    if shift is not None:
        begin = begin + np.repeat(shift, lengths)
    return Region(name, begin, apart.count[runs], apart.stride[runs], first, dtype)


def tile_of_each(runs: TileMapping) -> Numbers:
    """Return the tile of each element of an iteration space whose elements are vertices."""
    table = np.array(runs.runs, np.int64).reshape(-1, 3)
    return np.repeat(table[:, 0], table[:, 2] - table[:, 1])
