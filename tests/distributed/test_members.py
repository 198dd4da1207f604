"""How a process waits for others."""

from __future__ import annotations

import time

import pytest
import torch.distributed as dist

from torchipu.distributed.members import Members


class Slow:
    """A collective that takes some seconds of a clock that goes on by sleeping alone; counts how often it is asked."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.asked, self.now = seconds, 0, 0.0

    def is_completed(self) -> bool:
        self.asked += 1
        return self.now >= self.seconds

    def wait(self) -> None:
        pass

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(("seconds", "asked"), [(0.001, 25), (1.0, 700), (60.0, 7000)])
def test_who_waits_for_long_hardly_asks_and_still_goes_on_at_once(
    seconds: float, asked: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = Slow(seconds)
    monkeypatch.setattr(dist, "get_rank", lambda group: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr("torchipu.distributed.members._store_of", lambda group: None)
    members = Members(object())
    monkeypatch.setattr(time, "monotonic", lambda: work.now)
    monkeypatch.setattr(time, "sleep", work.sleep)
    members.finished(work)
    monkeypatch.undo()
    assert work.asked < asked
    assert work.now - seconds <= max(0.011 * seconds, 1e-4)
    assert work.now - seconds < 0.0101
