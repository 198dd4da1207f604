"""Differences from eager that are known, each with its reason."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("known_differences.toml")


@dataclass(frozen=True, slots=True)
class Difference:
    """One entry.

    Attributes:
        op: Full name of the operator in OpInfo, with ``[in place]`` for its in-place variant.
        dtypes: Element types; empty for all.
        samples: Numbers of the samples; empty for all.
        verdict: Only this verdict; empty for any but crash and hang.
        told: Regular expression that what was told of the sample must match; empty for anything.
        reason: Why it differs, and why that is left so.
    """

    op: str
    reason: str
    dtypes: tuple[str, ...] = ()
    samples: tuple[int, ...] = ()
    verdict: str = ""
    told: str = ""

    def covers(self, result: dict[str, Any]) -> bool:
        """Whether a result belongs to this entry."""
        return (
            result["op"] == self.op and (not self.dtypes or result["dtype"] in self.dtypes)
            and (not self.samples or result["index"] in self.samples)
        )


def read(file: Path = FILE) -> list[Difference]:
    """Read the entries; each must give a reason."""
    entries = tomllib.loads(file.read_text(encoding="utf-8")).get("difference", [])
    found = [
        Difference(
            entry["op"], entry["reason"], tuple(entry.get("dtypes", ())), tuple(entry.get("samples", ())),
            entry.get("verdict", ""), entry.get("told", ""),
        )
        for entry in entries
    ]
    for difference in found:
        if len(difference.reason.split()) < 4:
            raise ValueError(f"known difference of {difference.op} gives no reason")
    return found


def mark(results: Iterable[dict[str, Any]], known: Sequence[Difference]) -> None:
    """Turn the verdicts of listed differences into ``known``; a crash or a hang is never known."""
    for result in results:
        if result["verdict"] not in ("wrong", "refused", "error"):
            continue
        for entry in known:
            is_told = entry.verdict in ("", result["verdict"]) and re.search(entry.told, result["line"])
            if entry.covers(result) and is_told:
                result["verdict"] = "known"
                result["line"] = f"{entry.reason} | {result['line']}"


def stale(results: Iterable[dict[str, Any]], known: Sequence[Difference], *, complete: bool) -> list[Difference]:
    """Return the entries that cover results of which none differs any more.

    Args:
        results: As `mark` left them.
        known: The entries.
        complete: Whether all samples ran; otherwise an entry counts only where all samples that it names did.
    """
    collected = list(results)
    found = []
    for entry in known:
        covered = [result for result in collected if entry.covers(result)]
        ran = {(result["dtype"], result["index"]) for result in covered}
        named = {(dtype, index) for dtype in entry.dtypes for index in entry.samples}
        if not covered or not (complete or (named and named <= ran)):
            continue
        if not any(result["verdict"] == "known" for result in covered):
            found.append(entry)
    return found
