"""Vertices as text: what each reads and writes, run by run, and what is moved for them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from torchipu.device.tiles.fields import Field, Move
from torchipu.device.tiles.prepared import PreparedSet
from torchipu.ir.program import VertexGroup
from torchipu.ir.region import Numbers, Region

SHOWN = 4
"""Vertices and runs that are written out; of the others, how many there are."""


def format_set(group: VertexGroup, made: PreparedSet, tile_bytes: int, shown: int = SHOWN) -> str:
    """Return a compute set as text.

    Args:
        group: The set.
        made: One run of it.
        tile_bytes: Memory of a tile.
        shown: Vertices, and runs of each, that are written out.
    """
    lines = [f"{group.codelet}  {len(made.tiles)} vertices on {len(np.unique(made.tiles))} tiles"]
    for field in made.reads:
        lines += [f"  read   {field.region.name}", *_field_lines(field, made.tiles, tile_bytes, shown)]
    for alike in made.alike:
        ops = ", ".join(op.target for op in alike.code.ops)
        sizes = ", ".join(f"{tensor.dtype.text}{list(tensor.shape)}" for tensor in alike.code.inputs)
        lines.append(f"  code   {ops} of ({sizes})  # {len(alike.vertices)} vertices")
    for field in made.writes:
        lines += [f"  write  {field.region.name}", *_field_lines(field, made.tiles, tile_bytes, shown)]
    return "\n".join(lines)


def _field_lines(field: Field, tiles: Numbers, tile_bytes: int, shown: int) -> Iterator[str]:
    starts = field.region.first
    for vertex in range(min(shown, len(tiles))):
        at = int(field.base[vertex] % tile_bytes)
        runs = _runs(field.region, int(starts[vertex]), int(starts[vertex + 1]), shown)
        yield f"           tile {int(tiles[vertex])} at {at} B: {runs}"
    if len(tiles) > shown:
        yield f"           and {len(tiles) - shown} more"
    for move in field.moves:
        yield f"           {_move(move)}"


def _runs(region: Region, begin: int, end: int, shown: int) -> str:
    """Return runs as slices of the value, ``[begin:end:stride]``."""
    texts = []
    for run in range(begin, min(end, begin + shown)):
        first, count, stride = int(region.begin[run]), int(region.count[run]), int(region.stride[run])
        if first < 0:
            texts.append(f"{count} x padding")
        elif stride == 0:
            texts.append(f"{count} x [{first}]")
        else:
            last = first + (count - 1) * stride + (1 if stride > 0 else -1)
            texts.append(f"[{first}:{last}{'' if stride == 1 else f':{stride}'}]")
    if end - begin > shown:
        texts.append(f"and {end - begin - shown} more runs")
    return " ".join(texts) or "nothing"


def _move(move: Move) -> str:
    how = "exchange" if move.is_exchange else "copy on the tile"
    total = len(move.to_places) * move.target.element_bytes
    return f"{how} %{move.source.name} -> %{move.target.name}, {total} B"
