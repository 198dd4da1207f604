"""``torchipu estimate``: options and values from a command line, and tables to a terminal."""

from __future__ import annotations

import argparse
import ast
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from torchipu.cli.flags import OFTEN
from torchipu.errors import OptionsError
from torchipu.estimation.scripts import Estimated, estimate_script
from torchipu.estimation.sweeps import Sweep
from torchipu.options import Options
from torchipu.target import lookup_target


def print_estimates(flags: argparse.Namespace) -> Estimated:
    """Estimate a script and print what was found.

    Raises:
        FileNotFoundError: There is no such script.
        OptionsError: An option or a machine is unknown.
    """
    over = swept(flags)
    for target in over.get("target", ()):
        lookup_target(target)
    estimated = estimate_script(flags.script, flags.arguments, over, on_meta=flags.meta)
    if Console().is_terminal:
        _print(estimated)
    else:
        print(estimated)
    if flags.csv is not None:  # behind what is printed, which is not lost where a file cannot be written
        tables = [found for found in estimated.found if isinstance(found, Sweep)]
        if not tables:
            raise OptionsError(
                "there is no table to write", option="csv", value=flags.csv,
                remedy="give several values of an option, as in --replicas 1,4,16",
            )
        tables[0].write_csv(Path(flags.csv))
    return estimated


def _print(estimated: Estimated) -> None:
    console = Console()
    for found in estimated.found:
        console.print(found.table() if isinstance(found, Sweep) else str(found), markup=False, highlight=False)
    rest = Estimated([], estimated.ended_at, estimated.error)
    if not estimated.found or estimated.ended_at or estimated.error is not None:
        text = str(rest) if not estimated.found else str(rest).partition("\n\n")[2]
        console.print(text, markup=False, highlight=False)


def swept(flags: argparse.Namespace) -> dict[str, list[Any]]:
    """Return the values of each option that the command line names."""
    over: dict[str, list[Any]] = {"target": flags.target} if flags.target else {}
    given = [(name, getattr(flags, name)) for name in OFTEN if getattr(flags, name) is not None]
    for text in flags.set:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionsError(
                f"--set expects option=value, got {text!r}", option="set", value=text, allowed="option=value",
                remedy="write it as in --set recompute=none,stage",
            )
        given.append((name.strip().replace("-", "_"), value))
    for name, value in given:
        over[name] = values_of(value)
    return over


def values_of(text: str) -> list[Any]:
    """Return values with commas between them: numbers, true, false, none, texts; brackets hold commas together."""
    return [_value(part) for part in _parts(text)]


def _parts(text: str) -> Sequence[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _value(text: str) -> Any:
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words and text not in _TEXTS:
        return words[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


_TEXTS = frozenset(
    value for option in fields(Options) for value in option.metadata.get("allowed") or () if isinstance(value, str)
)
