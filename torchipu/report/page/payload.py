"""All that the page draws, as data."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torchipu.report.compare import numbers_of, settings_of
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.page.columns import columns_of
from torchipu.report.page.detail import detail_of
from torchipu.report.summary import summary_of

FORMAT, VERSION = "torchipu.page", 2
TABLES = (
    "facts", "operations", "functions", "steps", "runs", "variables", "shares", "liveness", "settings", "advice",
    "flows", "alternatives", "host", "numerics", "compile", "stages", "patterns", "programs", "program_variables",
    "vertices", "codelets", "exchanges",
)
"""Tables that the page shows as they are; of those with a row for each tile it has a list for each column and IPU."""


class File(NamedTuple):
    """A file of a report.

    Attributes:
        name: In its directory.
        holds: What.
        bytes: Its size; 0 where that is not known.
    """

    name: str
    holds: str
    bytes: int


class Compared(NamedTuple):
    """Another report, to stand beside one.

    Attributes:
        title: Its name.
        facts: All of it.
        files: Of its directory.
    """

    title: str
    facts: Facts
    files: Sequence[File] = ()


def payload_of(
    facts: Facts, title: str, other: Compared | None = None, files: Sequence[File] = (),
) -> dict[str, Any]:
    """Return the data of the page.

    Args:
        facts: Of the program.
        title: Name of the report.
        other: What it is compared with; all of it is there too, so that each page can show both.
        files: Of the report.
    """
    return {
        "format": FORMAT, "version": VERSION, "title": title, "summary": summary_of(facts),
        "numbers": columns_of(numbers_of(facts)), "settings": dict(settings_of(facts)), "files": columns_of(files),
        "tables": {name: columns_of(facts.tables.get(name, ())) for name in TABLES},
        "tiles": _tiles(facts), "detail": detail_of(facts),
        "other": None if other is None else payload_of(other.facts, other.title, files=other.files),
    }


def encoded(payload: Mapping[str, Any]) -> str:
    """Return data as text that stands in a page as it is: compressed JSON in base 64.

    Args:
        payload: The data.
    """
    text = json.dumps(payload, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _tiles(facts: Facts) -> dict[int, dict[str, Any]]:
    """Return the columns of tiles by IPU, and the bytes of each category at the tile's place in these."""
    found: dict[int, dict[str, Any]] = {}
    places: dict[tuple[int, int], int] = {}
    for one in facts.tables["tiles"]:
        assert isinstance(one, rows.Tile)
        held = found.setdefault(one.ipu, {name: [] for name in (*one._fields[1:], )} | {"categories": {}})
        places[one.ipu, one.tile] = len(held["tile"])
        for name in one._fields[1:]:
            held[name].append(getattr(one, name))
    for share in facts.tables["tile_categories"]:
        assert isinstance(share, rows.TileCategory)
        held = found[share.ipu]
        column = held["categories"].setdefault(share.category, [0] * len(held["tile"]))
        column[places[share.ipu, share.tile]] = share.bytes
    return found
