"""Published runs of one model on different numbers of IPUs: by how much more of them are faster, and by the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchipu.score.card import Result
from torchipu.score.rows import Row
from torchipu.score.statistics import error_of

OF_ONE_PROGRAM = "chip", "workload"
"""Columns that are alike in rows of one program; what else their configurations differ in is part of the scaling."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two rows of one program.

    Attributes:
        few: On fewer IPUs.
        many: On more.
    """

    few: Result
    many: Result

    @property
    def ipus(self) -> tuple[int, int]:
        """How many each has."""
        return _ipus(self.few), _ipus(self.many)

    @property
    def measured(self) -> float:
        """Factor between the measured rates."""
        return self.many.row.measured / self.few.row.measured

    @property
    def predicted(self) -> float:
        """Factor between the predicted rates."""
        return self.many.prediction.value / self.few.prediction.value

    @property
    def error(self) -> float:
        """Factor by which these differ, less 1."""
        return error_of(self.predicted, self.measured)


def pairs_of(results: Sequence[Result]) -> tuple[Pair, ...]:
    """Return each row beside that of the same program on the next fewer IPUs.

    Where there are several of these, the one of the same software counts, or else the last.

    Args:
        results: Of rows of rates, with columns ``chip``, ``n_ipu``, ``workload`` and ``sdk``.
    """
    pairs = []
    for many in results:
        fewer = [few for few in results if _program(few.row) == _program(many.row) and _ipus(few) < _ipus(many)]
        if fewer:
            most = max(map(_ipus, fewer))
            beside = [few for few in fewer if _ipus(few) == most]
            same = [few for few in beside if few.row.line.text("sdk") == many.row.line.text("sdk")]
            pairs.append(Pair((same or beside)[-1], many))
    return tuple(pairs)


def _ipus(result: Result) -> int:
    return result.row.line.size_in("n_ipu")


def _program(row: Row) -> tuple[str, ...]:
    return tuple(row.line.text(column) for column in OF_ONE_PROGRAM)
