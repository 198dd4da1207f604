"""What ``PVTI_OPTIONS`` asks for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

from torchipu.errors import ReportError

VARIABLE = "PVTI_OPTIONS"
ON = ("true", "1", "on", "yes")


class Settings(NamedTuple):
    """Where traces go.

    Attributes:
        is_on: Whether any are written.
        directory: Their folder.
    """

    is_on: bool
    directory: Path


def settings() -> Settings:
    """Return what the environment asks for; without a word traces are off.

    Raises:
        ReportError: ``PVTI_OPTIONS`` is no JSON object.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return Settings(False, Path())
    try:
        held = json.loads(text)
    except ValueError as error:
        raise _refused(text, str(error)) from error
    if not isinstance(held, dict):
        raise _refused(text, f"it is a {type(held).__name__}")
    return Settings(str(held.get("enable", "false")).lower() in ON, Path(str(held.get("directory", "."))))


def _refused(text: str, why: str) -> ReportError:
    return ReportError(
        f"{VARIABLE} must be a JSON object, got {text!r}: {why}",
        remedy=f"""{VARIABLE}='{{"enable":"true", "directory":"traces"}}'""",
    )
