"""The Python of docs/geometric.md runs and prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import poptorch_geometric

PAGE = (Path(__file__).parents[2] / "docs" / "geometric.md").read_text(encoding="utf-8")


def test_the_block_runs_and_prints_what_its_comments_say() -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "docs/geometric.md", "exec"), {"__name__": "page"})
    assert printed.getvalue().splitlines() == re.findall(r"^print\(.*\) +# (.*)$", block, re.MULTILINE)


def test_every_public_name_is_on_the_page() -> None:
    missing = [name for name in poptorch_geometric.__all__ if name not in PAGE]
    assert missing == []
