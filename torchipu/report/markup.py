"""Figures, time lines, schedules and texts as HTML for notebooks: no scripts, nothing loaded, names escaped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from torchipu.device.cost.timeline import RECOMPUTE, TRANSFER, Span, Timeline
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.types import Leg
from torchipu.report.figures import Figures, rate_words

COLOURS = {
    "forward": "#3b76af", "backward": "#b8561b", RECOMPUTE: "#8a6d00", "all-reduce": "#7a4fa3", "scaling": "#5c6670",
    "update": "#2f7d4f", "link": "#a03a5e", "transfer": "#3d6f76",
}
"""By kind of what an IPU does; each has a contrast of 4.5 to 1 or more with white, in which its text is written."""
LEG_KINDS = {Leg.FORWARD: "forward", Leg.BACKWARD: "backward", Leg.UPDATE: "update"}
WIDTH, LANE, LEFT = 720, 22, 48
"""Of a drawing, in pixels."""
MOST_CELLS = 4_000
"""Of a schedule; what is beyond is counted."""


def table(rows: Iterable[Sequence[object]], head: Sequence[str] = (), caption: str = "") -> str:
    """Return a table; the first cell of each row heads it.

    Args:
        rows: Its cells.
        head: Of its columns.
        caption: Above it.
    """
    titles = "".join(f'<th scope="col">{escape(str(title))}</th>' for title in head)
    lines = [
        f'<tr><th scope="row" style="text-align:left">{escape(str(first))}</th>'
        + "".join(f'<td style="text-align:left">{escape(str(cell))}</td>' for cell in rest) + "</tr>"
        for first, *rest in rows
    ]
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    header = f"<thead><tr>{titles}</tr></thead>" if titles else ""
    return f"<table>{above}{header}<tbody>{''.join(lines)}</tbody></table>"


def text(held: str) -> str:
    """Return a text as it stands."""
    return f'<pre style="overflow:auto">{escape(held)}</pre>'


def figures(held: Figures) -> str:
    """Return the headline of a profile, the memory of the fullest tiles and the slowest ops."""
    run = "weight update" if held.is_training else "inference run"
    fullest = held.fullest_tile
    share = fullest.total_bytes / held.tile_memory_bytes
    headline = [
        ("machine", f"{held.title}, {held.num_ipus} IPUs, {held.replicas} replicas (modelled)"),
        (run, f"{held.cycles_per_update:,} cycles, {held.microseconds_per_update:,.1f} us"),
        ("throughput", f"{rate_words(held.samples_per_second)} samples/s"),
        ("fullest tile", f"{fullest.total_bytes:,} of {held.tile_memory_bytes:,} B ({share:.1%}), ipu {fullest.ipu}"),
    ]
    ipus = [
        (f"ipu{memory.ipu}", f"{memory.total_bytes:,}", f"{busy:.1%}", memory.at)
        for memory, busy in zip(held.memory_by_ipu, held.efficiency_by_ipu, strict=True)
    ]
    slowest = [(f"%{op.name}", op.kind, f"{op.cycles:,}", op.source) for op in held.slowest_ops]
    return (
        table(headline) + table(ipus, ("IPU", "fullest tile, B", "at work", "at its peak"), "IPUs")
        + table(slowest, ("op", "kind", "cycles", "source"), "slowest ops")
    )


def timeline(held: Timeline, clock_hz: float | None = None) -> str:
    """Return a time line as a drawing, a lane for each IPU.

    What is narrower than half a pixel is drawn with what is next to it and of the same kind.

    Args:
        held: What each IPU does when.
        clock_hz: Cycles a second, to tell the time by; None for cycles alone.
    """
    lanes = list(_lanes(held))
    height = LANE * len(lanes) + 2
    scale = (WIDTH - LEFT) / max(1, held.cycles)
    told = f"time line of {len(held.spans_by_ipu)} IPUs, {held.cycles:,} cycles"
    told += "" if clock_hz is None else f", {held.cycles / clock_hz * 1e6:,.1f} us"
    parts = []
    for place, (name, spans) in enumerate(lanes):
        top = place * LANE
        parts.append(f'<text x="0" y="{top + LANE - 7}" font-size="12" fill="currentColor">{name}</text>')
        for kind, begin, end, actions in _joined(spans, 0.5 / scale):
            title = escape(f"{actions}: {kind}, cycles {begin:,} to {end:,}")
            parts.append(
                f'<rect x="{LEFT + begin * scale:.2f}" y="{top + 2}" width="{(end - begin) * scale:.2f}" '
                f'height="{LANE - 4}" fill="{COLOURS[kind]}"><title>{title}</title></rect>'
            )
    return (
        f'<figure style="margin:0"><svg role="img" viewBox="0 0 {WIDTH} {height}" width="100%" '
        f'style="max-width:{WIDTH}px" xmlns="http://www.w3.org/2000/svg"><title>{escape(told)}</title>'
        f"{''.join(parts)}</svg><figcaption>{escape(told)}: {_legend()}</figcaption></figure>"
    )


def schedule(held: Schedule) -> str:
    """Return a schedule as a table: IPUs from top to bottom, pipeline cycles from left to right."""
    ipus = max((len(row) for row in held.steps), default=0)
    cycles = min(len(held.steps), MOST_CELLS // max(1, ipus))
    head = "".join(f'<th scope="col">{number}</th>' for number in range(cycles))
    lines = []
    for ipu in range(ipus):
        cells = "".join(_cell(row[ipu] if ipu < len(row) else ()) for row in held.steps[:cycles])
        lines.append(f'<tr><th scope="row">ipu{ipu}</th>{cells}</tr>')
    rest = len(held.steps) - cycles
    told = f"{len(held.steps)} pipeline cycles, {held.fill} to fill, {held.flush} to flush"
    told += f"; {rest} more are not shown" if rest else ""
    return (
        f'<div style="overflow:auto"><table><caption>{escape(told)}</caption><thead><tr><th scope="col">cycle</th>'
        f"{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(actions: Sequence[Action]) -> str:
    shown = "".join(
        f'<span style="background:{COLOURS[LEG_KINDS[one.leg]]};color:#fff;padding:0 3px">{escape(str(one))}</span> '
        for one in actions
    )
    return f"<td>{shown}</td>"


def _legend() -> str:
    return " ".join(
        f'<span style="background:{colour};color:#fff;padding:0 4px">{escape(kind)}</span>'
        for kind, colour in COLOURS.items()
    )


def _lanes(held: Timeline) -> Iterator[tuple[str, Sequence[Span]]]:
    """Yield what each IPU computes, and below it what is moved beside that, if anything is."""
    for ipu, spans in enumerate(held.spans_by_ipu):
        yield f"ipu{ipu}", spans
        if ipu < len(held.transfers_by_ipu) and held.transfers_by_ipu[ipu]:
            yield f"io{ipu}", held.transfers_by_ipu[ipu]


def _joined(spans: Sequence[Span], least: float) -> Iterator[tuple[str, int, int, str]]:
    """Yield kind, begin, end and actions; short ones of a kind that follow each other are one."""
    held: tuple[str, int, int, str] | None = None
    for span in spans:
        kind = TRANSFER if span.action == TRANSFER else span.kind
        if held is not None and held[0] == kind and span.begin - held[2] <= least and (
            held[2] - held[1] <= least or span.end - span.begin <= least
        ):
            first = held[3].partition(" to ")[0]
            held = (kind, held[1], span.end, f"{first} to {span.action}")
            continue
        if held is not None:
            yield held
        held = (kind, span.begin, span.end, span.action)
    if held is not None:
        yield held
