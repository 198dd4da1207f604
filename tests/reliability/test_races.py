"""A few programs on the pool under ThreadSanitizer, and one that races."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.races import build, races_of


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("races"))


@pytest.mark.whole  # no line of Python tells that it reaches what nothing else does
@pytest.mark.parametrize("threads", [2, 5])
def test_the_pool_has_no_races_and_gives_right_values(program: Path, threads: int) -> None:
    races, wrong, away = races_of(program, 40, threads)
    assert (races, wrong) == (0, 0)
    assert away > 0, "no worker has taken part"


def test_a_step_that_writes_where_others_do_is_reported(program: Path) -> None:
    races, _, _ = races_of(program, 40, 3, 0, "race")
    assert races > 0
