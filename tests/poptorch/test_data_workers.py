"""How the processes of asynchronous loaders come to be, what they share, and that none outlives its parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.poptorch import data_sets
from tests.poptorch.data_sets import Broken, Drawn, Dying, Held, Numbers, Parents
from tests.poptorch.test_data_accessor import DEADLINE_SECONDS, ROOT, accessor, is_there, wait_for_end
from tests.waiting import SOON
from torchipu import poptorch
from torchipu.distributed.exchange import THREAD_NAME
from torchipu.poptorch.data import process as data_process
from torchipu.poptorch.data import threads_at_fork

ASYNC = poptorch.DataLoaderMode.Async
SERVER = poptorch.SharingStrategy.ForkServer


@pytest.fixture
def no_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it seem that a fork misses no thread; the test runner may have some."""
    monkeypatch.setattr(threads_at_fork, "missed_by_a_fork", list)


@pytest.fixture
def another_thread() -> Iterator[threading.Thread]:
    """Run a thread besides."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait, name="progress bar", daemon=True)
    thread.start()
    yield thread
    over.set()
    thread.join()


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> int:
    """Note a number in this process, after everything was imported."""
    monkeypatch.setitem(data_sets.MARKS, "mark", os.getpid())
    return os.getpid()


def loader(dataset: Any, **kwargs: Any) -> poptorch.DataLoader:
    return poptorch.DataLoader(poptorch.Options(), dataset, mode=ASYNC, **kwargs)


# ---------------------------------------------------------------------- how they come to be
def test_process_is_forked_from_this_one_where_no_thread_is_missed(no_other_threads: None, mark: int) -> None:
    with accessor(Parents(1), sharing_strategy=SERVER) as made:
        ((process, parent, marked),) = (row.tolist() for row in made)
        assert (process, parent, marked) == (made._process.pid, os.getpid(), mark)


def test_process_is_forked_from_a_server_with_torch_where_another_thread_runs(
    another_thread: threading.Thread, mark: int
) -> None:
    parents = set()
    for _ in range(2):
        with accessor(Parents(1), sharing_strategy=SERVER) as made:
            ((process, parent, marked),) = (row.tolist() for row in made)
            assert (process, marked) == (made._process.pid, -1)
            parents.add(parent)
    (server,) = parents
    assert server != os.getpid()
    assert "multiprocessing.forkserver" in Path(f"/proc/{server}/cmdline").read_text(encoding="utf-8")
    assert "libtorch_cpu" in Path(f"/proc/{server}/maps").read_text(encoding="utf-8")


@pytest.mark.parametrize("strategy", list(poptorch.SharingStrategy))
def test_workers_of_a_loader_are_forked_from_its_process(strategy: poptorch.SharingStrategy) -> None:
    made = loader(Parents(4), num_workers=2, async_options={"sharing_strategy": strategy})
    rows = torch.cat([batch.clone() for batch in made])
    assert made._accessor is not None
    assert set(rows[:, 1].tolist()) == {made._accessor._process.pid}
    assert len(set(rows[:, 0].tolist())) == 2
    made.terminate()


def test_data_that_cannot_be_pickled_is_forked_with_a_warning(
    another_thread: threading.Thread, caplog: pytest.LogCaptureFixture
) -> None:
    with accessor((torch.tensor(number) for number in range(3)), sharing_strategy=SERVER) as made:
        assert [value.item() for value in made] == [0, 1, 2]
    for words in ("cannot pickle 'generator'", "progress bar", "make the loader before them"):
        assert words in caplog.text


def test_generators_of_random_numbers_follow_torchs_seed_and_differ_between_loaders() -> None:
    drawn = []
    for seed in (1, 1, 2):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for _ in range(2):
                with accessor(Drawn(2), sharing_strategy=SERVER) as made:
                    drawn.append(torch.stack([row.clone() for row in made]))
    assert torch.equal(torch.cat(drawn[:2]), torch.cat(drawn[2:4]))
    for column in range(3):
        values = torch.stack([drawn[place] for place in (0, 1, 4, 5)])[..., column]
        assert len(set(values.flatten().tolist())) == 8


def test_making_a_loader_draws_one_number_of_torchs_generator(no_other_threads: None) -> None:
    data_process._warm_up.cache_clear()
    with torch.random.fork_rng():
        torch.manual_seed(3)
        loader(Numbers(2)).terminate()
        after = torch.rand(())
        torch.manual_seed(3)
        torch.randint(2**62, ())
        assert after == torch.rand(())


class Slices(data_sets.Counted, torch.utils.data.Dataset[torch.Tensor]):
    """Rows of a tensor of 128 MiB."""

    def __init__(self) -> None:
        super().__init__(8)
        self.values = torch.ones(8, 1 << 22)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.values[index].sum()


def test_data_is_shared_with_the_workers_and_not_copied(no_other_threads: None) -> None:
    made = loader(Slices(), num_workers=2)
    assert [batch.item() for batch in made] == [float(1 << 22)] * 8
    assert made._accessor is not None
    pid = made._accessor._process.pid
    assert pid is not None
    for process in (pid, *children(pid)):
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="utf-8").splitlines()
        (own,) = (int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))
        assert own < 96 * 1024  # KiB; a copy would be 128 MiB more
    made.terminate()


# ---------------------------------------------------------------------- threads
def native() -> set[str]:
    """Return the threads besides those of Python; libraries that other tests used may have left some."""
    return set(threads_at_fork._native({thread.native_id for thread in threading.enumerate()}))


def test_a_thread_of_python_would_be_missed(another_thread: threading.Thread) -> None:
    assert "progress bar" in threads_at_fork.missed_by_a_fork()


def test_idle_threads_of_torch_blas_and_the_engine_would_not_be_missed() -> None:
    before, others = torch.get_num_threads(), native()
    code = threads_at_fork._mapped_code()
    try:
        torch.set_num_threads(2)
        torch.randn(1 << 22).exp_()
        torch.randn(700, 700) @ torch.randn(700, 700)
        assert threads_at_fork._openmp_of_torch() in {region.path for region in code}
        until = time.monotonic() + 10
        while not native() <= others and time.monotonic() < until:
            time.sleep(0.01)  # on a busy machine one may be on its way to rest
        assert native() <= others
    finally:
        torch.set_num_threads(before)


def test_a_thread_of_a_foreign_library_would_be_missed() -> None:
    others = native()
    libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
    assert libc.pthread_create(ctypes.byref(thread), None, libc.pause, None) == 0
    try:
        (missed,) = native() - others
        assert missed.startswith("thread ")
    finally:
        libc.pthread_cancel(thread)
        libc.pthread_join(thread, None)
    assert native() <= others


@pytest.mark.parametrize("threads", [1, 2])
def test_forks_after_a_run_neither_hang_nor_compute_otherwise(threads: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    options = poptorch.Options()
    inference = poptorch.inferenceModel(model, options)
    x = torch.randn(256, 64)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        expected = inference(x)
        for _ in range(5):
            torch.randn(1 << 20).exp_()  # torch's threads are at work shortly before
            assert torch.equal(inference(x), expected)
            rows = torch.utils.data.DataLoader(
                Computed(8), batch_size=2, num_workers=2, timeout=60, multiprocessing_context="fork"
            )
            values = torch.cat(list(rows))
            made = loader(Computed(8), batch_size=2, num_workers=1, timeout=60)
            assert torch.equal(torch.cat([batch.clone() for batch in made]), values)
            made.terminate()
    finally:
        torch.set_num_threads(before)
        inference.destroy()
    torch.testing.assert_close(values, torch.stack([Computed(8)[index] for index in range(8)]))


class Computed(data_sets.Counted, torch.utils.data.Dataset[torch.Tensor]):
    """Elements that take an operation of torch on many numbers, one that is shared among threads."""

    def __getitem__(self, index: int) -> torch.Tensor:
        return (torch.arange(1 << 18) * float(index)).exp_().reciprocal_()[:8]


# ---------------------------------------------------------------------- programs
GUARDED = 'if __name__ == "__main__":'
PROGRAM = """
import os, sys, threading
from tests.poptorch.data_sets import Numbers, StuckInCompiledCode
from torchipu import poptorch
import torch

