"""Tables as columns of JSON: each text is there once, and a browser reads numbers as they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

Column = list[Any] | dict[str, list[Any]]


def columns_of(rows: Sequence[NamedTuple]) -> dict[str, Column]:
    """Return the columns of a table by name; none where there is no row.

    A column of texts has its different ``words``, and for each row which one it is, ``at``.

    Args:
        rows: All of one class.
    """
    if not rows:
        return {}
    return {name: _column(values) for name, values in zip(rows[0]._fields, zip(*rows, strict=True), strict=True)}


def _column(values: Sequence[Any]) -> Column:
    if not isinstance(values[0], str):
        return [_number(value) for value in values]
    words = {word: number for number, word in enumerate(dict.fromkeys(values))}
    return {"words": list(words), "at": [words[value] for value in values]}


def _number(value: Any) -> Any:
    """Return a number as JSON has it: infinities and NaN, which it lacks, as texts."""
    if isinstance(value, bool):
        return int(value)
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)
