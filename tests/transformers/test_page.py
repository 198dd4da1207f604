"""The Python of docs/huggingface.md runs, block after block, and prints what it says it prints."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "huggingface.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_blocks_run_and_print_what_their_comments_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in BLOCKS:
            exec(compile(block, "docs/huggingface.md", "exec"), names)
    lines = printed.getvalue()
    assert len(BLOCKS) == 6
    for said in re.findall(r"^print\(.*\) +# (.*)$", "".join(BLOCKS), re.MULTILINE):
        assert f"\n{said}\n" in lines
    (layout,) = re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert layout in lines
    assert 0 < names["first"].loss.item() < 2
    assert set(names["metrics"]) > {"eval_loss"}
    assert names["tokens"].shape[0] == 4
