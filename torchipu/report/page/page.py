"""The page as text: its shell, its data, and the scripts that draw it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

import rjsmin
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.page.payload import Compared, File, encoded, payload_of
from torchipu.report.terminal import lines_of

PAGES = {
    "overview": "Overview", "insights": "Insights", "memory": "Memory", "liveness": "Liveness", "program": "Program",
    "operations": "Operations", "graph": "Graph", "execution": "Execution", "pipeline": "Pipeline", "host": "Host",
    "numerics": "Numerics", "compile": "Compile", "compare": "Compare", "what-if": "What-if",
    "environment": "Environment",
}
"""Titles by the anchor of each, which is also the name of its script."""
PARTS = (
    "data", "elements", "numbers", "tables", "charts", "canvas", "pictures", "colours", "tiles", "by-tile", "tile",
    "variables", "flame", "streams", "operation", "navigation", "search",
)
"""Scripts that those of pages stand on, in the order in which they do; ``start`` comes last."""
MOST_OPERATIONS = 20
"""Ops that a page lists without a script."""


def page_of(facts: Facts, title: str, other: Compared | None = None, files: Sequence[File] = ()) -> str:
    """Return the page of a program.

    Args:
        facts: Of the program.
        title: Name of the report.
        other: What it is compared with.
        files: Of the report.
    """
    operations = [one for one in facts.tables["operations"] if isinstance(one, rows.Operation)]
    script, style = scripts(), _text(_folder() / "style.css")
    return _template().render(
        title=title, program=facts.figure("program"), pages=PAGES, lines=list(lines_of(facts)),
        facts=[
            (one.name, json.loads(one.value), one.unit, one.confidence)
            for one in facts.tables["facts"] if isinstance(one, rows.Fact) and one.value[0] not in "[{"
        ],
        advice=facts.tables["advice"],
        operations=sorted(operations, key=lambda one: -one.cycles)[:MOST_OPERATIONS],
        data=Markup(encoded(payload_of(facts, title, other, files))),  # base 64 has no markup
        script=Markup(script), script_hash=_hash(script), style=Markup(style), style_hash=_hash(style),
    )


@cache
def scripts() -> str:
    """Return the scripts of all pages as one, in which each sees the names of the others.

    What only readers of the sources need, comments and space, is left out.
    """
    folder = _folder() / "scripts"
    texts = [_text(folder / f"{name}.js") for name in (*PARTS, *PAGES, "start")]
    return rjsmin.jsmin("\n".join(['"use strict";', *texts]))


@cache
def _template() -> Template:
    # Names of modules and lines of code come from the user: all that is no Markup is escaped.
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_text(_folder() / "report.html.j2"))


def _folder() -> Traversable:
    return files("torchipu.report.page")


def _text(path: Traversable) -> str:
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return what a browser must find for a script or style, as a content policy names it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
