"""Sections of docs/ipu_hardware.md that the code cites are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CITATION = re.compile(r"ipu_hardware\.md`*,? (\d+(?:\.\d+)?)((?:,? and \d+(?:\.\d+)?)*)")
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def sections() -> set[str]:
    text = (ROOT / "docs/ipu_hardware.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## ((?:\d+(?:\.\d+)?(?:, )?)+)", text, re.MULTILINE)
    return {number for heading in headings for number in NUMBER.findall(heading)}


def citations() -> list[tuple[str, str]]:
    return sorted({
        (str(path.relative_to(ROOT)), number)
        for folder in ("torchipu", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")
        for found in CITATION.finditer(path.read_text(encoding="utf-8")) for number in NUMBER.findall(found[0])
    })


def test_sections_are_found() -> None:
    assert {"1.2", "2.2", "3.6", "4.1", "5"} <= sections()


@pytest.mark.parametrize(("file", "number"), citations())
def test_the_cited_section_is_there(file: str, number: str) -> None:
    assert number in sections(), f"{file} cites section {number} of docs/ipu_hardware.md"
