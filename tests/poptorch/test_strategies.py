"""Stages, phases and strategies: what they are made of, how they number blocks, what they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from torchipu import poptorch
from torchipu.poptorch.options.strategies import num_forward_stages

STAGED = [poptorch.PipelinedExecution, poptorch.ShardedExecution]
PHASED = [poptorch.SerialPhasedExecution, poptorch.ParallelPhasedExecution]


def test_stage_keeps_its_blocks_and_its_ipu() -> None:
    stage = poptorch.Stage("a", "b")
    assert stage.blocks == ("a", "b")
    assert stage.ipu(3) is stage
    assert stage._ipu_id == 3


@pytest.mark.parametrize(("call", "text"), [
    (lambda: poptorch.Stage(1), "Block IDs are supposed to be strings"),
    (lambda: poptorch.Stage("a").ipu("1"), "ipu takes an int"),
    (lambda: poptorch.PipelinedExecution(["a", 2]), "Block IDs are supposed to be strings"),
    (lambda: poptorch.PipelinedExecution(2), "A stage is a poptorch.Stage"),
    (lambda: poptorch.PipelinedExecution("a", ["b", "a"]), "a associated with more than one stage"),
    (lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement, "a"), "must be the only argument"),
    (lambda: poptorch.PipelinedExecution("a").stage("b"), "Unknown block b"),
    (lambda: poptorch.SerialPhasedExecution(), "there is no AutoStage for phases"),
    (lambda: poptorch.ParallelPhasedExecution(poptorch.AutoStage.SameAsIpu), "there is no AutoStage for phases"),
    (lambda: poptorch.Phase(), "at least one"),
    (lambda: poptorch.Phase("a", poptorch.Stage("b")), "stages or of block IDs"),
    (lambda: poptorch.Phase("a").ipus(0, 1), "has 1 stages but got 2 IPUs"),
    (lambda: poptorch.SerialPhasedExecution("a").phase(1), "no phase 1"),
    (lambda: poptorch.SerialPhasedExecution("a").setTensorsLiveness(1), "takes a poptorch.Liveness"),
    (lambda: poptorch.SerialPhasedExecution("a", "a"), "a associated with more than one stage"),
])
def test_refused(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        call()


@pytest.mark.parametrize("strategy", STAGED)
def test_listed_stages_are_numbered_by_position(strategy: Callable[..., Any]) -> None:
    made = strategy(poptorch.Stage("a").ipu(1), "b", ["c", "d"])
    assert [made.stage(block)._stage_id for block in "abcd"] == [0, 1, 2, 2]
    assert made.placement("a", 7)._ipu_id == 1
    with pytest.raises(AssertionError, match=r"Unknown Block 'e' list of expected Blocks: \['a', 'b', 'c', 'd'\]"):
        made.placement("e", 0)


@pytest.mark.parametrize("strategy", STAGED)
def test_same_as_ipu_is_the_default_and_needs_an_ipu(strategy: Callable[..., Any]) -> None:
    made = strategy()
    assert made == strategy(poptorch.AutoStage.SameAsIpu)
    assert [made.placement(block, ipu)._stage_id for block, ipu in (("a", 2), ("b", 0))] == [2, 0]
    with pytest.raises(AssertionError, match="no IPU was specified for block c"):
        made.placement("c", None)


@pytest.mark.parametrize("strategy", STAGED)
def test_auto_increment_begins_at_one_and_keeps_the_stage_of_a_known_block(strategy: Callable[..., Any]) -> None:
    made = strategy(poptorch.AutoStage.AutoIncrement)
    for _ in range(2):
        made.onStart()
        assert [made.placement(block, None)._stage_id for block in "abac"] == [1, 2, 1, 3]


def test_codes_of_the_strategies() -> None:
    codes = [kind("a").backendOptions()["execution_mode"] for kind in (*STAGED, *PHASED)]
    assert codes == [0, 1, 2, 2]


@pytest.mark.parametrize("strategy", PHASED)
def test_phases_are_phases_lists_of_stages_or_lists_of_blocks(strategy: Callable[..., Any]) -> None:
    made = strategy([poptorch.Stage("a"), poptorch.Stage("b")], poptorch.Phase("c", "d"), ["e", "f"], "g")
    made.phase(0).ipus(2, 3)
    assert [(made.stage(block)._phase_id, made.stage(block)._stage_id) for block in "abcdefg"] == [
        (0, 0), (0, 1), (1, 0), (1, 0), (2, 0), (2, 0), (3, 0),
    ]
    assert [made.phase(0).stage(index)._ipu_id for index in (0, 1)] == [2, 3]
    assert made.placement("f", None).blocks == ("e", "f")


def test_backward_phases_count_back() -> None:
    strategy = poptorch.SerialPhasedExecution("a", "b", "c")
    assert [strategy.backward_phase(phase) for phase in range(3)] == [4, 3, 2]
    strategy.useSeparateBackwardPhase()
    assert [strategy.backward_phase(phase) for phase in range(3)] == [6, 5, 4]


@pytest.mark.parametrize(("liveness", "factor"), [
    (poptorch.Liveness.AlwaysLive, 1), (poptorch.Liveness.OffChipAfterFwd, 1),
    (poptorch.Liveness.OffChipAfterFwdNoOverlap, 2), (poptorch.Liveness.OffChipAfterEachPhase, 4),
])
def test_liveness_spreads_the_phases(liveness: poptorch.Liveness, factor: int) -> None:
    strategy = poptorch.SerialPhasedExecution("a", "b").setTensorsLiveness(liveness)
    assert [strategy.forward_phase(1), strategy.backward_phase(0)] == [factor, 2 * factor]
    assert strategy.backendOptions()["tensors_liveness"] == liveness


def test_strategies_compare_and_print_by_what_they_are_made_of() -> None:
    first = poptorch.PipelinedExecution(poptorch.Stage("a").ipu(1), ["b", "c"])
    assert repr(first) == "PipelinedExecution(Stage('a').ipu(1), Stage('b', 'c'))"
    assert first == copy.deepcopy(first) != poptorch.ShardedExecution(poptorch.Stage("a").ipu(1), ["b", "c"])


@pytest.mark.parametrize(("ipus", "stages"), [
    ([], 1), ([0], 1), ([1], 2), ([0, 0, 1, 1], 2), ([0, 1, 0], 3), ([1, 0], 3),
])
def test_a_stage_begins_where_the_ipu_changes(ipus: list[int], stages: int) -> None:
    assert num_forward_stages(ipus) == stages
