"""Two pipelines over two processes each; the judge is one process that runs the whole with the replicas of both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.distributed.forked import OnDemand, on_demand
from tests.parts.grid import CASES, PIPELINES, SCENARIOS, STAGES


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnDemand]:
    with on_demand("tests.parts.grid", SCENARIOS, tmp_path_factory.mktemp("grid")) as scenarios:
        yield scenarios


def of_pipeline(case: Any, losses: list[Any], pipeline: int) -> list[Any]:
    """Return what the replicas of one pipeline gave, of what all replicas did."""
    replicas = case.options.get("replicas", 1)
    found = []
    for call in losses:
        rows = [call[begin : begin + replicas] for begin in range(pipeline * replicas, len(call), PIPELINES * replicas)]
        found += [loss for row in rows for loss in row]
    return found


@pytest.mark.suffices(name=["half", "replicas", "tied"])
@pytest.mark.parametrize("name", CASES)
def test_grid_of_processes_trains_as_one_process_to_the_last_bit(ran: OnDemand, name: str) -> None:
    """The second pipeline begins with other weights, which do not count."""
    (alone,) = ran[f"{name} alone"]
    expected = alone.value
    for rank, outcome in enumerate(ran[name]):
        assert outcome.error is None
        found = outcome.value
        assert found["weights"] == expected["weights"]
        assert found["scale"] == expected["scale"]
        losses = [loss for call in found["losses"] for loss in (call if isinstance(call, list) else [call])]
        assert losses == of_pipeline(CASES[name], expected["losses"], rank // STAGES)


def test_what_differs_between_pipelines_is_one_error_on_all(ran: OnDemand) -> None:
    for outcome in ran["differing"]:
        assert outcome.value["options"].startswith("PeerMismatchError: processes that train together differ in options")
        assert "loss_scaling=2.0" in outcome.value["options"]


def test_failure_of_one_process_ends_the_call_on_all(ran: OnDemand) -> None:
    first, second, third, fourth = (outcome.value["target"] for outcome in ran["differing"])
    assert second.startswith("ExecutionError: aten.nll_loss_forward.default: an index is out of range")
    assert first.startswith("PeerError: process 1 has failed: ExecutionError: aten.nll_loss_forward.default")
    # Of the other pipeline each hears it of the process with its own part, or of the other one.
    for told in (third, fourth):
        assert told.startswith("PeerError: rank 0 has left the call that rank 1 waits in: ")
        assert "an index is out of range" in told


def test_process_that_ends_is_missed_by_all(ran: OnDemand) -> None:
    *others, gone = ran["lost"]
    assert gone.error == ["ValueError", "of this test"]
    for outcome in others:
        said, seconds = outcome.value
        assert said.startswith("PeerError: ")
        assert "1 is gone" in said or "rank 1 has gone" in said
        assert seconds < 50  # and not for as long as the group would wait; others may still compile meanwhile
