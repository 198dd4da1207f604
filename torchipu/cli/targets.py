"""The tables of ``torchipu targets``: each number of a machine with the source that stands beside it in its file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

import torchipu.target
from torchipu.target import TARGETS, Target, lookup_target


def print_targets(names: Sequence[str], console: Console | None = None) -> None:
    """Print one table for each machine.

    Args:
        names: Machines; when empty all chips, and one table of the systems that are built of them.
        console: Where to; None for standard output.

    Raises:
        OptionsError: A machine is unknown.
    """
    console = console or Console()
    chips = [name for name, target in TARGETS.items() if not target.is_system]
    for target in [lookup_target(name) for name in names or chips]:
        console.print(target_table(target))
    if not names:
        console.print(systems_table())


def print_fields(console: Console | None = None) -> None:
    """Print the fields of a machine that may be replaced, and what each takes."""
    table = Table(title="fields that may be replaced, as in mk2,num_tiles=736", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("field", no_wrap=True)
    table.add_column("takes", overflow="fold")
    for name, rule in Target.replaceable().items():
        table.add_row(name, str(rule))
    (console or Console()).print(table)


def systems_table() -> Table:
    """Return a table of all systems: the chip that each is built of, and its IPUs with their source."""
    table = Table(title="systems", title_justify="left", box=SIMPLE_HEAD)
    for name in ("name", "chip", "num_ipus", "linked_ipus", "source"):
        table.add_column(name, justify="right" if name.endswith("ipus") else "left", no_wrap=name != "source")
    for name, target in TARGETS.items():
        if target.is_system:
            chip = name
            while TARGETS[chip].is_system:
                chip = _entries()[chip].base
            source = _sources_of(name)["num_ipus"]
            table.add_row(name, chip, written(target.num_ipus), written(target.linked_ipus), source)
    return table


def target_table(target: Target) -> Table:
    """Return a table with the columns number (its name ends in the unit), value and source."""
    title = target.title if target.is_hypothetical else f"{target.name}: {target.title}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("number", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("source", overflow="fold")
    sources = sources_of(target)
    for name in Target.replaceable():
        table.add_row(name, written(getattr(target, name)), sources.get(name, ""))
    return table


def sources_of(target: Target) -> dict[str, str]:
    """Return the comment beside, or just above, each number in the file of a machine.

    The file is the only place where sources are kept, so that a number cannot change without its source in view.
    """
    base = target.name.partition(",")[0]
    sources = _inherited(base) if target.is_hypothetical else _sources_of(base)
    replaced = {name: f"replaced; {base} has {written(getattr(TARGETS[base], name))}"
                for name in target.replaced_fields()}
    if "clock_hz" in replaced:
        sources["link_bytes_per_cycle"] = f"as {base} at its own clock: links keep their speed"
    return sources | replaced


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the file of a machine says of it: the machine that it is made from, or none, and its own sources."""

    base: str
    sources: Mapping[str, str]


def _sources_of(name: str) -> dict[str, str]:
    entry = _entries()[name]
    return (_inherited(entry.base) if entry.base else {}) | dict(entry.sources)


def _inherited(base: str) -> dict[str, str]:
    """Return the sources of a machine for one that is made from it, each with the machine whose file says it."""
    own = _entries()[base].sources
    return {name: f"as {base}: {source}" if name in own else source for name, source in _sources_of(base).items()}


@cache
def _entries() -> Mapping[str, _Entry]:
    """Return the entries of all files by the name of the machine."""
    entries: dict[str, _Entry] = {}
    names: dict[str, str] = {}  # of machines, by the names of the variables that hold them
    for path in sorted(Path(path) for folder in torchipu.target.__path__ for path in Path(folder).glob("*.py")):
        text = path.read_text(encoding="utf-8")
        for variable, call in _calls(ast.parse(text)):
            keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg}
            if "name" not in keywords or not isinstance(keywords["name"].value, ast.Constant):
                continue
            name = str(keywords["name"].value.value)
            names[variable] = name
            base = call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else ""
            lines = text.splitlines()
            entries[name] = _Entry(base, {n: _comment(lines, k.value.lineno - 1) for n, k in keywords.items()})
    return {name: _Entry(names.get(entry.base, ""), entry.sources) for name, entry in entries.items()}


def _calls(module: ast.Module) -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of a module whose results are given a name."""
    for statement in module.body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call() as call):
                yield variable, call


def _comment(lines: Sequence[str], number: int) -> str:
    """Return the comment on a line, after those on lines of their own just above it."""
    above = number
    while above and lines[above - 1].lstrip().startswith("#"):
        above -= 1
    _, _, beside = lines[number].partition("# ")
    return " ".join([*(line.strip(" #") for line in lines[above:number]), beside]).strip()


def written(value: int | float) -> str:
    """Return a number with separators, and a large float in short form."""
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
