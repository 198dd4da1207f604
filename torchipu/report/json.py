"""Profiles as JSON, with a version, for other programs to read."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

from torchipu.report.figures import Figures

FORMAT = "torchipu.profile"
VERSION = 1


def format_json(profile: Figures) -> str:
    """Return a profile as JSON: its fields by name, beside ``format`` and ``version``."""
    return json.dumps({"format": FORMAT, "version": VERSION, **asdict(profile)}, indent=2)


def write_json(profile: Figures, path: str | os.PathLike[str]) -> None:
    """Write a profile to a file, which is either complete or not there.

    Raises:
        OSError: The directory cannot be written.
    """
    write_whole(format_json(profile) + "\n", Path(path))


def write_whole(text: str, final: Path) -> None:
    """Write a text file that is either complete or as it was before, and its folder.

    Raises:
        OSError: The directory cannot be written.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(final)
    finally:
        partial.unlink(missing_ok=True)
