"""AsynchronousDataAccessor: what crosses, what is reused, what happens when a process fails or ends."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.poptorch.data_sets import (
    Broken,
    Dying,
    Gated,
    Held,
    Numbers,
    Pair,
    Parents,
    Point,
    PointParser,
    Shuffled,
    Stream,
)
from torchipu import poptorch
from torchipu.poptorch.data import process as data_process

ROOT = Path(__file__).parents[2]
FORK = poptorch.SharingStrategy.Fork
DEADLINE_SECONDS = 120  # of what takes a second: the machine may be busy


@contextlib.contextmanager
def accessor(source: Any, **kwargs: Any) -> Iterator[poptorch.AsynchronousDataAccessor]:
    """Make an accessor, and end it."""
    made = poptorch.AsynchronousDataAccessor(source, **{"sharing_strategy": FORK, **kwargs})
    try:
        yield made
    finally:
        made.terminate()
        assert not made._process.is_alive()


def is_there(pid: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(pid: int) -> None:
    """Wait until a process that is no child of ours has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        assert select.select([descriptor], [], [], DEADLINE_SECONDS)[0], f"process {pid} is still there"
        os.close(descriptor)


# ---------------------------------------------------------------------- what crosses
@pytest.fixture
def points() -> Iterator[None]:
    """Let `Point` be known."""
    poptorch.registerCustomArgParser(Point, PointParser())
    yield
    poptorch.registerCustomArgParser(Point, None)


@pytest.mark.parametrize("strategy", [FORK, poptorch.SharingStrategy.SharedMemory])
def test_objects_of_a_known_class_cross(points: None, strategy: poptorch.SharingStrategy) -> None:
    data = [Point(torch.full((2,), float(n)), torch.tensor([n, n]), f"point {n}") for n in range(3)]
    with accessor(data, sharing_strategy=strategy) as made:
        found = [(type(p), p.x.tolist(), p.y.tolist(), p.name) for p in made]
    # What is no tensor is that of the first object, as after a model's call.
    assert found == [(Point, [float(n)] * 2, [n, n], "point 0") for n in range(3)]


def test_objects_of_a_known_class_are_joined_to_batches(points: None) -> None:
    data = [Point(torch.full((1, 2), float(n)), torch.tensor([n]), "point") for n in range(5)]
    with accessor(data, rebatched_size=2) as made:
        assert [(p.x.shape, p.y.tolist()) for p in made] == [((2, 2), [0, 1]), ((2, 2), [2, 3])]


def test_objects_of_an_unknown_class_are_refused() -> None:
    with pytest.raises(poptorch.Error, match=r"objects of a class known to poptorch.registerCustomArgParser, not"):
        poptorch.AsynchronousDataAccessor([Point(torch.ones(1), torch.ones(1), "")], sharing_strategy=FORK)


@pytest.mark.parametrize("element", [
    torch.arange(4), (torch.arange(4), torch.ones(2)), [torch.arange(4)], {"a": torch.arange(2), "b": torch.ones(3)},
    Pair(torch.zeros(1), torch.ones(2, 2)), (torch.tensor(3),),
])
def test_what_holds_the_tensors_stays(element: Any) -> None:
    with accessor([element, element]) as read:
        assert len(read) == 2
        for batch in read:
            assert type(batch) is type(element)
            pairs = (
                [(batch, element)] if isinstance(element, torch.Tensor)
                else [(batch[key], element[key]) for key in element] if isinstance(element, dict)
                else list(zip(batch, element, strict=True))
            )
            assert all(got.dtype == given.dtype and torch.equal(got, given) for got, given in pairs)


@pytest.mark.parametrize("strategy", list(poptorch.SharingStrategy))
def test_every_way_to_make_a_process_gives_the_same(strategy: poptorch.SharingStrategy) -> None:
    with accessor(Numbers(5), sharing_strategy=strategy) as read:
        for _ in range(2):
            assert [number.item() for _, number in read] == list(range(5))


def test_a_batch_is_a_view_that_a_later_step_writes_anew() -> None:
    with accessor(Numbers(9), buffer_size=2) as read:
        steps = iter(read)
        first = next(steps)[0]
        kept = first.clone()
        assert first.data_ptr() == [next(steps) for _ in range(2)][-1][0].data_ptr()
        assert torch.equal(kept, torch.zeros(2, 3))
        assert torch.equal(first, torch.full((2, 3), 2.0))


def test_elements_are_joined_to_batches_and_the_rest_is_dropped() -> None:
    pieces = [torch.arange(begin, begin + 3) for begin in range(0, 30, 3)]
    with accessor(pieces, rebatched_size=4) as read:
        assert [batch.tolist() for batch in read] == [list(range(begin, begin + 4)) for begin in range(0, 28, 4)]


