"""Processes that differ are told so, all of them; those whose peers leave are told who has, and why."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.processes import Group, run_all
from tests.waiting import SOON

FIELDS = {
    "shape": ("inputs", "float32[8, 6]"), "type": ("inputs", "float16[4, 6]"),
    "accumulation": ("options", "gradient_accumulation=2"), "replicas": ("options", "replicas=2"),
    "seed": ("options", "seed=4"), "model": ("graph", "[7,6]"), "optimiser": ("optimiser", "Adam("),
    "learning rate": ("optimiser", "lr=0.2"), "frozen": ("graph", "line"),
    "dataset": ("length of the dataset", "99"), "version": ("version of torchipu", "0.1"),
    "one compiles anew": ("what is done", "compiling"), "later learning rate": ("optimiser", "lr=0.3"),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[list[dict[str, Any]]]:
    groups = [Group(f"tests.distributed.disagreements:{name}", 2) for name in ("differ", "leave", "freeze")]
    return run_all(groups, tmp_path_factory.mktemp("handshake"))


@pytest.fixture
def told(ran: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    return ran[0]


@pytest.mark.parametrize("case", FIELDS)
def test_a_difference_is_one_error_on_all_ranks_with_field_and_values(case: str, told: list[dict[str, Any]]) -> None:
    field, value = FIELDS[case]
    for rank, found in enumerate(told):
        assert found[case]["error"] == "PeerMismatchError", (rank, found[case])
        assert found[case]["field"] == field
        text = found[case]["text"]
        assert text.startswith(f"processes that train together differ in {field}: rank 0 has ")
        assert value in text.partition("rank 1")[2]
        assert f"give all processes the same {field}" in text
        assert found[case]["same"], "the weights are as before"
        assert found[case]["seconds"] < SOON


def test_what_all_refuse_leaves_them_in_step(told: list[dict[str, Any]]) -> None:
    for found in told:
        assert found["all refuse"]["error"] == "ConstraintError"
        assert found["nothing"]["error"] == ""
        assert not found["nothing"]["same"], "the weights were trained"


def test_a_rank_that_stops_halfway_is_named_with_its_reason(ran: list[list[dict[str, Any]]]) -> None:
    zero, one = ran[1]
    assert one["first"]["error"] == "ExecutionError"
    assert zero["first"]["error"] == "PeerError"
    assert "rank 1 has left the call that rank 0 waits in: ExecutionError: " in zero["first"]["text"]
    assert "an index is out of range" in zero["first"]["text"]
    assert zero["first"]["seconds"] < SOON
    for found in (zero, one):
        assert found["first"]["same"]
        assert found["second"]["error"] == "PeerError"
        assert "end all processes and start them again" in found["second"]["text"]
        assert found["second"]["same"]


def test_a_rank_that_is_silent_is_given_up_after_the_timeout_of_the_group(
    ran: list[list[dict[str, Any]]],
) -> None:
    zero, _ = ran[2]
    assert zero["error"] == "PeerError"
    assert "rank 1 has not answered in time, and rank 0 waits for it" in zero["text"]
    assert 2 < zero["seconds"] < SOON
    assert zero["same"]
