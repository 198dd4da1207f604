"""Which blocks of a mask are empty, found when a model is captured: what they would mask need not be computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.utils._python_dispatch import _disable_current_modes

BLOCK = 64
"""Rows and columns that are kept or left out together."""
MOST_SECTIONS = 8
MOST_SPANS = 8
"""Pieces of a result, each an attention of its own, and runs of keys that one reads: more take long to compile."""
WORTH = 0.9
"""Share of the scores above which all are computed."""
MOST_SCORES = 1 << 28
"""Scores above which a mask that differs between samples or heads is not looked at."""

Span = tuple[int, int]


class Section(NamedTuple):
    """Rows of scores, and the keys that any of them needs.

    Attributes:
        rows: Of each run of rows the first, and the one behind the last; in their order, with gaps between runs.
        keys: The same of each run of keys.
    """

    rows: tuple[Span, ...]
    keys: tuple[Span, ...]

    @property
    def size(self) -> int:
        """Scores that are computed, of each sample and head."""
        return sum(end - begin for begin, end in self.rows) * sum(end - begin for begin, end in self.keys)


def sections(
    mask: Callable[..., Tensor], shape: tuple[int, int, int, int], of_every_score: Callable[..., Tensor],
) -> tuple[Section, ...]:
    """Return the sections in which scores are to be computed, those that the mask leaves out being in none.

    They follow from the mask's function alone, which depends on nothing but positions, and so hold for every call.

    Args:
        mask: A graph of four indices: sample, head, row, column.
        shape: Of the scores.
        of_every_score: The mask as a function of vectors of indices, which gives ``[B, H, rows, columns]``.

    Returns:
        One section of everything where nothing is to be saved.
    """
    length, keys = shape[2:]
    everything = (Section(((0, length),), ((0, keys),)),)
    if not all(isinstance(size, int) for size in shape) or min(length, keys) < 2 * BLOCK:
        return everything
    samples, heads, *_ = (
        size if depends else 1 for size, depends in zip(shape, _depends_on(mask), strict=True)
    )
    if samples * heads > 1 and samples * heads * length * keys > MOST_SCORES:
        return everything
    with _disable_current_modes(), torch.no_grad():
        blocks = _occupied(of_every_score, samples, heads, length, keys)
    found = _joined(blocks, length, keys)
    return found if sum(section.size for section in found) <= WORTH * length * keys else everything


def _depends_on(mask: Callable[..., Tensor]) -> list[bool]:
    """Return for each of the four indices whether the mask's graph reads it."""
    if not isinstance(mask, GraphModule):
        return [True] * 4
    return [bool(node.users) for node in mask.graph.nodes if node.op == "placeholder"][:4]


def _occupied(
    of_every_score: Callable[..., Tensor], samples: int, heads: int, length: int, keys: int,
) -> list[list[bool]]:
    """Return for each block of rows which blocks of keys any sample and head needs."""
    columns = torch.arange(keys, dtype=torch.int32)
    first = [torch.arange(size, dtype=torch.int32) for size in (samples, heads)]
    found = []
    for begin in range(0, length, BLOCK):
        rows = torch.arange(begin, min(begin + BLOCK, length), dtype=torch.int32)
        needed = of_every_score(*first, rows, columns).expand(samples, heads, len(rows), keys).flatten(0, 2).any(0)
        found.append([bool(block.any()) for block in needed.split(BLOCK)])
    return found


def _joined(blocks: list[list[bool]], length: int, keys: int) -> tuple[Section, ...]:
    """Return sections of whole blocks of rows, few enough: those of rows that need the same keys are one."""
    together = 1
    while True:
        by_need: dict[tuple[bool, ...], list[bool]] = {}
        for number in range(0, len(blocks), together):
            neighbours = blocks[number : number + together]
            needed = tuple(any(column) for column in zip(*neighbours, strict=True))
            taken = by_need.setdefault(needed, [False] * len(blocks))
            taken[number : number + together] = [True] * len(neighbours)
        if len(by_need) <= MOST_SECTIONS:
            break
        together *= 2
    return tuple(
        Section(_spans(taken, length), _few(_spans(needed, keys) or ((0, min(BLOCK, keys)),)))
        for needed, taken in by_need.items()
    )


def _spans(needed: Sequence[bool], length: int) -> tuple[Span, ...]:
    """Return the runs of needed blocks."""
    spans: list[Span] = []
    for number, is_needed in enumerate(needed):
        if is_needed:
            begin = spans.pop()[0] if spans and spans[-1][1] == number * BLOCK else number * BLOCK
            spans.append((begin, min((number + 1) * BLOCK, length)))
    return tuple(spans)


def _few(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return runs that hold these, few enough, by closing the narrowest gaps."""
    joined = list(spans)
    while len(joined) > MOST_SPANS:
        place = min(range(1, len(joined)), key=lambda place: joined[place][0] - joined[place - 1][1])
        joined[place - 1 : place + 1] = [(joined[place - 1][0], joined[place][1])]
    return tuple(joined)
