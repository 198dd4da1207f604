"""What was decided by sizes, and whether it goes the same way with others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchipu.ir.formulas import function_of
from torchipu.ir.size import Size

Numbers = Sequence[Any]
"""What each number of a `Sizes` is, in the order in which they were noted."""
COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}
LOOKS_BEFORE_COMPILED = 16
"""How often guards are gone through one by one before they are compiled."""


@dataclass(slots=True)
class Guards:
    """What was decided by sizes.

    Attributes:
        found: The decisions, as Python over the list ``v`` of all numbers, each with how it went.
    """

    found: dict[str, bool] = field(default_factory=dict)
    _asked: list[tuple[Callable[[Any, Any], bool], Any, Any, bool]] = field(default_factory=list)
    _looked: int = 0
    _compiled: tuple[int, Callable[[Numbers], bool]] | None = None

    def note(self, text: str, comparison: str, left: Any, right: Any, outcome: bool) -> None:
        """Take note of a decision."""
        if text not in self.found:
            self.found[text] = outcome
            self._asked.append((COMPARED[comparison], left, right, outcome))

    def hold(self, numbers: Numbers) -> bool:
        """Whether all of them would go the same way with other numbers."""
        # Python takes as long to compile them as it takes to go through them dozens of times.
        self._looked += 1
        if self._looked <= LOOKS_BEFORE_COMPILED:
            return all(
                compared(
                    numbers[left.place] if type(left) is Size else left,
                    numbers[right.place] if type(right) is Size else right,
                ) == outcome for compared, left, right, outcome in self._asked
            )
        if self._compiled is None or self._compiled[0] != len(self.found):
            terms = [text if outcome else f"not {text}" for text, outcome in self.found.items()]
            self._compiled = len(terms), function_of(f"return {' and '.join(terms) or 'True'}")
        return self._compiled[1](numbers)
