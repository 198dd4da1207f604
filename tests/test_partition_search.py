"""The moves of the search for stages, and its relaxed choices, against neighbours counted one by one."""

from __future__ import annotations

from itertools import product

import pytest

from torchipu.ir.types import Leg
from torchipu.partition.model import ALL, NONE, Model
from torchipu.partition.search import HOPE, Cuts, made, moved, relaxed
from torchipu.partition.units import Edge, Unit
from torchipu.target import lookup_target

LENGTHS = (9, 1, 1, 1, 1, 1, 1, 1, 1, 1, 12, 9)
KB = 1024


def model_of(activation_kb: int = 1, **more: int) -> Model:
    """Units that take so many thousand cycles forward, twice that backward, and hand little on."""
    tiles = lookup_target("mk2").num_tiles
    units = [
        Unit(f"u{number}", [1000 * each], [2000 * each], [1000 * each], entering_bytes=1000,
             activation_bytes=activation_kb * KB * tiles, **more)
        for number, each in enumerate(LENGTHS)
    ]
    edges = [Edge(number, Leg.FORWARD, frozenset({number + 1}), 1000) for number in range(len(units) - 1)]
    return Model(units, edges, lookup_target("mk2"), True, 64, "pipelined")


@pytest.mark.parametrize("begins", [(0, 1, 2), (0, 10, 11), (0, 3, 4)])
def test_moves_go_on_until_no_cut_is_better_at_another_place(begins: tuple[int, ...]) -> None:
    model, places = model_of(), tuple(range(len(LENGTHS)))
    begun = made(model, begins, (0, 1, 2), (NONE,) * 3, False)
    found = moved(model, begun, 3, places, NONE, must_fit=True)
    assert found.begins[0] == 0
    assert found.cycles == model.cycles(found.begins, found.ipus, found.kinds, False) < begun.cycles
    for stage, far in product(range(1, len(found.begins)), (-2, -1, 1, 2)):
        other = [*found.begins]
        other[stage] += far
        if sorted(set(other)) == other and other[-1] < len(LENGTHS):
            assert model.cycles(other, found.ipus, found.kinds, False) >= found.cycles


def choices(model: Model) -> tuple[Cuts, dict[int, tuple[bool, bool]]]:
    """Return three stages that recompute all, and whether leaving one of that out is faster, and whether it fits."""
    begins, ipus, kinds = (0, 4, 8), (0, 1, 2), (ALL,) * 3
    cuts, found = made(model, begins, ipus, kinds, False), {}
    for stage in range(3):
        other = tuple(NONE if number == stage else ALL for number in range(3))
        is_faster = model.cycles(begins, ipus, other, False) < cuts.cycles
        found[stage] = is_faster, model.fits(begins, ipus, other, False, margin=HOPE)
    return cuts, found


@pytest.mark.parametrize("activation_kb", [1, 60, 400])
def test_less_is_recomputed_where_that_fits_and_is_faster(activation_kb: int) -> None:
    model = model_of(activation_kb)
    cuts, expected = choices(model)
    found = [[kind == NONE for kind in one.kinds].index(True) for one in relaxed(model, cuts)]
    assert found == [stage for stage, (is_faster, fits) in expected.items() if is_faster and fits]
