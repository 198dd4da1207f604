"""``torchipu.best_split``: replicas against stages on one system."""

from __future__ import annotations

import pytest
import torch

import torchipu
from tests.estimation.small import Tower, tokens
from torchipu import Options, OptionsError
from torchipu.capture import aot

SMALL = "bow-2000,num_tiles=16"


def model():
    with torch.device("meta"):
        return Tower()


def test_ways_to_use_a_system_come_fastest_first_from_one_capture(monkeypatch):
    calls = []
    export = aot.export
    monkeypatch.setattr(aot, "export", lambda *args, **kwargs: calls.append(1) or export(*args, **kwargs))
    found = torchipu.best_split(model(), (tokens(), tokens()), Options(target=SMALL, gradient_accumulation=8))
    assert len(calls) == 1
    assert {(row.replicas, row.ipus) for row in found.rows} == {(4, 1), (2, 2), (1, 4)}
    rates = [row.samples_per_second for row in found.rows]
    assert rates == sorted(rates, reverse=True)
    best = found.best
    assert best.proposal.options.replicas == best.replicas
    assert "best split first, modelled" in str(found)


def test_what_does_not_fit_is_a_row_with_the_reason():
    options = Options(target="bow-2000,tile_memory_bytes=8192,code_region_bytes=4096,stack_bytes=1024")
    found = torchipu.best_split(model(), (tokens(), tokens()), options, num_ipus=1)
    assert found.best is None
    assert "no split over 1 IPU fits" in found.rows[0].refusal


def test_there_are_only_so_many_ipus():
    with pytest.raises(OptionsError, match="num_ipus must be a whole number from 1 to the 4 of bow-2000, got 8"):
        torchipu.best_split(model(), (tokens(), tokens()), Options(target="bow-2000"), num_ipus=8)
