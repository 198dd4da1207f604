"""Runs a user's script as Python would."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path


def refuse_missing(path: str) -> None:
    """Raise FileNotFoundError where there is no such script."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"there is no script {path}")


def run_script(path: str, arguments: Sequence[str] = ()) -> None:
    """Run a script as ``python path arguments...`` would; what it raises comes through.

    Raises:
        FileNotFoundError: There is no such script.
    """
    refuse_missing(path)
    kept_arguments, kept_path = sys.argv, sys.path[:]
    sys.argv = [path, *arguments]
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = kept_arguments, kept_path
