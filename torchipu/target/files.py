"""Machines in TOML files: the name of a known one as ``base``, and the fields that replace its own."""

from __future__ import annotations

import tomllib
from pathlib import Path

from torchipu.errors import nearest
from torchipu.target.rules import RULES, refusal

SUFFIX = ".toml"
BASE = "base"


def read_machine(path: str) -> tuple[str, dict[str, object]]:
    """Return the base and the fields that a file names, unchecked but for their names.

    Args:
        path: Of the file.

    Raises:
        OptionsError: There is no such file, it is no TOML, it names no base or what is no field.
    """
    where = f"target {path!r}"
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise refusal(f"{where}: there is no such file", path, "a file that is there") from None
    except OSError as error:
        raise refusal(f"{where}: the file cannot be read: {error.strerror}", path, "a file in TOML") from error
    except (ValueError, RecursionError) as error:  # of TOML, of its encoding, of numbers too long to read
        raise refusal(
            f"{where}: the file is no TOML: {error}", path, "lines such as num_tiles = 736", "correct that line",
        ) from error
    base = found.pop(BASE, None)
    for name in found:
        if name not in RULES:
            hint = nearest(name, [BASE, *RULES])
            raise refusal(f"{where}: unknown key {name!r}{hint}", name, ", ".join([BASE, *RULES]))
    if base is None:
        raise refusal(
            f"{where}: there is no {BASE!r}, the machine whose fields are replaced", path, "the name of a machine",
            f'add the line {BASE} = "mk2", or another one',
        )
    if not isinstance(base, str):
        raise refusal(
            f"{where}: {BASE} expects the name of a machine, got {base!r} ({type(base).__name__})", base,
            "the name of a machine",
        )
    return base, found
