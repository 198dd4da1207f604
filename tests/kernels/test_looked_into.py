"""Instructions that take some lanes of memory, or lanes that lie apart, are in C in the checked kernels."""

from __future__ import annotations

import re
from pathlib import Path

KERNELS = Path(__file__).parents[2] / "torchipu" / "_kernels"
SOME_LANES = re.compile(
    r"\b_mm\d*_(?:maskz?_(?:load|store|compressstore|expandload)\w*|mask(?:load|store)\w*|\w*(?:gather|scatter)\w*)(?=\()",
)


def test_sanitizers_see_what_masked_instructions_read_and_write() -> None:
    named = {name for body in KERNELS.glob("*_body.h") for name in SOME_LANES.findall(body.read_text(encoding="utf-8"))}
    checked = (KERNELS / "checked.h").read_text(encoding="utf-8")
    assert len(named) > 8
    assert named <= set(re.findall(r"#define (_mm\w+)\(", checked))
