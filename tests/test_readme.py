"""The Python in the README runs, and prints what it says it prints."""

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

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


NAMES = ["torch.compile", "TrainStep", "import poptorch", "torchipu.estimate"]


def test_readme_shows_both_doors_poptorch_and_an_estimate() -> None:
    assert [[name in block for name in NAMES] for block in BLOCKS] == [
        [number == block for number in range(len(NAMES))] for block in range(len(NAMES))
    ]


@pytest.mark.parametrize("block", BLOCKS, ids=NAMES)
def test_block_prints_what_its_comments_say(block: str) -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert printed.getvalue().splitlines() == re.findall(r"^print\(.*\) +# (.*)$", block, re.MULTILINE)
