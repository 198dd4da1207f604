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


def write_whole(content: str | bytes, final: Path) -> None:
    """Write a file that is either complete or as it was before, and its folder.

    Raises:
        OSError: The directory cannot be written, or is full; the file is named.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(f".{final.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        partial.replace(final)
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno or 0), str(final)) from error
    finally:
        partial.unlink(missing_ok=True)
