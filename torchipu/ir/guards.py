"""What was decided by sizes, and whether it goes the same way with others."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchipu.ir.size import Size

Numbers = Sequence[Any]
"""What each number of a `Sizes` is, in the order in which they were noted."""
COMPARED: Mapping[str, Callable[[Any, Any], bool]] = {"==": operator.eq, "<": operator.lt, "<=": operator.le}


@dataclass(slots=True)
class Guards:
    """What was decided by sizes.

    Attributes:
        found: The decisions, as Python over the list ``v`` of all numbers, each with how it went.
    """

    found: dict[str, bool] = field(default_factory=dict)
    # By comparison and how it went: hundreds that are gone through for each set of sizes, most beside plain numbers.
    _plain: dict[tuple[str, bool], list[tuple[int, Any]]] = field(default_factory=dict)
    _both: dict[tuple[str, bool], list[tuple[Any, Any]]] = field(default_factory=dict)

    def note(self, text: str, comparison: str, left: Any, right: Any, outcome: bool) -> None:
        """Take note of a decision."""
        if text in self.found:
            return
        self.found[text] = outcome
        if type(left) is Size and type(right) is not Size:
            self._plain.setdefault((comparison, outcome), []).append((left.place, right))
        else:
            self._both.setdefault((comparison, outcome), []).append((left, right))

    def hold(self, numbers: Numbers) -> bool:
        """Whether all of them would go the same way with other numbers."""
        for (comparison, outcome), asked in self._plain.items():
            compared = COMPARED[comparison]
            for place, number in asked:
                if compared(numbers[place], number) is not outcome:
                    return False
        return all(
            COMPARED[comparison](_at(left, numbers), _at(right, numbers)) is outcome
            for (comparison, outcome), asked in self._both.items() for left, right in asked
        )


def _at(value: Any, numbers: Numbers) -> Any:
    return numbers[value.place] if type(value) is Size else value
