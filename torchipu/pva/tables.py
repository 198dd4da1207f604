"""The tables of a ``profile.pop``, each read when it is first asked for."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from torchipu.errors import ReportError
from torchipu.report.database import opened, read_table


class Tables:
    """The tables of a file.

    Args:
        path: ``profile.pop``.

    Raises:
        FileNotFoundError: There is none.
        ReportError: It is empty, damaged, of another program, or of a newer version.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._tables: dict[str, tuple[Any, ...]] = {}
        with opened(path):
            pass
        self._facts = {fact.name: json.loads(fact.value) for fact in self.rows("facts")}

    def rows(self, name: str) -> tuple[Any, ...]:
        """Return the rows of a table, classes of `torchipu.report.facts.rows`.

        Raises:
            ReportError: The file is damaged, or no longer what it was.
        """
        if name not in self._tables:
            self._tables[name] = read_table(self.path, name)
        return self._tables[name]

    def fact(self, name: str) -> Any:
        """Return a fact about the whole program.

        Raises:
            ReportError: There is none of this name, as in every file that is not damaged.
        """
        if name not in self._facts:
            raise self._damaged(f"there is no fact {name!r}")
        return self._facts[name]

    def number(self, name: str) -> float:
        """Return a fact that is a number.

        Raises:
            ReportError: There is none of this name, or it is no number.
        """
        value = self.fact(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise self._damaged(f"the fact {name!r} is {value!r:.40}, no number")
        return value

    def _damaged(self, why: str) -> ReportError:
        return ReportError(f"{self.path} is damaged: {why}", remedy="run the program again with its report on")

    def setting(self, name: str, default: str = "") -> str:
        """Return an option or a fact of the environment as text."""
        return next((str(one.value) for one in self.rows("settings") if one.name == name), default)
