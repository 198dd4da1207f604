"""The score card of ``torchipu score``: which kinds, progress, and where the results go."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from tqdm import tqdm

from torchipu.report.trust import Judged
from torchipu.report.trust import write as write_trust
from torchipu.score.card import Score, kinds_named, score
from torchipu.score.catalogue import KINDS
from torchipu.score.constants import FITTED, Constant, Refit, held_out, median_error, refitted
from torchipu.score.page import page as page_of
from torchipu.score.page import rows_of, table_of, worst_of, write_csv
from torchipu.score.rows import Row


def print_scores(
    names: Sequence[str], *, rows: int | None = None, worst: int = 5, csv: str | None = None, page: str | None = None,
    console: Console | None = None,
) -> tuple[Score, ...]:
    """Run the model over the rows of some kinds, and print how far it is off.

    Args:
        names: Kinds; all of them when empty.
        rows: Rows to take of each kind, spread evenly over all; None for all.
        worst: How many of the rows that are furthest off to show.
        csv: File for every row; None for none.
        page: File for the page in Markdown; None for none. With all rows, what estimates say of their trust is written
            too.
        console: Where to; None for standard output.

    Raises:
        OptionsError: A kind is unknown.
        RowsError: A file of rows is damaged.
    """
    console = console or Console()
    scores = tuple(score(kind, rows, partial(_shown, kind.name)) for kind in kinds_named(names, KINDS))
    console.print(table_of(scores))
    for one in scores:
        if worst > 0 and one.worst(worst):
            console.print(worst_of(one, worst))
        for reason, count in one.reasons_by_count().items():
            console.print(f"{one.kind.name}: {rows_of(count)} not expressed: {reason}", markup=False, highlight=False)
    if csv is not None:
        with Path(csv).open("w", encoding="utf-8", newline="") as file:
            write_csv(scores, file)
    if page is not None:
        Path(page).write_text(page_of(scores, worst, _refits()), encoding="utf-8")
        if rows is None:
            unseen = {kind.name for kind in KINDS} - {one.kind.name for one in scores}
            write_trust([judged for one in scores if (judged := judged_of(one)) is not None], unseen=unseen)
    return scores


def judged_of(score: Score) -> Judged | None:
    """Return what estimates say of a kind; None where no row has a prediction."""
    kind, found, count = score.kind, score.statistics, len(score.results)
    if kind.is_decision and count:
        return Judged(kind.name, kind.source, count, 1 - score.num_right / count, 0.0, 0.0)
    return None if found is None else Judged(kind.name, kind.source, count, found.median, found.p90, found.bias)


def _refits() -> tuple[Refit, ...]:
    """Fit the constants that are fitted without some of their rows in turn; those of the same kinds together."""
    by_kinds: dict[tuple[str, ...], list[Constant]] = {}
    for constant in FITTED:
        by_kinds.setdefault(constant.kinds, []).append(constant)
    refits: list[Refit] = []
    for names, constants in by_kinds.items():
        kinds = kinds_named(names, KINDS)
        groups = held_out([row for kind in kinds for row in kind.rows()])
        shown = tqdm(groups, "fitted constants", leave=False, disable=None)
        refits += refitted(constants, shown, partial(median_error, kinds))
    return tuple(refits)


def _shown(name: str, rows: Iterable[Row]) -> Iterable[Row]:
    yield from tqdm(rows, desc=name, unit="row", leave=False, delay=1, disable=None)  # no bar where stderr is a file
