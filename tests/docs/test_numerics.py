"""What docs/numerics.md says of options and of half results holds where other tests do not look."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from torchipu import Options

PAGE = (Path(__file__).parents[2] / "docs" / "numerics.md").read_text(encoding="utf-8")


def test_options_that_change_numbers_are_options() -> None:
    table = PAGE[PAGE.index("## Options that change numbers") :]
    named = [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert len(named) > 15
    assert set(named) <= {option.name for option in fields(Options)}
    assert any(option.name.startswith("loss_scale_") for option in fields(Options))
