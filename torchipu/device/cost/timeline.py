"""What each IPU does when during one weight update, as data and as a text chart."""

from __future__ import annotations

from dataclasses import dataclass, field

KINDS = {
    "F": "forward", "B": "backward", "R": "all-reduce", "N": "scaling", "C": "scaling", "U": "update",
}
RECOMPUTE, LINK, TRANSFER = "recompute", "link", "transfer"
BAR = {"forward": "#", "backward": "=", RECOMPUTE: "r", "all-reduce": "%", "scaling": "*", "update": "+", LINK: ">"}
IDLE = "."
TRANSFER_MARK = "~"
LEGEND = ", ".join([*(f"{mark} {kind}" for kind, mark in BAR.items()), f"{IDLE} idle"])


@dataclass(frozen=True, slots=True)
class Span:
    """One action of one IPU.

    Attributes:
        action: Such as ``0F3``, ``R0`` for the all-reduce of gradients, ``N0`` for their norm, ``C0`` for the scale
            that follows from it, or ``U0`` for the update on IPU 0; ending in ``.recompute`` for the share of a
            backward that is spent on computing forward ops again; ``link`` for copies from and to other IPUs.
        begin: First cycle.
        end: Cycle after the last.
        function: The function of the program that runs; empty for copies.
        micro_batch: Of which micro-batch; None for what is done once.
    """

    action: str
    begin: int
    end: int
    function: str = ""
    micro_batch: int | None = None

    @property
    def kind(self) -> str:
        """``forward``, ``backward``, ``recompute``, ``all-reduce``, ``scaling``, ``update`` or ``link``."""
        if self.action == LINK or self.action.endswith(f".{RECOMPUTE}"):
            return LINK if self.action == LINK else RECOMPUTE
        return KINDS.get(next((letter for letter in self.action if letter.isalpha()), ""), LINK)


@dataclass(slots=True)
class Timeline:
    """Spans by IPU, in order.

    Attributes:
        spans_by_ipu: What each IPU does.
        cycles: Cycles from the first action to the end of the last.
        transfers_by_ipu: Transfers of the host and of Streaming Memory that run beside what an IPU computes.
    """

    spans_by_ipu: list[list[Span]] = field(default_factory=list)
    cycles: int = 0
    transfers_by_ipu: list[list[Span]] = field(default_factory=list)

    def busy(self, ipu: int) -> int:
        """Return the cycles in which an IPU runs legs of its stages."""
        return sum(span.end - span.begin for span in self.spans_by_ipu[ipu] if span.kind != LINK)

    def cycles_by_kind(self, ipu: int) -> dict[str, int]:
        """Return how many cycles an IPU spends on each kind of work, and ``idle``; they add up to ``cycles``.

        Syncs between IPUs count as idle.
        """
        spent = dict.fromkeys(BAR, 0)
        for span in self.spans_by_ipu[ipu]:
            spent[span.kind] += span.end - span.begin
        return {**spent, "idle": self.cycles - sum(spent.values())}


def chart(timeline: Timeline, width: int = 72) -> str:
    """Draw a timeline, one line an IPU, with the marks of ``LEGEND``.

    A column shows what takes most of its time. Transfers that overlap with computation have a line of their own.

    Args:
        timeline: What to draw.
        width: Columns of the bar.
    """
    lines = [
        f"ipu{ipu} |{_bar(spans, timeline.cycles, width)}| {_percent(timeline.busy(ipu), timeline.cycles)}"
        for ipu, spans in enumerate(timeline.spans_by_ipu)
    ]
    for ipu in reversed(range(len(timeline.transfers_by_ipu))):
        transfers = timeline.transfers_by_ipu[ipu]
        if transfers:
            moved = sum(span.end - span.begin for span in transfers)
            bar = _bar(transfers, timeline.cycles, width)
            lines.insert(ipu + 1, f"{f'io{ipu}':<4} |{bar}| {_percent(moved, timeline.cycles)}")
    return "\n".join(lines)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _bar(spans: list[Span], cycles: int, width: int) -> str:
    """Fill each column with the mark of the leg that takes most of it, idle time included."""
    shares: list[dict[str, float]] = [{} for _ in range(width)]
    scale = width / cycles if cycles else 0.0
    for span in spans:
        mark = TRANSFER_MARK if span.action == TRANSFER else BAR[span.kind]
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
