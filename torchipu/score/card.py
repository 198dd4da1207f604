"""Runs the model over rows, and sums up how far it is off."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from torchipu.errors import IpuError, OptionsError, RowsError, nearest
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.rows import Row
from torchipu.score.statistics import Statistics, error_of, statistics_of


@dataclass(frozen=True, slots=True)
class Result:
    """A row beside what the model says of it."""

    row: Row
    prediction: Prediction

    @property
    def error(self) -> float:
        """Factor by which they differ, less 1."""
        return error_of(self.prediction.value, self.row.measured)


@dataclass(frozen=True, slots=True)
class Score:
    """What came of a kind.

    Attributes:
        kind: The kind.
        results: Rows with a prediction.
        reasons: The others, with why there is none.
        seconds: What it took.
    """

    kind: Kind
    results: tuple[Result, ...]
    reasons: tuple[tuple[Row, str], ...]
    seconds: float

    @property
    def statistics(self) -> Statistics | None:
        """Errors of the rows; None where none has a prediction, or where rows are a yes or a no."""
        if self.kind.is_decision:
            return None
        return statistics_of([(result.prediction.value, result.row.measured) for result in self.results])

    @property
    def num_right(self) -> int:
        """Rows whose yes or no is right."""
        return sum(bool(result.prediction.value) == bool(result.row.measured) for result in self.results)

    def worst(self, count: int) -> tuple[Result, ...]:
        """Return the rows that are furthest off, worst first; of a decision those that are wrong."""
        if self.kind.is_decision:
            wrong = [r for r in self.results if bool(r.prediction.value) != bool(r.row.measured)]
            return tuple(wrong[:count])
        return tuple(sorted(self.results, key=lambda result: -result.error)[:count])

    def reasons_by_count(self) -> Mapping[str, int]:
        """Return how many rows have no prediction for each reason."""
        counts: dict[str, int] = {}
        for _, reason in self.reasons:
            counts[reason] = counts.get(reason, 0) + 1
        return counts


def kinds_named(names: Sequence[str], kinds: Sequence[Kind]) -> tuple[Kind, ...]:
    """Return kinds by name, in their order; all where none is named.

    Raises:
        OptionsError: There is no such kind.
    """
    known = [kind.name for kind in kinds]
    for name in names:
        if name not in known:
            raise OptionsError(
                f"unknown kind {name!r}{nearest(name, known)}", option="kind", value=name, allowed=", ".join(known),
            )
    return tuple(kind for kind in kinds if not names or kind.name in names)


def some_of(rows: Sequence[Row], count: int | None) -> tuple[Row, ...]:
    """Return so many rows spread evenly over all; all where the count is None, or no smaller."""
    if count is None or count >= len(rows):
        return tuple(rows)
    return tuple(rows[number * len(rows) // count] for number in range(count))


def score(
    kind: Kind, count: int | None = None, seen: Callable[[Iterable[Row]], Iterable[Row]] = iter,
) -> Score:
    """Run the model over the rows of a kind.

    Args:
        kind: The kind.
        count: Rows to take, spread evenly over all; None for all.
        seen: Wraps the rows, for instance to show progress.
    """
    begin = perf_counter()
    results: list[Result] = []
    reasons: list[tuple[Row, str]] = []
    for row in seen(some_of(kind.rows(), count)):
        try:
            prediction = kind.predict(row)
        except RowsError:
            raise
        except IpuError as error:  # the model, not the card, has nothing to say of this row
            prediction = NotExpressed(f"{type(error).__name__}: {error.message}")
        if isinstance(prediction, NotExpressed):
            reasons.append((row, prediction.reason))
        else:
            results.append(Result(row, prediction))
    return Score(kind, tuple(results), tuple(reasons), perf_counter() - begin)
