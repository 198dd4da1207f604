"""Threads that compile at once, through any door, each get what they would get alone and leave torch as it was."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx import _symbolic_trace

import torchipu
import torchipu.poptorch as poptorch
from tests.releases import COMPILES_AT_ONCE, SETTINGS_OF_THREADS
from torchipu import backend


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


class Loss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        returned: torch.Tensor = self.linear(x).square().mean()
        return returned


def gradients(model: torch.nn.Module, loss: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, list(model.parameters()))


def train_through_dynamo(dynamic: bool | None = None, name: str = "ipu") -> None:
    model = Loss()
    compiled = torch.compile(model, backend=name, dynamic=dynamic)
    for length in (4, 5):
        x = torch.randn(length, 2, 6)
        torch.testing.assert_close(gradients(model, compiled(x)), gradients(model, model(x)))


def train_in_steps() -> None:
    model, x = Loss(), torch.randn(4, 2, 6)
    expected = model(x)
    loss = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))(x)
    torch.testing.assert_close(loss, expected)


def infer_in_steps() -> None:
    model = Loss()
    step = torchipu.InferenceStep(model)
    for length in (3, 4):
        x = torch.randn(length, 2, 6)
        torch.testing.assert_close(step(x).reshape(1), model(x).reshape(1))


def infer_with_poptorch() -> None:
    model, x = Loss(), torch.randn(4, 2, 6)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x).reshape(1), model(x).reshape(1))


DOORS: dict[str, Callable[[], None]] = {
    "compile": train_through_dynamo, "any size": lambda: train_through_dynamo(True),
    "another backend": lambda: train_through_dynamo(True, "aot_eager"), "training": train_in_steps,
    "inference": infer_in_steps, "poptorch": infer_with_poptorch,
}


def at_once(jobs: Sequence[Callable[[], object]]) -> list[BaseException]:
    """Run jobs in a thread each, begun together; return what they raised."""
    failed, start = list[BaseException](), threading.Barrier(len(jobs))

    def work(job: Callable[[], object]) -> None:
        try:
            start.wait(60)
            job()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
    return failed


def assert_compiles_still() -> None:
    """Check that Dynamo takes a function, with whatever backend."""
    called = []

    def note(graph: torch.fx.GraphModule, _: Any) -> torch.fx.GraphModule:
        called.append(graph)
        return graph

    assert not _symbolic_trace._is_fx_tracing_flag
    assert torch.compile(lambda x: x * 2, backend=note)(torch.ones(3)).tolist() == [2, 2, 2]
    assert len(called) == 1


@COMPILES_AT_ONCE
@pytest.mark.filterwarnings("error:torch.compile is ignored")
@pytest.mark.parametrize("jobs", [
    ["compile"] * 3, ["any size", "another backend"] * 2, list(DOORS),
], ids=", ".join)
def test_what_is_compiled_at_once_is_right_and_leaves_torch_as_it_was(jobs: list[str]) -> None:
    before = torch._dynamo.config.get_config_copy()
    assert at_once([DOORS[job] for job in jobs]) == []
    assert torch._dynamo.config.get_config_copy() == before
    assert_compiles_still()


@COMPILES_AT_ONCE
@pytest.mark.filterwarnings("error:torch.compile is ignored")
def test_compiled_functions_run_while_others_are_compiled() -> None:
    compiled = torch.compile(lambda x: (x * 3).relu(), backend="ipu", fullgraph=True)
    compiled(torch.ones(4, 4))
    graphs, done = backend.COUNTS.graphs, threading.Event()
    wrong = list[torch.Tensor]()
    calls = [0]

    def call() -> None:
        while not done.is_set():
            x = torch.full((4, 4), float(calls[0] % 7 - 3))
            if not torch.equal(compiled(x), (x * 3).relu()):
                wrong.append(x)
            calls[0] += 1

    def compile_others() -> None:
        try:
            for door in ("any size", "training", "poptorch"):
                DOORS[door]()
        finally:
            done.set()

    assert at_once([call, compile_others]) == []
    assert wrong == []
    assert calls[0] > 0
    assert backend.COUNTS.graphs - graphs == 1


@SETTINGS_OF_THREADS
def test_threads_that_call_with_many_sizes_share_programs_that_come_and_go() -> None:
    compiled = torch.compile(
        lambda x: (x * x.shape[0]).sum(), backend="ipu", dynamic=True, options={"plan_cache_bytes": 1},
    )
    compiled(torch.ones(9))

    def call() -> None:
        for size in (2, 3, 4, 2):
            assert compiled(torch.ones(size)).item() == size * size

    with pytest.warns(UserWarning, match=r"\d sets of sizes take more than plan_cache_bytes=1"):
        assert at_once([call] * 3) == []


@SETTINGS_OF_THREADS
def test_threads_of_one_size_compile_it_once() -> None:
    compiled = torch.compile(lambda x: x * x.shape[0], backend="ipu", dynamic=True)
    compiled(torch.ones(9))
    before = backend.COUNTS.programs
    assert at_once([lambda: compiled(torch.ones(4)).sum().item()] * 4) == []
    assert backend.COUNTS.programs == before + 1


def test_a_backward_is_compiled_in_another_thread_than_its_forward() -> None:
    model, x = Loss(), torch.randn(4, 2, 6)
    loss = torch.compile(model, backend="ipu", fullgraph=True)(x)
    found: list[tuple[torch.Tensor, ...]] = []
    assert at_once([lambda: found.append(gradients(model, loss)), train_in_steps]) == []
    torch.testing.assert_close(found[0], gradients(model, model(x)))


COLD = """
import sys, threading, torch
def compiled():
    model = torch.nn.GRU(4, 3)
    torch.compile(model, backend="ipu", fullgraph=True)(torch.randn(2, 1, 4))[0].sum().backward()
def step():
    import torchipu
    torchipu.InferenceStep(torch.nn.GRU(4, 3))(torch.randn(2, 1, 4))
def pop():
    import poptorch
    poptorch.inferenceModel(torch.nn.Linear(4, 3))(torch.randn(2, 4))
start, done = threading.Barrier(5), []
def work(job):
    start.wait()
    job()
    done.append(job.__name__)
threads = [threading.Thread(target=work, args=(job,)) for job in (compiled, compiled, step, step, pop)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(sorted(done))
"""


@COMPILES_AT_ONCE
def test_threads_are_the_first_to_use_torchipu() -> None:
    made = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, timeout=300, check=False)
    assert made.stdout.strip() == "['compiled', 'compiled', 'pop', 'step', 'step']", made.stderr


def test_recurrent_layers_are_traced_in_every_thread() -> None:
    compiled = torch.compile(torch.nn.GRU(4, 3), backend="ipu", fullgraph=True)
    assert at_once([lambda: compiled(torch.randn(2, 1, 4))[0].sum().item()]) == []