def test_length_counts_rows_where_elements_are_joined() -> None:
    loader = poptorch.DataLoader(poptorch.Options(), Numbers(11), batch_size=2)
    with accessor(loader, rebatched_size=4) as read:
        assert len(read) == 10 // 4
        assert [batch[1].tolist() for batch in read] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_reading_ahead_begins_early_where_asked() -> None:
    with accessor(Numbers(9), early_preload=True, buffer_size=3) as read:
        while read._process.counters.produced < 3:
            os.read(read._process._woken.fileno(), 1)
        assert [number.item() for _, number in read] == list(range(9))


@pytest.mark.parametrize("indefinitely", [True, False])
def test_next_epoch_is_begun_before_it_is_asked_for_unless_told_otherwise(indefinitely: bool) -> None:
    with accessor(Numbers(3), buffer_size=3, load_indefinitely=indefinitely) as read:
        assert sum(1 for _ in read) == 3
        counters = read._process.counters
        if indefinitely:
            while counters.produced < 4 + 3:  # three batches and the end, and as many as there are slots
                os.read(read._process._woken.fileno(), 1)
        else:
            time.sleep(0.2)
            assert counters.produced == 4
        assert [number.item() for _, number in read] == [0, 1, 2]


def test_an_iteration_that_was_not_begun_is_kept() -> None:
    with accessor(Parents(4)) as read:
        first = next(iter(read)).clone()
        steps = iter(read)
        entry = read._process.counters.wanted_epoch
        assert iter(read) is steps
        assert read._process.counters.wanted_epoch == entry
        assert torch.equal(next(steps), first)


def test_nothing_is_read_ahead_where_not_asked() -> None:
    with accessor(Numbers(9)) as read:
        assert read._process.counters.produced == 0
        assert next(iter(read))[1].item() == 0


# ---------------------------------------------------------------------- refusals
@pytest.mark.parametrize(("source", "text"), [
    (Broken(9, 0), "element 0 is broken"), ([], "The Dataset is empty"), ([3], "must be tensors"),
    ([(torch.ones(1), (torch.ones(1),))], "must be flat"), ([{"a": [torch.ones(1)]}], "must be flat"),
])
def test_worker_that_cannot_begin_is_an_error_with_its_traceback(
    source: Any, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(poptorch.Error, match="worker thread failed to start") as raised:
        poptorch.AsynchronousDataAccessor(source, sharing_strategy=FORK)
    assert text in str(raised.value)
    assert text in capfd.readouterr().err


def test_generators_go_to_the_process_with_their_state() -> None:
    # More than one: where torch sends the state in shared memory, the first may arrive by luck.
    for _ in range(3):
        source = Shuffled()
        torch.randperm(5, generator=source.generator)
        twin = torch.Generator()
        twin.set_state(source.generator.get_state())
        with accessor(source, sharing_strategy=poptorch.SharingStrategy.ForkServer) as read:
            assert [int(value) for value in read] == torch.randperm(20, generator=twin).tolist()


def test_worker_that_is_killed_before_it_begins_is_an_error_with_the_signal() -> None:
    def dies() -> Iterator[Any]:
        os.kill(os.getpid(), signal.SIGKILL)
        yield torch.ones(1)

    with pytest.raises(poptorch.Error, match=r"worker thread failed to start.* signal 9"):
        poptorch.AsynchronousDataAccessor(dies(), sharing_strategy=FORK)


@pytest.mark.parametrize(("source", "text"), [
    (Broken(9, 4), "LookupError: element 4 is broken"), (Dying(9), "signal 9"),
    ([torch.ones(2)] * 4 + [torch.ones(3)], "same size"), ([torch.ones(2)] * 4 + [torch.ones(2).int()], "made alike"),
])
def test_worker_that_fails_later_gives_what_it_has_and_then_the_error(source: Any, text: str) -> None:
    with accessor(source) as read:
        for _ in range(2):
            steps = iter(read)
            for _ in range(4):
                next(steps)
            with pytest.raises(AssertionError, match="An error occurred in the data fetcher") as raised:
                next(steps)
            assert text in str(raised.value)


@pytest.mark.parametrize(("make", "kind", "text"), [
    (lambda: poptorch.AsynchronousDataAccessor([torch.ones(1)], rebatched_size=1), AssertionError, "rebatched_size"),
    (lambda: poptorch.AsynchronousDataAccessor([torch.ones(1)], buffer_size=0), AssertionError, "buffer_size"),
    (
        lambda: poptorch.AsynchronousDataAccessor(
            poptorch.DataLoader(poptorch.Options(), Numbers(9), batch_size=2, drop_last=False)
        ), AssertionError, "only works if 'rebatched_size' is specified too",
    ),
])
def test_refused(make: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as refusal:
        make()
    assert text in str(refusal.value)


def test_asynchronous_loader_is_refused() -> None:
    loader = poptorch.DataLoader(
        poptorch.Options(), Numbers(9), mode=poptorch.DataLoaderMode.Async, async_options={"sharing_strategy": FORK}
    )
    with pytest.raises(poptorch.Error, match="already uses an AsynchronousDataAccessor internally"):
        poptorch.AsynchronousDataAccessor(loader)
    assert len(list(loader)) == 9
    loader.terminate()
    with pytest.raises(poptorch.Error, match="has been terminated"):
        list(loader)


def test_data_that_cannot_be_sent_is_refused_and_nothing_stays_open() -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises((pickle.PicklingError, AttributeError, TypeError)):
        poptorch.AsynchronousDataAccessor([lambda: 1], sharing_strategy=poptorch.SharingStrategy.SharedMemory)
    # What multiprocessing keeps for itself: its resource tracker, and the memory of its shared numbers.
    assert len(set(os.listdir("/proc/self/fd")) - before) <= 2


# ---------------------------------------------------------------------- ends
def test_accessors_leave_neither_processes_nor_descriptors() -> None:
    with accessor(Numbers(3)):
        pass
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with accessor(Numbers(3)) as read:
            assert len(list(read)) == 3
        pid = read._process.pid
        assert pid is not None
        assert not is_there(pid)
        del read
    assert len(os.listdir("/proc/self/fd")) <= before


def test_accessor_that_nobody_holds_ends() -> None:
    read = poptorch.AsynchronousDataAccessor(Numbers(3), sharing_strategy=FORK)
    pid = read._process.pid
    assert pid is not None
    del read
    assert not is_there(pid)


def test_worker_held_up_in_the_data_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_process, "GRACE_SECONDS", 0.2)
    with accessor(Held(9)) as read:
        steps = iter(read)
        assert [next(steps)[1].item() for _ in range(4)] == list(range(4))


SCRIPT = """
import os, sys
from tests.poptorch.data_sets import Held, Numbers
from torchipu import poptorch
import torch

def main(strategy, how, workers):
    data = Held(9) if how == "held" else Numbers(9)
    loader = poptorch.DataLoader(
        poptorch.Options(), data, num_workers=workers, mode=poptorch.DataLoaderMode.Async,
        async_options={"sharing_strategy": poptorch.SharingStrategy[strategy]},
    )
    steps = iter(loader)
    for _ in range(3):
        next(steps)
    print(loader._accessor._process.pid, flush=True)
    if how == "exit":
        return
    if how == "raise":
        raise ValueError("the user's own")
    for _ in range(9):
        next(steps)
    sys.stdin.read()

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@contextlib.contextmanager
def script(folder: Path, strategy: str, how: str, workers: int = 0) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run a script with a loader; yield it, and the id of the loader's process."""
    path = folder / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(path), strategy, how, str(workers)], env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, int(line)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.parametrize("strategy", ["Fork", "ForkServer"])
