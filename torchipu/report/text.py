"""Profiles as plain text: a summary of a few lines, and all of it for ``torchipu explain``."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu.device.cost import LEGEND
from torchipu.report.figures import Figures, rate_words

LABEL_WIDTH = 20


def format_summary(profile: Figures) -> str:
    """Return the lines that a user wants first: cycles, the fullest tile's memory, pipeline efficiency."""
    run = "weight update" if profile.is_training else "inference run"
    batch = f"{profile.micro_batches} x {profile.micro_batch_size} samples"
    batch += "" if profile.replicas == 1 else f" x {profile.replicas} replicas"
    ipus = _count(profile.num_ipus, "IPU")
    ipus = ipus if profile.replicas == 1 else f"{profile.replicas} replicas of {ipus}"
    fullest = profile.fullest_tile
    share = fullest.total_bytes / profile.tile_memory_bytes
    lines = [
        _line("machine", f"{profile.title}, {ipus} (modelled)"),
        _line(run, f"{profile.cycles_per_update:,} cycles, {profile.microseconds_per_update:,.1f} us ({batch})"),
        _line("throughput", f"{rate_words(profile.samples_per_second)} samples/s"),
        _line(
            "busiest tile",
            f"{fullest.total_bytes:,} B of {profile.tile_memory_bytes:,} B ({share:.1%}), "
            f"tile {fullest.tile} of ipu {fullest.ipu}",
        ),
        _line("pipeline efficiency", _efficiencies(profile)),
    ]
    if any(profile.host_waits_by_ipu):
        lines.append(_line("host buffers", _buffers(profile)))
    if profile.generic_ops:
        count = sum(op.count for op in profile.generic_ops)
        lines.append(_line("generic ops", f"{count}: {', '.join(op.target for op in profile.generic_ops)}"))
    return "\n".join(lines)


def format_full(profile: Figures) -> str:
    """Return the summary and the tables behind it."""
    parts = [
        format_summary(profile),
        f"one iteration  ({LEGEND})\n{profile.timeline}",
        "cycles of an iteration by IPU\n" + _cycle_table(profile),
        "memory of the fullest tile by IPU, bytes\n" + _memory_table(profile),
        "functions, one run\n" + _table(
            ("function", "cycles"), [(name, f"{cycles:,}") for name, cycles in profile.cycles_by_function.items()],
        ),
        "codelets\n" + _table(
            ("codelet", "compute sets", "cycles", "code B"),
            [(c.name, f"{c.compute_sets:,}", f"{c.cycles:,}", f"{c.code_bytes:,}") for c in profile.codelets],
        ),
        "slowest ops\n" + _table(
            ("op", "kind", "in", "cycles", "source"),
            [(f"%{op.name}", op.kind, op.function, f"{op.cycles:,}", op.source) for op in profile.slowest_ops],
        ),
    ]
    if profile.choices:
        parts.append("cycles that depend on data: the dearest branch and one trip are counted\n" + _table(
            ("op", "in", "cycles", "source"),
            [(c.kind, c.function, " or ".join(f"{n:,}" for n in c.cycles), c.source) for c in profile.choices],
        ))
    if profile.generic_ops:
        rows = [(op.target, f"{op.count:,}", op.source) for op in profile.generic_ops]
        parts.append("ops that run through the generic codelet\n" + _table(("op", "count", "source"), rows))
    if profile.statistics:
        parts.append("magnitudes in the last call, and what half would lose\n" + profile.statistics)
    return "\n\n".join(parts)


def _line(label: str, value: str) -> str:
    return f"{label:<{LABEL_WIDTH}} {value}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _efficiencies(profile: Figures) -> str:
    return "  ".join(f"ipu{ipu} {share:.1%}" for ipu, share in enumerate(profile.efficiency_by_ipu))


def _buffers(profile: Figures) -> str:
    """Return what buffers of inputs take, and which IPU waits most for them."""
    waits = profile.host_waits_by_ipu
    ipu = waits.index(max(waits))
    return (
        f"{profile.host_buffer_bytes:,} B on the host a replica; ipu{ipu} waits "
        f"{waits[ipu] / profile.cycles_per_update:.1%} of the time for the host to fill them"
    )


def _cycle_table(profile: Figures) -> str:
    categories = list(profile.cycles_by_category_by_ipu[0])
    rows = [
        (f"ipu{ipu}", *(f"{cycles[name]:,}" for name in categories))
        for ipu, cycles in enumerate(profile.cycles_by_category_by_ipu)
    ]
    return _table(("", *categories), rows)


def _memory_table(profile: Figures) -> str:
    used = [name for name in profile.memory_by_ipu[0].bytes_by_category
            if any(memory.bytes_by_category[name] for memory in profile.memory_by_ipu)]
    rows = [
        (f"ipu{m.ipu}", str(m.tile), f"{m.total_bytes:,}", *(f"{m.bytes_by_category[name]:,}" for name in used), m.at)
        for m in profile.memory_by_ipu
    ]
    return _table(("", "tile", "total", *used, "peak during"), rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out columns: the first to the left, numbers to the right, everything else to the left."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    numeric = [bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in table
    )


def _is_number(cell: str) -> bool:
    return cell.replace(",", "").isdigit()
