"""A small size of each long run, and that each would tell if something were wrong."""

from __future__ import annotations

import datetime
import inspect
import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.distributed import faults
from tests.fuzz.batches import Result
from tests.reliability import callers, elsewhere, forks, interrupts, memory
from tests.reliability.__main__ import main
from tests.reliability.runs import RUNS


# ---------------------------------------------------------------------- threads
@pytest.mark.slow
def test_threads_that_compile_and_call_get_what_they_get_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "HELD", 1)
    monkeypatch.setattr(callers, "FRESH_EVERY", 4)
    found = callers.run(6, threads=4)
    assert found["calls"] == 24
    assert found["compilations"] > 0
    assert (found["wrong"], found["failed"], found["eager"]) == (0, 0, 0)


def test_threads_that_write_into_one_place_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = torch.zeros(1)

    def door(model: nn.Module) -> callers.Call:
        def call(x: torch.Tensor) -> list[torch.Tensor]:
            shared.copy_(x.sum())
            time.sleep(0.01)
            return [shared.clone()]

        return call

    monkeypatch.setattr(callers, "DOORS", (door,))
    assert callers.run(5, threads=3)["wrong"] > 0


def test_a_thread_that_raises_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def calls_of(thread: int, count: int) -> Iterator[bytes]:
        if threading.current_thread() is not threading.main_thread() and thread == 1:
            raise ValueError("a thread of this test")
        yield b""

    monkeypatch.setattr(callers, "calls_of", calls_of)
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    assert callers.run(1, threads=2)["failed"] == 1


# ---------------------------------------------------------------------- Ctrl-C
@pytest.mark.slow
def test_an_interrupt_ends_what_runs_soon_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "ITERATIONS", 2000)
    found = interrupts.run(2)
    for kind in interrupts.SCENES:
        assert found[kind] == 2
        assert (found[f"{kind} state changed"], found[f"{kind} not usable after"]) == (0, 0)
        assert found[f"{kind} slowest, s"] < 10  # a test may share its CPUs; the long run counts those above the limit


