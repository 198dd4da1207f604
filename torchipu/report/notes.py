"""What others say of a run: ``app.json`` and ``framework.json`` beside its report, which the report takes up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts

APP, FRAMEWORK = "app.json", "framework.json"
"""Of the user's program, and of what it was written with: PopVision's names."""
MOST_BYTES = 1 << 20
"""A larger file is no note."""


def with_notes(facts: Facts, folder: Path) -> Facts:
    """Return a report with the notes that lie in its directory, a setting for each value.

    Args:
        facts: Of the program.
        folder: Of the report.
    """
    found = tuple(
        rows.Setting(name, key, value, value)
        for name in (FRAMEWORK, APP) if (folder / name).is_file() for key, value in _said(folder / name)
    )
    if not found:
        return facts
    before = tuple(one for one in facts.tables["settings"] if getattr(one, "kind", "") not in (APP, FRAMEWORK))
    return facts.extended(tables={"settings": (*before, *found)})


def _said(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the values of a file by where they are in it; of one that cannot be read, why."""
    try:
        if path.stat().st_size > MOST_BYTES:
            yield path.name, f"left out: it is larger than {MOST_BYTES:,} bytes"
            return
        values = list(_values(json.loads(path.read_text(encoding="utf-8")), ""))
    except OSError as error:
        values = [(path.name, f"left out: it cannot be read: {error}")]
    except (ValueError, RecursionError) as error:
        values = [(path.name, f"left out: it is no JSON: {error}")]
    for name, value in values:
        yield _encodable(name or path.name), _encodable(value)


def _encodable(text: str) -> str:
    """Return a text with a question mark for each half of a character that lacks the other: JSON may have such."""
    return text.encode("utf-8", "replace").decode()


def _values(value: Any, name: str) -> Iterator[tuple[str, str]]:
    match value:
        case dict() if value:
            for key, part in value.items():
                yield from _values(part, f"{name}.{key}" if name else key)
        case list() if any(isinstance(part, (dict, list)) for part in value):
            for number, part in enumerate(value):
                yield from _values(part, f"{name}[{number}]")
        case str():
            yield name, value
        case _:
            yield name, json.dumps(value, ensure_ascii=False)
