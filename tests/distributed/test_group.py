"""Forming a group: where processes meet, and what they say when they do not."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from torch.distributed import Store

from tests.distributed.forked import Outcome, outcomes
from tests.waiting import SOON
from torchipu.distributed.file_store import FileMeeting
from torchipu.distributed.group import form
from torchipu.distributed.launcher import launched
from torchipu.errors import RendezvousError


@pytest.fixture(scope="module")
def met() -> dict[str, list[Outcome]]:
    return outcomes("tests.distributed.meetings")


def values(found: list[Outcome]) -> list[object]:
    assert all(outcome.error is None for outcome in found), [outcome.error for outcome in found]
    return [outcome.value for outcome in found]


def errors(found: list[Outcome], kind: str = "RendezvousError") -> list[str]:
    assert all(outcome.error is not None and outcome.error[0] == kind for outcome in found), found
    return [outcome.error[1] for outcome in found if outcome.error is not None]


def test_processes_meet_at_a_port_at_a_file_and_where_mpirun_started_them(met: dict[str, list[Outcome]]) -> None:
    assert values(met["port"]) == values(met["mpirun"]) == [[3.0], [3.0]]
    assert [value[:2] for value in values(met["file"])] == [[[3.0], [3.0]]] * 2


def test_the_files_are_gone_at_the_end(met: dict[str, list[Outcome]]) -> None:
    assert [value[2] for value in values(met["file"])] == [[], []]


def meetings_at(path: Path) -> tuple[list[FileMeeting], list[Store | None]]:
    meetings = [FileMeeting(path, rank, 2) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        return meetings, list(pool.map(lambda meeting: meeting.meet(60), meetings))


def test_a_store_that_is_made_anew_while_process_0_ends_is_removed(tmp_path: Path) -> None:
    (first, second), stores = meetings_at(tmp_path / "meeting")
    _, named = sorted(tmp_path.iterdir())
    first.end()
    assert not list(tmp_path.iterdir())
    named.touch()  # as torch's store does, if it was there when it looked
    second.end()
    assert not list(tmp_path.iterdir())
    assert None not in stores


def test_the_store_of_a_run_that_is_under_way_stays(tmp_path: Path) -> None:
    (_, second), stores = meetings_at(tmp_path / "meeting")
    second.end()
    assert len(list(tmp_path.iterdir())) == len(stores)


def test_a_file_that_is_somebody_elses_stays_and_no_store_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "meeting"
    path.write_text("buy milk")
    with pytest.raises(RendezvousError, match="holds something else than the name of a store"):
        form(0, 2, store=path, timeout=1)
    assert [(found.name, found.read_text()) for found in tmp_path.iterdir()] == [("meeting", "buy milk")]


def test_a_file_that_a_crashed_run_has_left_behind_is_not_taken_for_that_of_this_one(
    met: dict[str, list[Outcome]],
) -> None:
    assert values(met["crash"]) == [[3.0], [3.0]]


@pytest.mark.parametrize(("name", "place"), [
    ("absent_at_port", r"127\.0\.0\.1:\d+"), ("absent_at_file", "the file store meeting"),
])
def test_who_waits_in_vain_is_told_where_how_long_and_for_whom(
    met: dict[str, list[Outcome]], name: str, place: str,
) -> None:
    for rank, text in zip((0, 2), errors(met[name]), strict=True):
        assert re.match(f"2 of 3 processes came to {place} within 10 s, seen from process {rank}\n", text)
        assert re.search(r"^  present 0, 2\n  absent  1\n", text, re.MULTILINE)
        assert "TORCHIPU_INIT_TIMEOUT gives them more time" in text
    assert max(outcome.seconds for outcome in met[name]) < SOON


def test_without_process_0_nobody_answers(met: dict[str, list[Outcome]]) -> None:
    text, = errors(met["first_absent"])
    assert re.match(r"process 1 of 3 found nobody at 127\.0\.0\.1:\d+ within 10 s \(.*refused\)", text)
    assert "absent  0, which listens at 127.0.0.1:" in text


@pytest.mark.parametrize(("name", "said"), [
    ("counts", "process 0 says 2, process 1 says 3"), ("counts_at_file", "process 0 says 3, process 1 says 2"),
])
def test_processes_that_expect_different_numbers_all_hear_what_each_says(
    met: dict[str, list[Outcome]], name: str, said: str,
) -> None:
    assert all(text.endswith(f"disagree on how many they are: {said}") for text in errors(met[name]))


def test_two_processes_of_one_number_are_refused(met: dict[str, list[Outcome]]) -> None:
    texts = errors(met["twice"])
    assert sum("say that they are number 1 of 3" in text for text in texts) == 1


def test_addresses_and_files_that_cannot_be_used_are_named(met: dict[str, list[Outcome]]) -> None:
    taken, = errors(met["taken_port"])
    assert re.match(r"process 0 of 2 cannot use 127\.0\.0\.1:\d+: .*address already in use", taken)
    assert "choose a free one for MASTER_PORT" in taken
    nowhere, = errors(met["no_host"])
    assert nowhere.startswith("the address nowhere.invalid:29500 that process 0 of 3 is to meet the others at has no")
    foreign, = errors(met["foreign_file"])
    assert foreign.startswith("meeting holds something else than the name of a store of torchipu")
    no_place, = errors(met["nowhere"])
    assert no_place.startswith("process 0 of 3 does not know where to meet the others: MASTER_ADDR is not set")
    seconds, = errors(met["seconds"])
    assert seconds == "TORCHIPU_INIT_TIMEOUT must be a positive number of seconds, got 'soon'"


def test_a_default_group_with_other_numbers_is_refused(met: dict[str, list[Outcome]]) -> None:
    first = errors(met["default_group"])[0]
    assert "default group has this process as rank 0 of 2, and the options say process 1 of 2" in first


def test_a_training_executor_gives_the_core_the_group_and_inference_runs_alone(met: dict[str, list[Outcome]]) -> None:
    assert values(met["same_seed"]) == [[True, "alone"]] * 2


def test_processes_that_shuffle_with_different_seeds_all_hear_those_of_each(met: dict[str, list[Outcome]]) -> None:
    for text in errors(met["other_seed"], "Error"):
        assert "all processes must use the same seed" in text
        assert "poptorch.Options.randomSeed is 3 in process 0, 4 in process 1" in text


def test_processes_that_share_out_other_data_all_hear_its_lengths(met: dict[str, list[Outcome]]) -> None:
    for text in errors(met["other_length"], "Error"):
        assert "its length is 16 in process 0, 24 in process 1" in text


def test_a_seed_that_one_process_lacks_is_a_difference(met: dict[str, list[Outcome]]) -> None:
    for text in errors(met["seed_on_one"], "Error"):
        assert "processes that train together differ in options: rank 0 has " in text
        assert "seed=3" in text


def test_processes_without_a_seed_draw_one_together(met: dict[str, list[Outcome]]) -> None:
    first, second = values(met["no_seed"])
    assert first == second


def test_poptorch_says_what_a_program_for_several_processes_lacks(met: dict[str, list[Outcome]]) -> None:
    text, = errors(met["poptorch_nowhere"], "Error")
    assert "process 0 of 2 does not know where to meet the others" in text
    assert "Distributed.setFileStore" in text


@pytest.mark.parametrize(("environment", "expected"), [
    ({"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, ("torchrun", 3, 4, 1, 2)),
    ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, ("Open MPI", 1, 2, 0, None)),
    ({"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1"}, ("PMI", 1, 2, 1, None)),
    ({"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8", "SLURM_STEP_ID": "0", "SLURM_LOCALID": "1"},
     ("Slurm", 5, 8, 1, None)),
    ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),  # a batch script, not one of the tasks
    ({"WORLD_SIZE": "4"}, None),
])
def test_launchers_are_known_by_their_variables(environment: dict[str, str], expected: tuple[object, ...]) -> None:
    place = launched(environment)
    found = place and (place.launcher, place.rank, place.size, place.local_rank, place.local_size)
    assert found == expected


@pytest.mark.parametrize(("environment", "text"), [
    ({"RANK": "x", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}, "the variable RANK must be a whole number from 0, got 'x'"),
    ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "PMI_RANK=2 is no process of PMI_SIZE=2: they are numbered from 0 to 1"),
])
def test_variables_that_cannot_be_are_refused(environment: dict[str, str], text: str) -> None:
    with pytest.raises(RendezvousError, match=re.escape(text)):
        launched(environment)
