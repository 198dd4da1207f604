"""Messages between processes of one machine through shared memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests.distributed.forked import outcomes


@pytest.fixture(scope="module")
def ran() -> dict[str, list[Any]]:
    found = outcomes("tests.distributed.messages")
    for name, ranks in found.items():
        assert all(outcome.error is None for outcome in ranks), (name, ranks)
    return {name: [outcome.value for outcome in ranks] for name, ranks in found.items()}


def test_messages_of_all_sizes_come_whole_whatever_the_order_in_which_they_are_expected(ran: dict[str, Any]) -> None:
    assert ran["many"] == [[], []]


def test_messages_may_be_expected_before_they_come_and_by_several_threads(ran: dict[str, Any]) -> None:
    assert ran["expected"] == [True, True]


def test_processes_that_fill_all_rings_do_not_wait_for_each_other_for_ever(ran: dict[str, Any]) -> None:
    assert ran["around"] == [True, True, True]


def test_process_that_is_killed_is_missed_at_once_and_what_it_has_sent_counts(ran: dict[str, Any]) -> None:
    room, (waited, seconds), (sent, _) = ran["lost"][0]
    assert room == [1.0, 1.0]
    assert waited == sent == "Connection closed by peer: the process has ended"
    assert seconds < 5


def test_process_that_is_silent_is_given_up_in_time_and_who_waits_looks_around(ran: dict[str, Any]) -> None:
    (said, seconds), looks = ran["silent"][0]
    assert said.startswith("Timed out waiting 500ms")
    assert 0.5 <= seconds < 5
    assert looks >= 2


def test_nothing_is_left_open_or_by_name(ran: dict[str, Any]) -> None:
    for names, during, after in ran["left"]:
        assert names == []
        assert during > 0
        assert after == 0


def test_process_may_switch_it_off_for_itself(ran: dict[str, Any]) -> None:
    assert ran["off"] == [[[1], False], [[0], False], [[], False]]


def test_message_of_another_size_is_an_error(ran: dict[str, Any]) -> None:
    assert ran["sizes"] == ["a message of 16 bytes came where one of 12 was expected"] * 2
