"""docs/examples.md lists every example with a command that its flags allow."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"`python examples/(\w+)\.py *([^`]*)`", PAGE)


def test_every_example_is_listed_once() -> None:
    examples = [
        path.stem for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
    ]
    assert len(examples) > 8
    assert sorted(name for name, _ in COMMANDS) == sorted(examples)


@pytest.mark.parametrize(("name", "flags"), COMMANDS)
def test_command_is_one_that_the_example_takes(name: str, flags: str) -> None:
    if name == "graph_classification":
        pytest.importorskip("torch_geometric", reason='needs pip install "torchipu[geometric]"')
    assert importlib.import_module(name).parse_arguments(shlex.split(flags))
