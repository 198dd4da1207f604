"""Which tests repeat what others do: those that reach next to no line of the package that others do not reach."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

FOLDER = "TORCHIPU_REACHED_LINES"
"""Names the folder into which processes write what they reach, while that is recorded: no test is left out then."""
LEFT = Path(__file__).with_name("left.json")
"""Names of tests by file, as ``make repeats`` last chose them; a test that it does not name runs."""
SHORT_SECONDS = 0.1
"""Tests whose cases together take less are left in, whatever they reach."""


@cache
def _left() -> Mapping[str, Collection[str]]:
    found: dict[str, list[str]] = json.loads(LEFT.read_text(encoding="utf-8")) if LEFT.exists() else {}
    return {file: frozenset(names) for file, names in found.items()}


def repeats_others(test: str) -> bool:
    """Whether a test, by its node's name, is left out; none is while it is recorded what they reach."""
    return FOLDER not in os.environ and is_left_out(test)


def is_left_out(test: str) -> bool:
    """Whether a test was found to reach nothing that others do not reach in less time."""
    file, _, name = test.partition("[")[0].partition("::")
    return name in _left().get(file, ())