class Own(Numbers):
    pass

{guard}
    {thread}
    loader = poptorch.DataLoader(
        poptorch.Options(), {data}, num_workers={workers}, mode=poptorch.DataLoaderMode.Async,
        async_options={{"sharing_strategy": poptorch.SharingStrategy.{strategy}, "early_preload": True}},
    )
    steps = iter(loader)
    print([next(steps)[1].item() for _ in range({count})], loader._accessor._process.pid, flush=True)
    {end}
"""
THREAD = "threading.Thread(target=threading.Event().wait, daemon=True).start()"


def program(
    folder: Path, *, guard: str = GUARDED, thread: str = "pass", data: str = "Own(9)", strategy: str = "ForkServer",
    workers: int = 0, count: int = 3, end: str = "pass",
) -> subprocess.Popen[str]:
    """Start a program with a loader."""
    path = folder / "program.py"
    path.write_text(
        PROGRAM.format(
            guard=guard, thread=thread, data=data, strategy=strategy, workers=workers, count=count, end=end
        ), encoding="utf-8",
    )
    return subprocess.Popen(
        [sys.executable, str(path)], env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )


@pytest.mark.parametrize("arguments", [
    {"guard": "if True:"}, {"guard": "if True:", "thread": THREAD, "data": "Numbers(9)"}, {"thread": THREAD},
], ids=["unguarded", "unguarded, a thread, data of a module", "guarded, a thread"])
def test_program_with_the_default_strategy_runs(tmp_path: Path, arguments: dict[str, Any]) -> None:
    output, error = program(tmp_path, **arguments).communicate(timeout=DEADLINE_SECONDS)
    assert output.startswith("[0, 1, 2]"), error
    assert error == ""


@pytest.mark.parametrize("arguments", [{"strategy": "SharedMemory"}, {"thread": THREAD}], ids=["spawned", "served"])
def test_program_that_runs_itself_anew_is_told_of_the_guard(tmp_path: Path, arguments: dict[str, Any]) -> None:
    process = program(tmp_path, guard="if True:", **arguments)
    _, error = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 1
    assert 'needs its main part under if __name__ == "__main__"' in error


@pytest.mark.parametrize("thread", ["pass", THREAD], ids=["forked", "served"])
def test_killed_program_takes_workers_along_that_are_stuck_in_compiled_code(tmp_path: Path, thread: str) -> None:
    process = program(
        tmp_path, thread=thread, data="StuckInCompiledCode(9)", workers=2 if thread == "pass" else 0,
        count=1, end="sys.stdin.read()",  # those that read ahead come to the element at which they are stuck
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    pid = int(line.split()[-1])
    family = [pid, *children(pid)]
    assert len(family) == (3 if thread == "pass" else 1)
    time.sleep(0.5)
    process.kill()
    began = time.monotonic()
    for each in family:
        wait_for_end(each)
    assert time.monotonic() - began < SOON
    process.communicate()


# ---------------------------------------------------------------------- what goes wrong
def children(process: int) -> list[int]:
    """Return the processes that a process has forked."""
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize("workers", [0, 1])
def test_hanging_data_is_an_error_with_its_stack_where_there_is_a_limit(workers: int) -> None:
    made = loader(Held(9), num_workers=workers, timeout=1)
    steps = iter(made)
    assert [next(steps)[1].item() for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(AssertionError, match=r"in the data fetcher: no batch for 1 s, process") as told:
        next(steps)
    assert "data_sets.py" in str(told.value)
    assert "__getitem__" in str(told.value)
    made.terminate()


def test_hanging_first_element_is_an_error_where_there_is_a_limit() -> None:
    class Stuck(Numbers):
        def __getitem__(self, index: int) -> Any:
            threading.Event().wait()

    with pytest.raises(poptorch.Error, match=r"worker thread failed to start: no batch for 0.5 s") as told:
        loader(Stuck(9), timeout=0.5, async_options={"sharing_strategy": poptorch.SharingStrategy.Fork})
    assert "test_data_workers.py" in str(told.value)


def test_slow_data_is_warned_of_with_its_stack(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setattr(data_process, "SLOW_SECONDS", 0.3)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with accessor(data_sets.Gated(6, str(gate))) as made:
        steps = iter(made)
        read = [next(steps)[1].item() for _ in range(4)]
        caplog.clear()  # a busy machine may be slow before
        opened = threading.Timer(2, lambda: gate.open("w", encoding="utf-8").close())
        opened.start()
        read.append(next(steps)[1].item())
        assert caplog.text.count("Waiting for the loader: no batch for 0.3 s, process") == 1
        assert "__getitem__" in caplog.text
        read.append(next(steps)[1].item())
        opened.join()
    assert read == list(range(6))


def test_stopped_process_is_said_to_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_process, "GRACE_SECONDS", 0.1)
    monkeypatch.setattr(data_process, "POLITE_SECONDS", 0.2)
    made = loader(Numbers(9), timeout=0.5)
    steps = iter(made)
    next(steps)
    assert made._accessor is not None
    pid = made._accessor._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(AssertionError, match=f"process {pid} is stopped"):
        list(steps)
    made.terminate()
    assert not is_there(pid)


def test_killed_process_is_an_error_at_once_even_if_its_workers_are_stuck() -> None:
    made = loader(Held(9), num_workers=1)
    steps = iter(made)
    next(steps)
    assert made._accessor is not None
    pid = made._accessor._process.pid
    assert pid is not None
    workers = children(pid)
    os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(AssertionError, match="ended by signal 9"):
        list(steps)
    for worker in workers:
        wait_for_end(worker)
    assert time.monotonic() - began < SOON
    made.terminate()


@pytest.mark.parametrize(("data", "text"), [
    (Dying(9), r"DataLoader worker \(pid.*killed by signal"), (Broken(9, 4), "LookupError: element 4 is broken"),
])
def test_worker_of_a_loader_that_fails_is_an_error_of_the_loader(data: Any, text: str) -> None:
    made = loader(data, num_workers=1, prefetch_factor=1)
    with pytest.raises(AssertionError, match=rf"(?s)An error occurred in the data fetcher.*{text}"):
        list(made)
    made.terminate()


@pytest.mark.parametrize("workers", [0, 1])
def test_empty_data_is_an_error(workers: int) -> None:
    with pytest.raises(poptorch.Error, match=r"(?s)worker thread failed to start.*The Dataset is empty"):
        loader(Numbers(0), num_workers=workers)


def test_a_hundred_loaders_leave_no_descriptors(no_other_threads: None) -> None:
    counts = []
    for turn in range(100):
        made = loader(Numbers(3))
        assert sum(1 for _ in made) == 3
        made.terminate()
        del made
        if turn in (4, 99):
            counts.append(len(os.listdir("/proc/self/fd")))
    assert counts[0] == counts[1]


def test_a_signal_handler_of_the_program_is_not_called_in_a_worker(no_other_threads: None, tmp_path: Path) -> None:
    note = tmp_path / "note"
    previous = signal.signal(signal.SIGTERM, lambda *_: note.write_text("called", encoding="utf-8"))
    try:
        made = loader(Held(9))
        assert made._accessor is not None
        pid = made._accessor._process.pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        with pytest.raises(AssertionError, match="ended by signal 15"):
            list(made)
        made.terminate()
    finally:
        signal.signal(signal.SIGTERM, previous)
    assert not note.exists()


def test_one_worker_does_not_keep_another_from_seeing_the_end(no_other_threads: None) -> None:
    with accessor(Numbers(3)) as first, accessor(Numbers(3)) as second:
        shared = first._process
        pipes = {os.fstat(end.fileno()).st_ino for end in (shared._woken, shared._wake_worker, shared._life)}
        held = {pid: {os.stat(path).st_ino for path in Path(f"/proc/{pid}/fd").iterdir() if path.exists()}
                for pid in (shared.pid, second._process.pid)}
        assert pipes <= held[shared.pid]
        assert not pipes & held[second._process.pid]


def test_a_fork_does_without_the_thread_that_adds_gradients_up_over_processes() -> None:
    before, held = threads_at_fork.missed_by_a_fork(), threading.Event()
    thread = threading.Thread(target=held.wait, name=THREAD_NAME, daemon=True)
    thread.start()
    try:
        assert threads_at_fork.missed_by_a_fork() == before
    finally:
        held.set()
        thread.join()
