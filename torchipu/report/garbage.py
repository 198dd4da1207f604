"""Python's search for garbage, held off while much is made that stays."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

NEW_OBJECTS = 50_000
"""Before Python looks for garbage; at its usual 700 a seventh of an estimate of BERT-Large goes there."""


@contextlib.contextmanager
def collected_seldom() -> Iterator[None]:
    """Let Python look for garbage less often: captures, programs and tables stay."""
    usual = gc.get_threshold()
    gc.set_threshold(max(usual[0], NEW_OBJECTS) if usual[0] else 0, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
