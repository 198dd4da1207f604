"""Where a variable lives: runs of its flat elements on tiles, never one object per tile."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TileMapping:
    """Elements of a flat variable by tile.

    Attributes:
        runs: ``(tile, begin, end)`` with ``begin < end``, in order of ``begin``; together they cover the
            variable once.
    """

    runs: tuple[tuple[int, int, int], ...]

    @property
    def num_elements(self) -> int:
        """Number of elements mapped."""
        return sum(end - begin for _, begin, end in self.runs)

    @property
    def tiles(self) -> tuple[int, ...]:
        """Tiles in use, ascending."""
        return tuple(sorted({tile for tile, _, _ in self.runs}))

    def max_elements_per_tile(self) -> int:
        """Return the number of elements on the fullest tile; 0 for an empty mapping."""
        if len({tile for tile, _, _ in self.runs}) == len(self.runs):
            return max((end - begin for _, begin, end in self.runs), default=0)
        by_tile: dict[int, int] = {}
        for tile, begin, end in self.runs:
            by_tile[tile] = by_tile.get(tile, 0) + end - begin
        return max(by_tile.values(), default=0)


def linear(
    num_elements: int, num_tiles: int, grain: int = 1, min_per_tile: int = 1, first_tile: int = 0
) -> TileMapping:
    """Spread elements over tiles in ascending order, as evenly as whole grains allow.

    Args:
        num_elements: Elements of the flat variable.
        num_tiles: Tiles that may be used, from ``first_tile``.
        grain: Elements that stay together.
        min_per_tile: Least number of elements worth a tile of its own.
        first_tile: Tile of the first element.

    Returns:
        A mapping with one run for each tile in use.
    """
    if num_elements == 0:
        return TileMapping(())
    grains = -(-num_elements // grain)
    least = max(1, -(-min_per_tile // grain))
    tiles = max(1, min(num_tiles, grains // least))
    share, extra = divmod(grains, tiles)
    large, small = (share + 1) * grain, share * grain
    turn = extra * large
    begins = [*range(0, turn, large), *range(turn, turn + (tiles - extra) * small, small)]
    return TileMapping(tuple(zip(
        range(first_tile, first_tile + tiles), begins, [*begins[1:], num_elements], strict=True,
    )))
