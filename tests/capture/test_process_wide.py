"""What capture changes for the whole process: only for its own thread, one capture at a time, and never for good."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.eval_frame import OptimizedModule
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.distributions import Distribution
from torch.nn.modules import module as torch_module

import torchipu
import torchipu.poptorch as poptorch
from tests.releases import COMPILES_AT_ONCE
from torchipu.capture.process_wide import capturing, replaced

WATCHED: dict[str, Callable[[], Any]] = {
    "register_parameter": lambda: torch.nn.Module.register_parameter,
    "batch norm": lambda: torch.nn.modules.batchnorm._BatchNorm.forward,
    "is_tracing": lambda: torch.jit.is_tracing,  # type: ignore[attr-defined]
    "tolist": lambda: FunctionalTensor.tolist,
    "compiled modules": lambda: OptimizedModule.__call__,
    "lrn": lambda: "apply" in vars(torch.nn.modules.normalization._cross_map_lrn2d),  # type: ignore[attr-defined]
    "causal mask": lambda: torch.nn.modules.transformer._detect_is_causal_mask,
    "distributions": lambda: Distribution._validate_args,
    "hooks before": lambda: dict(torch_module._global_forward_pre_hooks),
    "hooks after": lambda: dict(torch_module._global_forward_hooks),
    "shapes": lambda: torch._dynamo.config.automatic_dynamic_shapes,
    "is_exporting": lambda: torch.compiler.is_exporting.__code__,
    "errors": lambda: torch._dynamo.config.suppress_errors,
}


def state() -> dict[str, Any]:
    return {name: look() for name, look in WATCHED.items()}


class Branching(torch.nn.Module):
    """Calls what capture stands in for."""

    def __init__(self, fails: bool = False) -> None:
        super().__init__()
        self.inner = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6))
        self.normalised = torch.nn.LocalResponseNorm(2)
        self.fails = fails

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x)
        spread = torch.distributions.Normal(y, 1.0).log_prob(y).mean()
        if self.fails:
            raise KeyError("of the user")
        return y.sum() + spread


def of_torchipu(model: torch.nn.Module) -> Callable[..., Any]:
    return torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 0.1))


def of_poptorch(model: torch.nn.Module) -> Callable[..., Any]:
    class Identity(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.model(x), "none")

    whole = Identity()
    return poptorch.trainingModel(whole, optimizer=torch.optim.SGD(whole.parameters(), 0.1))


def of_dynamo(model: torch.nn.Module) -> Callable[..., Any]:
    compiled = torch.compile(model, backend="ipu")
    return lambda x: compiled(x).backward()


DOORS = [of_torchipu, of_poptorch, of_dynamo]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("door", DOORS)
def test_a_capture_leaves_the_process_as_it_was(
    door: Callable[[torch.nn.Module], Callable[..., Any]], fails: bool,
) -> None:
    before, step = state(), door(Branching(fails))
    if fails:
        with pytest.raises(Exception, match="of the user"):
            step(torch.randn(4, 6))
    else:
        step(torch.randn(4, 6))
    found = state()
    if door is of_dynamo:
        found["distributions"] = before["distributions"]  # which Dynamo leaves switched off, whatever the backend
    assert found == before


@COMPILES_AT_ONCE
@pytest.mark.filterwarnings("error:torch.compile is ignored")
def test_threads_that_capture_through_all_doors_leave_nothing_behind_and_do_not_wait_for_each_other() -> None:
    before, failed, start = state(), list[BaseException](), threading.Barrier(6)

    def work(door: Callable[[torch.nn.Module], Callable[..., Any]]) -> None:
        try:
            start.wait(60)
            for _ in range(3):
                door(Branching())(torch.randn(4, 6))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(door,), daemon=True) for door in DOORS * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
    assert failed == []
    assert state() | {"distributions": None} == before | {"distributions": None}


def test_another_thread_sees_what_it_always_saw() -> None:
    entered, seen = threading.Event(), threading.Event()
    found: dict[str, Any] = {}  # set back before each run of forward, which captures
    elsewhere: list[tuple[bool, bool]] = []

    class Waiting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found.setdefault("captured", (poptorch.isRunningOnIpu(), torch.jit.is_tracing()))  # type: ignore[no-untyped-call]
            entered.set()
            assert seen.wait(60)
            return self.linear(x)

    def look() -> None:
        assert entered.wait(60)
        norm = torch.nn.BatchNorm1d(3, momentum=None)
        norm(torch.randn(5, 3))
        elsewhere.append((poptorch.isRunningOnIpu(), torch.jit.is_tracing()))  # type: ignore[no-untyped-call]
        seen.set()

    thread = threading.Thread(target=look)
    thread.start()
    poptorch.inferenceModel(Waiting())(torch.randn(1, 2))
    thread.join()
    assert (found, elsewhere) == ({"captured": (True, True)}, [(False, False)])


def test_only_the_thread_that_replaces_a_function_calls_the_other_one() -> None:
    class Owner:
        @staticmethod
        def answer() -> str:
            return "plain"

    results: list[str] = []
    with replaced(Owner, "answer", lambda: "ours"):
        thread = threading.Thread(target=lambda: results.append(Owner().answer()))
        thread.start()
        thread.join()
        assert (results, Owner.answer(), Owner().answer()) == (["plain"], "ours", "ours")
    assert Owner.answer() == "plain"
    assert isinstance(vars(Owner)["answer"], staticmethod)


def test_an_inherited_function_is_inherited_again_afterwards() -> None:
    class Base:
        def answer(self) -> str:
            return "plain"

    class Owner(Base):
        pass

    def fail(self: Any) -> str:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), replaced(Owner, "answer", fail):
        Owner().answer()
    assert "answer" not in vars(Owner)
    assert Owner().answer() == "plain"


def test_captures_wait_for_each_other() -> None:
    order: list[str] = []
    with capturing():
        thread = threading.Thread(target=lambda: _note(order))
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


def _note(order: list[str]) -> None:
    with capturing():
        order.append("second")


LOOK = """
import torch, torch._dynamo, logging, signal, sys, threading, warnings
def state():
    settings = torch._dynamo.config.shallow_copy_dict()
    return {
        "dynamo": {name: value for name, value in settings.items() if isinstance(value, (int, str, bool))},
        "module": sorted(vars(torch.nn.Module)),
        "threads": (threading.active_count(), torch.get_num_threads()),
        "signals": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)], "hook": sys.excepthook,
        "seed": torch.initial_seed(), "random": torch.get_rng_state().tolist(), "filters": list(warnings.filters),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "dtype": torch.get_default_dtype(),
        "denormals": (torch.tensor(1e-40) * 1).item(), "save": torch.save, "load": torch.load,
    }
before = state()
import torchipu
after = state()
print([name for name in before if before[name] != after[name]])
"""


def test_importing_torchipu_changes_no_behaviour_of_torch() -> None:
    made = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=300, check=False)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip() == "[]"


def test_weights_that_inductor_freezes_keep_their_names() -> None:
    """Dynamo names weights anew in every graph where Inductor freezes them, which captures cannot do with."""
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 3)).requires_grad_(False)
    words = torch.randint(10, (2, 5), generator=torch.Generator().manual_seed(1))
    with torch._inductor.config.patch(freezing=True), torch.no_grad():
        result = torchipu.InferenceStep(model)(words)
        assert torch._inductor.config.freezing
    torch.testing.assert_close(result, model(words))


def test_a_process_that_is_forked_after_a_capture_takes_gradients() -> None:
    """A build of torch for CUDA counts devices during a capture that are none: autograd would have their threads."""
    program = """
import os
import sys

import torch

import torchipu

class Loss(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x).sum()
model = Loss(2, 2)
torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1))(torch.ones(2, 2))
child = os.fork()
if child == 0:
    model(torch.ones(2, 2)).backward()
    os._exit(7)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 7, done.stderr
