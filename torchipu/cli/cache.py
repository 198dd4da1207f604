"""The command ``torchipu cache``: what the compile cache holds, whether it is sound, and to empty it."""

from __future__ import annotations

from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from torchipu.cache.store import Store


def print_cache(action: str, console: Console | None = None) -> int:
    """Do what is asked with the cache, and print what came of it.

    Args:
        action: ``ls``, ``clear`` or ``verify``.
        console: Where to; None for standard output.

    Returns:
        The exit status: 1 where an entry is damaged.

    Raises:
        OSError: The folder is none that is used.
        OptionsError: The size in the environment is none.
    """
    console = console or Console()
    store = Store.opened()
    if action == "clear":
        removed = store.clear()
        console.print(f"{removed} entries removed from {escape(str(store.folder))}", soft_wrap=True, highlight=False)
        return 0
    if action == "verify":
        found = store.verify()
        bad = {path: reason for path, reason in found.items() if reason}
        for path, reason in bad.items():
            console.print(escape(f"{path}: {reason}"), soft_wrap=True, highlight=False)
        console.print(f"{len(found) - len(bad)} of {len(found)} entries are sound", highlight=False)
        return 1 if bad else 0
    _print_entries(store, console)
    return 0


def _print_entries(store: Store, console: Console) -> None:
    entries = store.entries()
    table = Table(box=SIMPLE_HEAD)
    for name, justify in (("last used", "left"), ("kB", "right"), ("what", "left"), ("version", "left")):
        table.add_column(name, justify=justify, no_wrap=name != "what")  # type: ignore[arg-type]
    for entry in entries:
        table.add_row(
            datetime.fromtimestamp(entry.used).strftime("%Y-%m-%d %H:%M"), f"{entry.num_bytes / 1000:.0f}",
            escape(entry.texts.get("what", "not readable")), escape(entry.texts.get("version", "")),
        )
    console.print(table)
    total = sum(entry.num_bytes for entry in entries)
    console.print(
        f"{len(entries)} entries, {total / 1e6:.1f} of {store.most_bytes / 1e6:.0f} MB in {escape(str(store.folder))}",
        soft_wrap=True, highlight=False,
    )
