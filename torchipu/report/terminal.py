"""A report in a dozen lines, for a terminal or a file."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchipu.report.compare import Difference
from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts
from torchipu.report.figures import rate_words
from torchipu.report.summary import summary_of

MOST_OPERATIONS = 3
MOST_CHANGES = 12
WIDE = 140  # columns where there is no terminal


def table_of(facts: Facts, title: str) -> Table:
    """Return the table of a program.

    Args:
        facts: Of the program.
        title: What stands above it.
    """
    table = Table(title=escape(title), title_justify="left", box=SIMPLE_HEAD, show_header=False)
    table.add_column("what", no_wrap=True)
    table.add_column("value", overflow="fold")
    for name, value in lines_of(facts):
        table.add_row(name, escape(value))
    return table


def text_of(facts: Facts, title: str) -> str:
    """Return the table of a program as plain text."""
    console = Console(file=io.StringIO(), width=WIDE, color_system=None)
    console.print(table_of(facts, title))
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def changes_of(title: str, differences: Sequence[Difference]) -> str:
    """Return what changed most from one report to another as plain text.

    Args:
        title: What stands above it.
        differences: In this order.
    """
    changed = [one for one in differences if one.change]
    lines = [title, f"  {len(changed):,} of {len(differences):,} numbers differ"]
    for one in changed[:MOST_CHANGES]:
        before, after = ("-" if value is None else f"{value:,.6g}" for value in (one.before, one.after))
        share = f"{one.share:+.1%}" if one.before else "new"
        lines.append(f"  {share:>9}  {before} -> {after} {one.unit}  {one.group}: {one.name}")
    return "\n".join(lines)


def lines_of(facts: Facts) -> Iterator[tuple[str, str]]:
    """Yield names and values."""
    found = summary_of(facts)
    limit = found["tile_memory_bytes"]
    replicas = "" if found["replicas"] == 1 else f"{found['replicas']} replicas of "
    ipus = f"{found['num_ipus']} IPU{'' if found['num_ipus'] == 1 else 's'}"
    yield "machine", f"{found['title']}, {replicas}{ipus}, {found['num_tiles']:,} tiles each"
    run = "weight update" if found["is_training"] else "inference run"
    yield run, f"{found['cycles_per_update']:,} cycles, {found['microseconds_per_update']:,.1f} us (modelled)"
    yield "throughput", f"{rate_words(found['samples_per_second'])} samples/s (modelled)"
    lacks = found["fullest_tile_bytes"] - limit
    verdict = "fits" if found["fits"] else f"does not fit: {lacks:,} B are lacking"
    yield "fullest tile", f"{found['fullest_tile_bytes']:,} B of {limit:,} B, {_share(found, limit)}; {verdict}"
    yield "IPUs at work", "  ".join(f"ipu{ipu} {found[f'ipu{ipu}.efficiency']:.1%}" for ipu in range(found["num_ipus"]))
    yield "time goes to", _categories(found)
    yield "arithmetic", f"{found['flops_per_update']:,} FLOPs, {_rate(found)}"
    yield "ops", f"{found['operations']:,}, of which {found['generic_operations']:,} without a record (estimates)"
    operations = [one for one in facts.tables["operations"] if isinstance(one, rows.Operation)]
    for number, one in enumerate(sorted(operations, key=lambda one: -one.cycles)[:MOST_OPERATIONS], start=1):
        where = f"{one.file}:{one.line}  {one.code}" if one.file else one.module
        yield f"slowest op {number}", f"{one.cycles:,} cycles, {one.kind} %{one.name}  {where}".rstrip()


def _share(found: dict[str, int], limit: int) -> str:
    return f"{found['fullest_tile_bytes'] / limit:.1%}"


def _categories(found: dict[str, int]) -> str:
    """Return on what all IPUs spend their cycles, largest first."""
    spent: dict[str, int] = {}
    for name, value in found.items():
        _, dot, category = name.partition(".")
        if dot and category.endswith("_cycles"):
            word = category.removesuffix("_cycles").replace("_", "-")
            spent[word] = spent.get(word, 0) + value
    total = sum(spent.values()) or 1
    order = sorted(spent, key=lambda word: -spent[word])
    return "  ".join(f"{word} {spent[word] / total:.1%}" for word in order if spent[word])


def _rate(found: dict[str, float]) -> str:
    seconds = found["microseconds_per_update"] * 1e-6
    return f"{found['flops_per_update'] / seconds / 1e12:,.2f} TFLOP/s a replica" if seconds else "-"
