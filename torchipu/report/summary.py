"""``summary.json``: the figures of a report that other tools want, flat, with a version."""

from __future__ import annotations

import json
from typing import Any

from torchipu.report.facts import rows
from torchipu.report.facts.gather import Facts

FORMAT, VERSION = "torchipu.summary", 1


def summary_of(facts: Facts) -> dict[str, Any]:
    """Return the figures by name.

    ``ipu0.compute_cycles`` and the like are cycles of an iteration by IPU and category; ``ipu0.fullest_tile_bytes``
    is its fullest tile, with gaps.

    Args:
        facts: Of the program.
    """
    found: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for fact in facts.tables["facts"]:
        assert isinstance(fact, rows.Fact)
        value = json.loads(fact.value)
        if not isinstance(value, (list, dict)):
            found[fact.name] = value
    for ipu, spent in enumerate(facts.figure("cycles_by_category_by_ipu")):
        found |= {f"ipu{ipu}.{category.replace('-', '_')}_cycles": cycles for category, cycles in spent.items()}
    for ipu, share in enumerate(facts.figure("efficiency_by_ipu")):
        found[f"ipu{ipu}.efficiency"] = share
    tiles = [tile for tile in facts.tables["tiles"] if isinstance(tile, rows.Tile)]
    for ipu in sorted({tile.ipu for tile in tiles}):
        found[f"ipu{ipu}.fullest_tile_bytes"] = max(tile.including_gaps for tile in tiles if tile.ipu == ipu)
    found["fullest_tile_bytes"] = max((tile.including_gaps for tile in tiles), default=0)
    found["fits"] = found["fullest_tile_bytes"] <= found["tile_memory_bytes"]
    operations = [one for one in facts.tables["operations"] if isinstance(one, rows.Operation)]
    found["operations"] = len(operations)
    found["generic_operations"] = sum(one.kind == "generic" for one in operations)
    found["flops_per_update"] = sum(one.flops for one in operations)
    found["steps_per_update"] = steps_of_an_iteration(facts)
    return found


def steps_of_an_iteration(facts: Facts) -> int:
    """Return how many steps all runs of all functions have."""
    counts: dict[str, int] = {}
    for step in facts.tables["steps"]:
        assert isinstance(step, rows.Step)
        counts[step.function] = counts.get(step.function, 0) + 1
    return sum(counts.get(run.function, 0) for run in facts.tables["runs"] if isinstance(run, rows.Run))


def summary_text(facts: Facts) -> str:
    """Return the figures as JSON."""
    return json.dumps(summary_of(facts), indent=2) + "\n"
