"""What a signal's handler raises while torch traces comes between two nodes, wherever that came, and is not lost."""

from __future__ import annotations

import copy
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch._library.simple_registry import SimpleLibraryRegistry

import torchipu
from torchipu.backend.signals import DynamoSignals
from torchipu.capture.held_signals import DRIVERS, HeldSignals, drives, signals_held

pytestmark = pytest.mark.usefixtures("ctrl_c_interrupts")


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 6), nn.GELU(), nn.LayerNorm(6), nn.Linear(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def through_train_step(model: nn.Module) -> Callable[[torch.Tensor], object]:
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), torchipu.Options())


def through_inference_step(model: nn.Module) -> Callable[[torch.Tensor], object]:
    return torchipu.InferenceStep(model)


def through_torch_compile(model: nn.Module) -> Callable[[torch.Tensor], object]:
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="ipu", fullgraph=True)
    return lambda x: torch.autograd.grad(compiled(x), list(model.parameters()))


DOORS = (through_train_step, through_inference_step, through_torch_compile)


@contextmanager
def sent_within_an_operator(number: int, after: int) -> Iterator[list[int]]:
    """Send a signal as torch's dispatcher asks Python, in C++ that lets no exception pass, whether an op has a rule.

    Args:
        number: Of the signal.
        after: Questions before it.

    Yields:
        The questions, a number each.
    """
    asked, find = list[int](), SimpleLibraryRegistry.find

    def found(registry: SimpleLibraryRegistry, name: str) -> Any:
        # Dynamo looks for other things there too, in Python
        if sys._getframe(1).f_code.co_name == "find_torch_dispatch_rule" and threading.current_thread() is main:
            asked.append(len(asked))
            if len(asked) == after + 1:
                signal.raise_signal(number)
        return find(registry, name)

    main = threading.main_thread()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimpleLibraryRegistry, "find", found)
        yield asked


