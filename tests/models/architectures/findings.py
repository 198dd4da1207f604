"""What was found of each architecture: kept in ``findings.json``, shown on ``docs/models.md``."""

from __future__ import annotations

import json
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from tests.models.architectures.catalogue import ALL, PACKAGES
from tests.models.architectures.comparison import Finding
from tests.models.architectures.table import page

FILE = Path(__file__).with_name("findings.json")
PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def read() -> list[Finding]:
    """Return what was found so far, in the order of the catalogue."""
    if not FILE.exists():
        return []
    return [Finding(**entry) for entry in json.loads(FILE.read_text(encoding="utf-8"))["findings"]]


def rendered() -> str:
    """Return the page for what was found so far."""
    return page(read(), json.loads(FILE.read_text(encoding="utf-8"))["versions"])


def enter(finding: Finding) -> None:
    """Put one finding in the place of what was found of the architecture before, and write the page anew."""
    known = {entry.name: entry for entry in read()} | {finding.name: finding}
    ordered = [asdict(known[architecture.name]) for architecture in ALL if architecture.name in known]
    versions = ", ".join(f"{package} {metadata.version(package)}" for package in ("torch", *PACKAGES))
    text = json.dumps({"versions": versions, "findings": ordered}, indent=1)
    FILE.write_text(text + "\n", encoding="utf-8")
    PAGE.write_text(rendered(), encoding="utf-8")
