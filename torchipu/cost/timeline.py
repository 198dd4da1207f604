"""What each IPU does when during one weight update, as data and as a text chart."""

from __future__ import annotations

from dataclasses import dataclass, field

BAR = {"F": "#", "B": "=", "R": "%", "U": "+"}
IDLE = "."


@dataclass(frozen=True, slots=True)
class Span:
    """One action of one IPU.

    Attributes:
        action: Such as ``0F3``, ``R0`` for the all-reduce of gradients or ``U0`` for the update on IPU 0.
        begin: First cycle.
        end: Cycle after the last.
    """

    action: str
    begin: int
    end: int


@dataclass(slots=True)
class Timeline:
    """Spans by IPU, in order.

    Attributes:
        spans_by_ipu: What each IPU does.
        cycles: Cycles from the first action to the end of the last.
    """

    spans_by_ipu: list[list[Span]] = field(default_factory=list)
    cycles: int = 0

    def busy(self, ipu: int) -> int:
        """Return the cycles in which an IPU works."""
        return sum(span.end - span.begin for span in self.spans_by_ipu[ipu])


def chart(timeline: Timeline, width: int = 72) -> str:
    """Draw a timeline, one line an IPU: ``#`` forward, ``=`` backward, ``%`` all-reduce, ``+`` update, ``.`` idle.

    A column shows what takes most of its time.

    Args:
        timeline: What to draw.
        width: Columns of the bar.
    """
    lines = [
        f"ipu{ipu} |{_bar(spans, timeline.cycles, width)}| {_percent(timeline.busy(ipu), timeline.cycles)}"
        for ipu, spans in enumerate(timeline.spans_by_ipu)
    ]
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _bar(spans: list[Span], cycles: int, width: int) -> str:
    """Fill each column with the mark of the leg that takes most of it, idle time included."""
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    scale = width / cycles if cycles else 0.0
    for span in spans:
        mark = BAR.get(next((letter for letter in span.action if letter.isalpha()), ""), "?")
        begin, end = span.begin * scale, span.end * scale
        for column in range(int(begin), min(width, int(end) + 1)):
            overlap = min(end, column + 1) - max(begin, column)
            if overlap > 0:
                shares[column][mark] = shares[column].get(mark, 0.0) + overlap
    return "".join(_winner(share) for share in shares)


def _winner(share: dict[str, float]) -> str:
    idle = 1.0 - sum(share.values())
    best = max(share, key=lambda mark: share[mark], default=IDLE)
    return best if best != IDLE and share[best] > idle else IDLE
