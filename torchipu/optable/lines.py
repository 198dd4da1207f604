"""Ops on lines of channels, ``[N, C, L]``, that are the same on images of one row, ``[N, C, 1, L]``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from torchipu.ir.graph import Op, Tensor


class Lying(Enum):
    """What becomes of a value where lines are images."""

    AS_IT_IS = auto()
    LINES = auto()  # it holds lines, and is handed on as images of one row
    RAISED = auto()  # it has a dimension of 1 more before its last one, and is no line: weights, numbers of channels


@dataclass(frozen=True, slots=True)
class AsImages:
    """An op on images of one row.

    Attributes:
        inputs: What each operand is.
        outputs: What each result is.
        attrs: Arguments that differ.
    """

    inputs: Sequence[Lying]
    outputs: Sequence[Lying]
    attrs: Mapping[str, object]


LineRule = Callable[[Op], "AsImages | None"]
LINE_RULES: dict[str, LineRule] = {}
LINE_PRODUCTS: set[str] = set()
"""Ops for whose sake lines are taken for images."""


def register_lines(target: str, rule: LineRule, *, is_product: bool = False) -> None:
    """Enter how an op on lines is one on images of one row; its rule returns None where it is none.

    Args:
        target: Of the op.
        rule: Looks at one.
        is_product: Whether lines become images for its sake.
    """
    LINE_RULES[target] = rule
    if is_product:
        LINE_PRODUCTS.add(target)


def are_lines(tensor: Tensor) -> bool:
    """Whether a value may hold lines: floats or halves of three dimensions."""
    return len(tensor.shape) == 3 and tensor.dtype.is_floating


def dim_of_images(dim: int) -> int:
    """Return which dimension of images one of lines is, counted from the first or from the last."""
    dim %= 3
    return 3 if dim == 2 else dim
