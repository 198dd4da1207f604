"""Which ops share the tiles in the same supersteps: convolutions that the user has put side by side."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu.device.lower.values import function_of
from torchipu.ir.graph import Op, Tensor

SIDE_BY_SIDE = "side_by_side"
"""Attribute of an op that holds the number of the region whose ops of the same leg run together."""
RESERVED_TILES = "reserved_tiles"
"""Attribute with the tiles that such an op has at least."""


def units_of(ops: Sequence[Op]) -> list[tuple[Op, ...]]:
    """Return the ops in an order in which those that run together stand together, each group a unit.

    Ops that depend on one of a group come after all of it. Where one of the group does, it runs by itself as it would
    without the user's word.
    """
    units: list[tuple[Op, ...]] = [(op,) for op in ops]
    groups: dict[object, list[Op]] = {}
    for op in ops:
        region = op.attrs.get(SIDE_BY_SIDE)
        if region is not None:
            groups.setdefault((region, function_of(op), "recomputed_from" in op.attrs), []).append(op)
    for members in groups.values():
        if len(members) > 1:
            units = _joined(units, members)
    return units


def _joined(units: list[tuple[Op, ...]], members: Sequence[Op]) -> list[tuple[Op, ...]]:
    """Move the members of a group to where the last one stands, and what depends on them behind it."""
    chosen = {id(op) for op in members}
    places = [place for place, unit in enumerate(units) if len(unit) == 1 and id(unit[0]) in chosen]
    if len(places) != len(members):
        return units
    first, last = places[0], places[-1]
    made: set[Tensor] = set()
    before: list[tuple[Op, ...]] = []
    after: list[tuple[Op, ...]] = []
    for place, unit in enumerate(units[first : last + 1], start=first):
        depends = any(tensor in made for op in unit for tensor in op.inputs)
        if place in places:
            if depends:
                return units
            made.update(unit[0].outputs)
        elif depends:
            made.update(tensor for op in unit for tensor in op.outputs)
            after.append(unit)
        else:
            before.append(unit)
    return [*units[:first], *before, tuple(members), *after, *units[last + 1 :]]


def shares_of(tiles: int, work: Sequence[int], reserved: Sequence[int]) -> list[int] | None:
    """Return the tiles of each op: what it has at least, and of the rest a share in proportion to its work.

    Args:
        tiles: Of the machine.
        work: Cycles of each op on all tiles.
        reserved: Tiles that each has at least.

    Returns:
        One number an op, or None if there are too few tiles.
    """
    rest = tiles - sum(reserved)
    if rest < 0:
        return None
    total = max(1, sum(work))
    return [least + rest * cycles // total for least, cycles in zip(reserved, work, strict=True)]