def _deaf(scene: interrupts.Scene) -> None:
    """Take notice of a signal late, as compiled code does that never looks."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    time.sleep(0.4)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hasty(scene: interrupts.Scene) -> None:
    """Write weights before all is done."""
    with torch.no_grad():
        next(scene.model.parameters()).add_(1)
    time.sleep(0.2)


@pytest.mark.parametrize(("work", "word"), [
    (_deaf, "too slow"), (_hasty, "state changed"), (_hasty, "not usable after"),
])
def test_what_does_not_heed_an_interrupt_is_noticed(
    monkeypatch: pytest.MonkeyPatch, work: Callable[[interrupts.Scene], None], word: str,
) -> None:
    def make() -> interrupts.Scene:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        scene = interrupts.Scene(model, None, lambda: work(scene), lambda: dict(model.state_dict()))
        return scene

    monkeypatch.setitem(interrupts.SCENES, "bad", (make, 0.02))
    with interrupts.pressing() as finger:
        found = interrupts.run_kind("bad", 3, finger, random.Random(0))
    assert found[f"bad {word}"] > 0


# ---------------------------------------------------------------------- memory
def test_many_calls_add_no_memory() -> None:
    for door in ("torch.compile", "TrainStep"):
        added, handles = memory.growth(door, 1000)
        assert (added <= memory.LEAST, handles) == (True, 0)


LEAKING = """
import torch
from tests.reliability import memory
kept = []
memory.DOORS["leaking"] = lambda: lambda x: kept.append(torch.ones(1000))
print(memory.growth("leaking", 1000)[0])
"""


def test_a_call_that_keeps_something_is_noticed() -> None:
    # in a process of its own, which has no memory of other tests to give out again
    done = subprocess.run([sys.executable, "-c", LEAKING], check=True, capture_output=True, text=True, timeout=300)
    assert int(done.stdout) > memory.LEAST


# ---------------------------------------------------------------------- forks
def test_workers_that_are_forked_with_a_model_alive_compute_as_it_does() -> None:
    assert forks.run(3) == {"loaders": 3, "hangs": 0, "wrong": 0}


class Hanging(forks.Computed):
    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(30)
        return super().__getitem__(index)


class Drawn(forks.Computed):
    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(8)


def test_a_worker_that_hangs_or_computes_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "Computed", Drawn)
    assert forks.run(1)["wrong"] == 1
    monkeypatch.setattr(forks, "SECONDS", 1.0)
    monkeypatch.setattr(forks, "_through_torch", lambda rows: list(torch.utils.data.DataLoader(
        Hanging(), num_workers=1, timeout=1.0, multiprocessing_context="fork"
    )))
    assert forks.run(1)["hangs"] == 1


# ---------------------------------------------------------------------- the command
def test_the_command_keeps_what_a_run_found_and_fails_where_something_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["forks", "--size", "1", "--record", str(tmp_path)]) == 0
    kept = json.loads((tmp_path / "forks.json").read_text())
    assert datetime.date.fromisoformat(kept.pop("day")) <= datetime.date.today()
    assert kept == {"run": "forks", "size": 1, "found": {"loaders": 1, "hangs": 0, "wrong": 0}}
    assert "loaders 1, hangs 0, wrong 0" in capsys.readouterr().out
    assert RUNS["forks"].failures({"loaders": 1, "hangs": 2, "wrong": 0}) == ["hangs: 2"]


@pytest.mark.parametrize("name", RUNS)
def test_every_run_is_a_function_of_its_size(name: str) -> None:
    assert next(iter(inspect.signature(RUNS[name].function()).parameters)) == "size"


def test_random_programs_are_judged_on_from_where_a_run_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def run_batches(kind: str, seeds: range, workers: int) -> Iterator[Result]:
        asked.append(seeds)
        yield from (Result(seed, "step", {3: "wrong", 4: "torchs"}.get(seed, "ok"), "") for seed in seeds)

    monkeypatch.setattr(elsewhere, "run_batches", run_batches)
    recorded, folder = tmp_path / "recorded", tmp_path / "judged"
    assert elsewhere.fuzz("graphs", 3, recorded, folder)["wrong"] == 0
    found = elsewhere.fuzz("graphs", 5, recorded, folder)  # the first was broken off: nothing is recorded
    assert asked == [range(3), range(3, 5)]
    assert (found["programs"], found["ok"], found["wrong"], found["of torch"]) == (5, 3, 1, 1)
    assert RUNS["graphs"].failures(found) == ["wrong: 1"]
    recorded.mkdir()
    (recorded / "graphs.json").write_text(json.dumps({"run": "graphs", "size": 5, "found": found}))
    found = elsewhere.fuzz("graphs", 7, recorded, folder)
    assert asked[2:] == [range(5, 7)]
    assert (found["programs"], found["ok"], found["wrong"], found["of torch"]) == (7, 5, 1, 1)


def test_hostile_files_are_read_on_from_where_a_run_stood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def read(seed: int, count: int) -> dict[str, int]:
        asked.append((seed, count))
        none = dict.fromkeys(("executed", "forbidden events", "others changed"), 0)
        return {"files": count, "readers": 9, "wrong": int(seed == 22_000), **none}

    monkeypatch.setattr(elsewhere, "_read_apart", read)
    recorded, folder = tmp_path / "recorded", tmp_path / "read"
    assert elsewhere.files(12_000, recorded, folder)["wrong"] == 0
    recorded.mkdir()
    found = elsewhere.files(12_000, recorded, folder)  # the first was broken off before it was recorded
    (recorded / "files.json").write_text(json.dumps({"run": "files", "size": 12_000, "found": found}))
    found = elsewhere.files(25_000, recorded, folder)
    assert asked == [(0, 10_000), (10_000, 2_000), (12_000, 10_000), (22_000, 3_000)]
    assert (found["files"], found["readers"], found["wrong"]) == (25_000, 9, 1)


def test_each_case_of_the_faults_is_run_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run_each(cases: Iterable[faults.Case]) -> Iterator[faults.Result]:
        for case in cases:
            asked.append(str(case))
            yield faults.Result(case, 0.1, ("status 0",) if len(asked) == 2 else (), "")

    monkeypatch.setattr(faults, "run_each", run_each)
    elsewhere.faults(3, tmp_path / "recorded", tmp_path)
    found = elsewhere.faults(120, tmp_path / "recorded", tmp_path)
    assert found == {"cases": 120, "all cases": 120, "wrong": 1}
    assert len(set(asked)) == len(asked) == 120
    assert len({name.partition(" at ")[0] for name in asked[:12]}) == len(faults.FAULTS)
