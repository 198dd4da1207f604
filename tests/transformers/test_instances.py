"""`IPUTrainer` in two processes; the judge is one process with as many replicas, which is judged by the Trainer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.distributed.forked import OnDemand, on_demand
from tests.transformers.instances import CALL, COMMON, SCENARIOS


class Values:
    """What the processes of a scenario returned, by its name."""

    def __init__(self, ran: OnDemand) -> None:
        self.ran = ran

    def __getitem__(self, name: str) -> list[Any]:
        found = self.ran[name]
        assert all(outcome.error is None for outcome in found), [outcome.error for outcome in found]
        return [outcome.value for outcome in found]


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Values]:
    with on_demand("tests.transformers.instances", SCENARIOS, tmp_path_factory.mktemp("instances")) as scenarios:
        yield Values(scenarios)


@pytest.mark.suffices(name=["together"])
@pytest.mark.parametrize("name", ["together", "async"])
def test_two_processes_train_and_evaluate_as_one_with_their_replicas_to_the_last_bit(
    ran: Values, name: str,
) -> None:
    """Shuffled, with dropout, a schedule, two updates a call, evaluation in between, and rows that fill no call."""
    (alone,) = ran["alone"]
    assert (alone["steps"], alone["rows of a call"]) == (6, CALL)
    assert len(alone["predictions"]) == 11
    for found in ran[name]:
        for what in ("steps", "rows of a call", "rates", "weights", "predictions", "labels", "right", "rows", "few"):
            assert found[what] == alone[what], what
        assert found["losses"] == pytest.approx(alone["losses"], abs=1e-6)
        assert found["evaluated"] == pytest.approx(alone["evaluated"], abs=1e-6)
    assert ran[name][0]["losses"] == ran[name][1]["losses"]


def test_checkpoint_is_that_of_one_process_but_for_the_random_numbers_of_each(ran: Values) -> None:
    (alone,), together = ran["alone"], ran["together"]
    assert "ipu_random_state.json" in alone["saved"]
    numbers = {"rng_state_0.pth", "rng_state_1.pth"}
    assert {*alone["saved"]} - {"rng_state.pth"} == {*together[0]["saved"]} - numbers


@pytest.mark.thorough  # checkpoints of one process are gone on from in tests/transformers/test_trainer.py
def test_two_processes_go_on_in_the_middle_of_an_epoch(ran: Values) -> None:
    """The judge is never interrupted; rows that fill no call are not in this one, so that epochs have other rows."""
    first, second = ran["resumed"]
    assert first == second
    assert {"steps", "losses", "rates", "weights"} <= first.keys()
    for found in ran["together"]:
        assert {what: found[what] for what in first} == first
    assert first["steps"] == 6


@pytest.mark.suffices(name=["rows"])
@pytest.mark.parametrize("name", ["rows", "grouped", "streams"])
def test_each_row_is_read_once_an_epoch_by_one_of_the_processes(ran: Values, name: str) -> None:
    num_rows = 2 * CALL + 7
    epochs = []
    for one, other in zip(*(found["read"] for found in ran[name]), strict=True):
        assert len(one) == len(other) == CALL
        assert len({*one, *other}) == 2 * CALL
        epochs.append((one, other))
    if name != "streams":
        assert epochs[0] != epochs[1]
    evaluated = [found["evaluated"] for found in ran[name]]
    assert sorted(evaluated[0] + evaluated[1]) == list(range(num_rows))
    # Calls of 2 x 2 rows in each process; in the last one nothing is left for the second, which runs a filler.
    sizes = [found["sizes"] for found in ran[name]]
    assert [size for size, _ in sizes[0]] == [4] * 6 + [4]
    assert [size for size, _ in sizes[1]] == [4] * 6 + [3]
    assert [counts for _, counts in sizes[0]] == [counts for _, counts in sizes[1]] == [[4, 4]] * 6 + [[4, 3]]


def test_process_is_given_what_its_replicas_get_of_one_process(ran: Values) -> None:
    micro_batch = COMMON["per_device_train_batch_size"]
    for epoch, whole in enumerate(ran["rows_alone"][0]["read"]):
        for rank in range(2):
            own = [row for place, row in enumerate(whole) if place // micro_batch % 2 == rank]
            assert ran["rows"][rank]["read"][epoch] == own


def test_what_two_processes_generate_is_gathered(ran: Values) -> None:
    (alone,) = ran["generated_alone"]
    assert len(alone["tokens"]) == 7
    for found in ran["generated"]:
        assert found["tokens"] == alone["tokens"]
        assert found["loss"] == pytest.approx(alone["loss"], abs=1e-6)


def test_contradictions_of_processes_are_refused(ran: Values) -> None:
    for found in ran["refusals"]:
        assert f"processes have data sets of {CALL}, {CALL + 1} rows, by rank" in found["lengths"]
        assert "LengthGroupedSampler may have another order in each process" in found["async"]
        assert f"one call takes {CALL} rows and the dataset has {CALL - 1}" in found["few"]
        assert "replication_factor=3, and poprun was told 8 replicas, 4 of them in this process" in found["replicas"]
        assert found["factors"] == [4, 4, 4]


def test_loss_of_a_process_in_evaluation_is_told_to_the_others(ran: Values) -> None:
    assert ran["lost"][1] == "ValueError: of this test"
    assert ran["lost"][0].startswith("PeerError: ")
    assert "rank 0 waits for it" in ran["lost"][0]


@pytest.mark.thorough  # groups that programs form are those of tests/distributed/test_group.py
def test_group_of_the_program_is_taken_where_no_launcher_tells(ran: Values) -> None:
    for found in ran["without_launcher"]:
        assert (found["world"], found["steps"], found["rows of a call"]) == (2, 1, CALL)
    assert ran["without_launcher"][0] == ran["without_launcher"][1]
