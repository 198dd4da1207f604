"""The Python of a page runs from its beginning to its end, and prints what the comments say that it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest
from torch._dynamo.backends.registry import list_backends, register_backend

from torchipu.backend import ipu_backend

if "ipu" not in list_backends():  # torchipu is on the path, but not installed with its entry point
    register_backend(ipu_backend, name="ipu")

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ["estimate.md", "live.md", "machines.md", "numerics.md", "pva.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_python_of_the_page_prints_what_its_comments_say(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    names = {"__name__": page.removesuffix(".md")}
    blocks = list(BLOCK.finditer(text))
    assert blocks
    for block in blocks:
        printed = io.StringIO()
        # Errors name the line of the page.
        code = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        assert printed.getvalue().splitlines() == re.findall(r"^print\(.*\) +# (.*)$", block[1], re.MULTILINE)
