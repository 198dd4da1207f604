"""A process that forks while another of its threads compiles: child and parent compute and compile."""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchipu
import torchipu.step.compiling
from torchipu import forks
from torchipu.capture import waiting_forks
from torchipu.ir.garbage import THRESHOLDS, seldom_collected

PACKAGE = Path(torchipu.__file__).parent
SECONDS = 60
Door = Callable[[nn.Module], Callable[[torch.Tensor], torch.Tensor]]


def compiled(model: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    torch._dynamo.reset()  # so that no limit of recompilations is met, whatever ran before
    return torch.compile(model, backend="ipu")


DOORS: dict[str, Door] = {"torch.compile": compiled, "step": torchipu.InferenceStep}


def status_of(child: Callable[[], object]) -> int:
    """Fork, call a function in the child, and return its status: 0 where it returned something true."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            status = 0 if child() else 2
        finally:
            os._exit(status)
    end = threading.Timer(SECONDS, os.kill, (process, signal.SIGKILL))  # one that hangs has that for its status
    end.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    finally:
        end.cancel()


@contextlib.contextmanager
def another_thread(work: Callable[[], object]) -> Iterator[None]:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert failed == []


class Waits(nn.Module):
    """A layer whose capture tells that it has begun, and takes a while."""

    def __init__(self, seconds: float = 0.5) -> None:
        super().__init__()
        self.layer, self.seconds = nn.Linear(8, 4), seconds
        self.has_begun, self.times = threading.Event(), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.wait()
        return self.layer(x)

    @torch._dynamo.assume_constant_result
    def wait(self) -> int:
        self.times += 1
        self.has_begun.set()
        time.sleep(self.seconds)
        return 0


@pytest.mark.parametrize("door", DOORS)
def test_a_child_forked_while_a_thread_captures_computes_and_compiles(door: str) -> None:
    known, slow = nn.Linear(8, 4).eval(), Waits().eval()
    x = torch.randn(3, 8)
    open_door = DOORS[door]
    with torch.no_grad():
        program, waiting = open_door(known), DOORS[door](slow)
        expected = known(x)
        torch.testing.assert_close(program(x), expected)

        def child() -> bool:
            with torch.no_grad():
                anew = torchipu.InferenceStep(known)(x[:2])
                other = torch.compile(nn.ReLU(), backend="ipu")(x)
                return bool(
                    torch.allclose(program(x), expected) and torch.allclose(anew, expected[:2])
                    and torch.equal(other, x.relu()) and not torch.compiler.is_compiling()
                )

        with another_thread(lambda: waiting(x)):
            assert slow.has_begun.wait(SECONDS)
            assert status_of(child) == 0
        torch.testing.assert_close(waiting(x), slow.layer(x))
        torch.testing.assert_close(program(x), expected)


def test_a_child_compiles_the_step_that_a_thread_of_its_parent_was_lowering(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, lower = threading.Event(), torchipu.step.compiling.compile_or_advise

    def slow(*arguments: Any, **keywords: Any) -> Any:
        if not begun.is_set():
            begun.set()
            time.sleep(0.5)
        return lower(*arguments, **keywords)

    monkeypatch.setattr(torchipu.step.compiling, "compile_or_advise", slow)
    model, x = nn.Linear(8, 4), torch.randn(3, 8)
    step = torchipu.InferenceStep(model)
    with another_thread(lambda: step(x)):
        assert begun.wait(SECONDS)
        assert status_of(lambda: torch.allclose(step(x), model(x)) and gc.get_threshold() != THRESHOLDS) == 0
    torch.testing.assert_close(step(x), model(x))


def test_a_fork_within_a_capture_waits_for_nobody() -> None:
    statuses = list[int]()

    class Forks(Waits):
        @torch._dynamo.assume_constant_result
        def wait(self) -> int:
            statuses.append(status_of(lambda: not waiting_forks.compile_lock.release()))  # which it has as its parent
            return 0

    torchipu.InferenceStep(Forks())(torch.randn(3, 8))
    assert statuses[0] == 0


def test_a_child_compiles_though_its_fork_has_waited_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_forks, "LONGEST_SECONDS", 0.1)
    is_free = threading.Event()
    begun = threading.Event()

    def hold() -> None:
        with waiting_forks.compile_lock:
            begun.set()
            is_free.wait(SECONDS)

    x = torch.randn(3, 8)
    with another_thread(hold):
        begun.wait(SECONDS)
        status = status_of(lambda: torch.equal(torchipu.InferenceStep(nn.ReLU())(x), x.relu()))
        is_free.set()
    assert status == 0
    torch.testing.assert_close(torchipu.InferenceStep(nn.ReLU())(x), x.relu())


@pytest.fixture
def handler() -> Iterator[Any]:
    """The handler of SIGINT that Python begins with, also where who started the tests had them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield signal.default_int_handler
    signal.signal(signal.SIGINT, before)


def test_a_signal_that_comes_while_a_fork_waits_comes_behind_it(handler: Any) -> None:
    begun, (answer, question) = threading.Event(), os.pipe()

    def hold() -> None:
        with waiting_forks.compile_lock:
            begun.set()
            time.sleep(0.2)
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
            time.sleep(0.3)

    def fork_and_wait() -> None:
        status_of(child)
        time.sleep(SECONDS)

    def child() -> bool:
        return os.write(question, b"as before" if signal.getsignal(signal.SIGINT) is handler else b"other") > 0

    with another_thread(hold):
        begun.wait(SECONDS)
        with pytest.raises(KeyboardInterrupt):
            fork_and_wait()
    assert os.read(answer, 9) == b"as before"
    assert signal.getsignal(signal.SIGINT) is handler
    os.close(answer), os.close(question)


def test_handlers_that_are_set_between_two_forks_stay(handler: Any) -> None:
    begun = threading.Event()

    def hold() -> None:
        with waiting_forks.compile_lock:
            begun.set()
            time.sleep(0.1)

    def other(number: int, frame: object) -> None:
        """Do nothing."""

    with another_thread(hold):
        begun.wait(SECONDS)
        assert status_of(lambda: True) == 0
    signal.signal(signal.SIGINT, other)
    assert status_of(lambda: signal.getsignal(signal.SIGINT) is other) == 0
    assert signal.getsignal(signal.SIGINT) is other


def test_locks_that_other_threads_hold_are_free_in_a_child_and_those_of_its_own_are_held() -> None:
    theirs, again, mine = forks.lock(), forks.reentrant_lock(), forks.reentrant_lock()
    begun, end = threading.Event(), threading.Event()

    def hold() -> None:
        with theirs, again:
            begun.set()
            end.wait(SECONDS)

    with another_thread(hold), mine:
        begun.wait(SECONDS)
        status = status_of(
            lambda: theirs.acquire(blocking=False) and again.acquire(blocking=False) and (mine.release() is None),
        )
        assert not theirs.acquire(blocking=False)
        end.set()
    assert status == 0


def test_the_collector_is_as_before_in_a_child_of_a_thread_that_compiles_nothing() -> None:
    before, begun, end = gc.get_threshold(), threading.Event(), threading.Event()

    def hold() -> None:
        with seldom_collected():
            begun.set()
            end.wait(SECONDS)

    with another_thread(hold):
        begun.wait(SECONDS)
        assert gc.get_threshold() != before
        status = status_of(lambda: gc.get_threshold() == before)
        end.set()
    assert status == 0
    assert gc.get_threshold() == before


def test_all_locks_of_the_package_are_of_this_kind() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py") if path != PACKAGE / "forks.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("threading.Lock", "threading.RLock")
    ]
    assert found == []
