"""The tables of ``torchipu targets``: each number of a machine with the source that stands beside it in its file."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Sequence
from dataclasses import fields

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from torchipu.target import TARGETS, Target, lookup_target

_ASSIGNMENT = re.compile(r"\s*(?P<field>\w+)\s*=(?P<rest>.*)")
_BASE = re.compile(r"\breplace\(\s*(?P<base>\w+)")


def print_targets(names: Sequence[str], console: Console | None = None) -> None:
    """Print one table for each machine.

    Args:
        names: Machines; all of them when empty.
        console: Where to; None for standard output.

    Raises:
        OptionsError: A machine is unknown.
    """
    console = console or Console()
    for target in [lookup_target(name) for name in names or TARGETS]:
        console.print(target_table(target))


def target_table(target: Target) -> Table:
    """Return a table with the columns number (its name ends in the unit), value and source."""
    table = Table(title=f"{target.name}: {target.title}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("number", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    sources = sources_of(target)
    for item in fields(target):
        value = getattr(target, item.name)
        if isinstance(value, (int, float)):
            table.add_row(item.name, written(value), sources.get(item.name, ""))
    return table


def sources_of(target: Target) -> dict[str, str]:
    """Return the comment beside, or just above, each number in the file of a machine.

    The file is the only place where sources are kept, so that a number cannot change without its source in view.
    """
    text = inspect.getsource(importlib.import_module(f"torchipu.target.{target.name}"))
    base = _BASE.search(text)  # a machine may be another one with some numbers replaced
    base_name = base["base"].lower() if base else ""
    sources = {
        name: f"as {base_name}: {source}"
        for name, source in (sources_of(TARGETS[base_name]) if base_name else {}).items()
    }
    above: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            above.append(line.strip(" #"))
            continue
        assignment = _ASSIGNMENT.match(line)
        if assignment:
            _, _, beside = assignment["rest"].partition("# ")
            sources[assignment["field"]] = " ".join([*above, beside]).strip()
        above = []
    return sources


def written(value: int | float) -> str:
    """Return a number with separators, and a large float in short form."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