@contextmanager
def handled_by(number: int, handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def model_and_input() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Network(), torch.randn(5, 4)


# ---------------------------------------------------------------------- all doors
@pytest.mark.parametrize("after", [0, 12, 40])
@pytest.mark.parametrize("door", DOORS)
def test_an_interrupt_within_an_operator_that_torch_traces_ends_the_call_and_leaves_all_as_it_was(
    door: Callable[[nn.Module], Callable[[torch.Tensor], object]], after: int,
) -> None:
    model, x = model_and_input()
    twin = copy.deepcopy(model)
    call, handler, traced = door(model), signal.getsignal(signal.SIGINT), sys.gettrace()
    with sent_within_an_operator(signal.SIGINT, after) as asked, pytest.raises(KeyboardInterrupt):
        call(x)
    # A node is the last, or the making of fake tensors for a graph; all of it asks 160 to 360 times.
    assert len(asked) - after < 40
    assert signal.getsignal(signal.SIGINT) is handler
    assert sys.gettrace() is traced
    torch.testing.assert_close(model.state_dict(), twin.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(call(x), door(twin)(x), rtol=0, atol=0)


@pytest.mark.parametrize("door", DOORS)
def test_a_handler_of_the_users_own_is_called_once_and_the_call_goes_on(
    door: Callable[[nn.Module], Callable[[torch.Tensor], object]],
) -> None:
    model, x = model_and_input()
    called = list[FrameType | None]()

    def note(number: int, frame: FrameType | None) -> None:
        called.append(frame)

    with sent_within_an_operator(signal.SIGTERM, 1) as asked, handled_by(signal.SIGTERM, note):
        found = door(copy.deepcopy(model))(x)
        assert signal.getsignal(signal.SIGTERM) is note
    assert len(asked) > 2
    (frame,) = called
    assert frame is not None
    assert frame.f_code in DRIVERS or frame.f_code.co_filename.startswith(torchipu.__path__[0])
    torch.testing.assert_close(found, door(model)(x), rtol=0, atol=0)


def test_a_timeout_of_the_users_own_reaches_him() -> None:
    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError("of this test")

    model, x = model_and_input()
    with sent_within_an_operator(signal.SIGALRM, 2), handled_by(signal.SIGALRM, too_long), \
            pytest.raises(TimeoutError, match="of this test"):
        through_train_step(model)(x)


# ---------------------------------------------------------------------- other backends
def handlers_in_backend(backend: Callable[..., Any] | str) -> list[object]:
    """Return the handlers of Ctrl-C that hold as operators are traced for a backend."""
    found, model = list[object](), Network()
    plain = SimpleLibraryRegistry.find

    def find(registry: SimpleLibraryRegistry, name: str) -> Any:
        if torch._guards.TracingContext.try_get() is not None:
            found.append(signal.getsignal(signal.SIGINT))
        return plain(registry, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimpleLibraryRegistry, "find", find)
        torch.compile(model, backend=backend)(torch.randn(5, 4))
    return found


def test_captures_for_other_backends_go_on_as_they_do() -> None:
    torch._dynamo.reset()
    assert signal.default_int_handler not in handlers_in_backend("ipu")
    torch._dynamo.reset()
    others = handlers_in_backend("aot_eager")
    assert set(others) == {signal.default_int_handler}


# ---------------------------------------------------------------------- where a handler runs
def test_a_graph_ends_behind_the_node_that_was_at_work() -> None:
    ran = list[str]()

    def first(x: int) -> int:
        signal.raise_signal(signal.SIGINT)
        ran.append("first")
        return x

    def second(x: int) -> int:
        ran.append("second")
        return x

    graph = torch.fx.Graph()
    graph.output(graph.call_function(second, (graph.call_function(first, (graph.placeholder("x"),)),)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with pytest.raises(KeyboardInterrupt), signals_held():
        torch.fx.Interpreter(module).run(1)
    assert ran == ["first"]


def test_what_nothing_has_driven_is_handled_at_the_end() -> None:
    reached = False
    with pytest.raises(KeyboardInterrupt), signals_held():  # noqa: PT012 - it comes at the end
        signal.raise_signal(signal.SIGINT)
        reached = True
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_takes_the_place_of_an_error_that_it_has_become() -> None:
    def run(x: int) -> int:
        signal.raise_signal(signal.SIGINT)
        return x

    graph = torch.fx.Graph()
    graph.output(graph.call_function(run, (graph.placeholder("x"),)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with pytest.raises(KeyboardInterrupt), signals_held():  # noqa: PT012 - it comes at the end
        try:
            torch.fx.Interpreter(module).run(1)
        except BaseException:  # as torch's C++ does, which forgets what Python has raised, or says that it failed
            raise RuntimeError("an operator failed") from None


def test_an_interrupt_that_torch_forgets_is_raised_at_the_end() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(signal.raise_signal, (graph.placeholder("number"),)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with pytest.raises(KeyboardInterrupt), signals_held(), suppress(KeyboardInterrupt):
        torch.fx.Interpreter(module).run(signal.SIGINT)


def test_an_error_of_a_handler_that_the_model_catches_stays_caught() -> None:
    def too_long(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    graph = torch.fx.Graph()
    graph.output(graph.call_function(signal.raise_signal, (graph.placeholder("number"),)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    with handled_by(signal.SIGALRM, too_long), signals_held(), pytest.raises(TimeoutError):
        torch.fx.Interpreter(module).run(signal.SIGALRM)


def test_a_function_that_follows_traces_is_back_behind_an_interrupt() -> None:
    def trace(frame: FrameType, event: str, argument: object) -> None:
        """Follow, as a debugger does and what measures coverage."""

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt), signals_held():
            signal.raise_signal(signal.SIGINT)
        found = sys.gettrace()
    finally:
        sys.settrace(before)
    assert found is trace


# ---------------------------------------------------------------------- what stays as it is
def test_in_other_threads_nothing_is_held() -> None:
    found = list[object]()

    def look() -> None:
        with signals_held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_a_handler_that_is_set_meanwhile_stays() -> None:
    def other(number: int, frame: FrameType | None) -> None:
        """Handle it in a way of its own."""

    with signals_held():
        signal.signal(signal.SIGINT, other)
    assert signal.getsignal(signal.SIGINT) is other  # the fixture puts the first one back


def test_within_itself_it_changes_nothing() -> None:
    with signals_held():
        handler = signal.getsignal(signal.SIGINT)
        with signals_held():
            assert signal.getsignal(signal.SIGINT) == handler
        assert signal.getsignal(signal.SIGINT) == handler


@pytest.mark.parametrize("when", ["before handlers are back", "once they are back"])
def test_a_signal_as_dynamo_tells_of_the_end_leaves_nothing_counted(
    when: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch.manual_seed(0)
    model, x, pressed = Network(), torch.randn(2, 4), list[int]()
    call, release = through_torch_compile(model), HeldSignals.release

    def interrupted(self: HeldSignals) -> None:
        is_end = sys._getframe(2).f_code is DynamoSignals.end.__code__ and not pressed
        if is_end and when == "before handlers are back":
            pressed.append(signal.raise_signal(signal.SIGINT) or 1)
        release(self)
        if is_end and when == "once they are back":
            pressed.append(1)
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(HeldSignals, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(x)
    assert pressed == [1]
    assert not drives(DynamoSignals.end.__code__)
    torch._dynamo.reset()  # refuses to go on where a compilation has not come to its end
    for ours, theirs in zip(call(x), torch.autograd.grad(model(x), list(model.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs)
