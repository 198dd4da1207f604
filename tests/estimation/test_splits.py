"""``torchipu.best_split``: replicas against stages on one system."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import torchipu
from tests.estimation.small import Tower, tokens
from torchipu import Options, OptionsError
from torchipu.capture import aot
from torchipu.compiler import compile_graph
from torchipu.estimation.splits import MOST_TRIALS, ipus_to_try
from torchipu.estimation.workload import workload_of

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
    assert {(row.replicas, row.ipus, row.left_over) for row in found.rows} == {(4, 1, 0), (2, 2, 0), (1, 4, 0)}
    rates = [row.samples_per_second for row in found.rows]
    assert rates == sorted(rates, reverse=True)
    best = found.best
    assert best.proposal.options.replicas == best.replicas
    assert "best split first, modelled" in str(found)


def test_a_table_says_why_each_split_lost_and_how_far_to_trust_it():
    given = Options(target="bow-2000,num_tiles=4", gradient_accumulation=8)
    found = torchipu.best_split(model(), (tokens(), tokens()), given, num_ipus=3)
    assert {(row.replicas, row.ipus) for row in found.rows} == {(3, 1), (1, 3)}
    best, other = found.rows
    assert best.trust.rate is not None
    ratio = best.samples_per_second / other.samples_per_second - 1
    lines = str(found).splitlines()
    assert "left over" in lines[1] or "left over" in lines[2]
    assert any(line.endswith("best") and f"{best.trust.rate.p90:.0%}" in line for line in lines)
    assert any(line.endswith(f"slower by {ratio:.1%}") for line in lines)


def test_what_does_not_fit_is_a_row_with_the_reason():
    options = Options(target="bow-2000,tile_memory_bytes=8192,code_region_bytes=4096,stack_bytes=1024")
    found = torchipu.best_split(model(), (tokens(), tokens()), options, num_ipus=1)
    assert found.best is None
    (row,) = found.rows
    assert "no split over 1 IPU fits" in row.refusal
    assert f"too full by {row.lacking_bytes:,} B a tile" in str(found)
    assert row.lacking_bytes > 0


def test_numbers_of_ipus_that_make_as_many_replicas_are_tried_once():
    assert ipus_to_try(16, 100) == [1, 2, 3, 4, 5, 8, 16]
    assert ipus_to_try(16, 6) == [1, 2, 3, 4, 5, 6]
    assert ipus_to_try(12, 100) == [1, 2, 3, 4, 6, 12]
    assert len(ipus_to_try(64, 100)) == 15
    assert len(ipus_to_try(256, 1000)) == MOST_TRIALS
    assert {1, 2, 4, 8, 16, 32, 64, 128, 256} <= set(ipus_to_try(256, 1000))


def test_ipus_that_no_replica_has_are_named():
    found = torchipu.best_split(model(), (tokens(), tokens()), Options(target="bow-pod16,num_tiles=16"), num_ipus=5)
    assert {(row.replicas, row.ipus, row.left_over) for row in found.rows} == {(5, 1, 0), (2, 2, 1), (1, 5, 0)}


def test_processes_have_whole_replicas_each():
    given = Options(target="bow-2000,num_tiles=16", gradient_accumulation=8)
    found = torchipu.best_split(model(), (tokens(), tokens()), given, instances=2)
    assert {(row.replicas, row.ipus) for row in found.rows} == {(4, 1), (2, 2)}
    assert {row.proposal.options.replicas * 2 for row in found.rows} == {4, 2}
    assert all(row.proposal.options.process_group is None for row in found.rows)


def test_sums_over_processes_cost_what_those_of_one_process_do():
    # What best_split counts with: replicas of one process stand for those of several.
    given = Options(target="bow-pod64", replicas=32, process_group="alone", verify=False)
    workload = workload_of(model(), (tokens(), tokens()), given, None, True)
    graph, target = workload.graph(given), torchipu.lookup_target("bow-pod64")
    one = compile_graph(graph, given, target)
    several = compile_graph(graph, replace(given, replicas=4), target, instances=8)
    assert one.cost.cycles == several.cost.cycles
    alone = compile_graph(workload.graph(replace(given, replicas=1)), replace(given, replicas=1), target)
    assert alone.cost.cycles < one.cost.cycles


def test_what_every_split_is_refused_for_is_told():
    with pytest.raises(OptionsError, match="blocks places the model already"):
        torchipu.best_split(model(), (tokens(), tokens()), Options(target="bow-2000", blocks=("layers.0",)))


def test_there_are_only_so_many_ipus():
    with pytest.raises(OptionsError, match="num_ipus must be a whole number from 1 to the 4 of bow-2000, got 8"):
        torchipu.best_split(model(), (tokens(), tokens()), Options(target="bow-2000"), num_ipus=8)


@pytest.mark.parametrize("instances", [0, 5, True, 1.0])
def test_processes_need_an_ipu_each(instances):
    with pytest.raises(OptionsError, match="instances must be a whole number from 1 to the 4 IPUs that may be used"):
        torchipu.best_split(model(), (tokens(), tokens()), Options(target="bow-2000"), instances=instances)