def test_killed_script_takes_its_worker_along(tmp_path: Path, strategy: str) -> None:
    with script(tmp_path, strategy, "held") as (process, worker):
        assert is_there(worker)
        process.kill()
        wait_for_end(worker)
    # What torch and multiprocessing put there is named by its process; others may add names meanwhile.
    names = os.listdir("/dev/shm")
    assert [name for name in names if str(process.pid) in name or str(worker) in name] == []


def test_ctrl_c_ends_script_and_worker_and_raises_keyboard_interrupt(tmp_path: Path) -> None:
    with script(tmp_path, "Fork", "held", workers=1) as (process, worker):
        os.killpg(process.pid, signal.SIGINT)
        _, error = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode != 0
        assert "KeyboardInterrupt" in error
        wait_for_end(worker)


@pytest.mark.parametrize(("how", "status"), [("exit", 0), ("raise", 1)])
def test_script_that_ends_without_terminate_ends(tmp_path: Path, how: str, status: int) -> None:
    with script(tmp_path, "Fork", how, workers=1) as (process, worker):
        _, error = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == status, error
        assert ("the user's own" in error) is (how == "raise")
        wait_for_end(worker)


def test_workers_of_a_loader_leave_no_semaphores(tmp_path: Path) -> None:
    with script(tmp_path, "ForkServer", "exit", workers=1) as (process, _):
        _, error = process.communicate(timeout=DEADLINE_SECONDS)
        assert "leaked semaphore" not in error


def test_interrupted_step_can_be_made_again(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with accessor(Gated(9, str(gate))) as read:
        steps = iter(read)
        for _ in range(4):
            next(steps)
        previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - the alarm may come before the step
                signal.setitimer(signal.ITIMER_REAL, 0.2)
                next(steps)  # which does not come: the gate is closed
        finally:
            signal.signal(signal.SIGALRM, previous)
        gate.open("w", encoding="utf-8").close()
        assert [next(steps)[1].item() for _ in range(5)] == [4, 5, 6, 7, 8]


def test_stream_of_several_workers_is_read_by_a_process_of_its_own() -> None:
    loader = torch.utils.data.DataLoader(Stream(12), batch_size=2, num_workers=2, drop_last=True)
    with accessor(loader) as read:
        assert sorted(torch.cat([batch.clone() for batch in read]).tolist()) == list(range(12))
