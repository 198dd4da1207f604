"""Processes that differ, and processes that leave: what each of them runs in ``test_handshake``."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import torchipu
import torchipu.step.replicated
from torchipu.errors import IpuError

ROWS = 4


class Regressor(nn.Module):
    """A layer and its mean squared error."""

    def __init__(self, hidden: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


def step_of(model: nn.Module | None = None, *, lr: float = 0.1, kind: Any = torch.optim.SGD, **options: Any) -> Any:
    model = model or Regressor()
    return torchipu.TrainStep(model, kind(model.parameters(), lr=lr), torchipu.Options(**options))


def told(call: Callable[[], object], step: Any) -> dict[str, Any]:
    """Call, and return the error with whether the weights are as before, and how long it took."""
    before = {name: value.clone() for name, value in step.model.state_dict().items()}
    begun = time.monotonic()
    try:
        call()
        error: dict[str, Any] = {"error": "", "text": ""}
    except IpuError as raised:
        error = {"error": type(raised).__name__, "text": str(raised), "field": getattr(raised, "field", None)}
    same = all(torch.equal(value, before[name]) for name, value in step.model.state_dict().items())
    return error | {"same": same, "seconds": time.monotonic() - begun}


def x(rows: int = ROWS, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(rows, 6, dtype=dtype)


def differ(rank: int, size: int, argument: str) -> dict[str, Any]:
    """Let rank 1 differ in one thing after another, and then in nothing."""
    other = rank == 1
    found: dict[str, Any] = {}
    cases: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
        "shape": (step_of, lambda step: step(x(8 if other else 4))),
        "type": (lambda: step_of(Regressor().half() if other else None), lambda step: step(
            x(dtype=torch.half if other else torch.float32))),
        "accumulation": (lambda: step_of(gradient_accumulation=2 if other else 1), lambda step: step(x())),
        "replicas": (lambda: step_of(replicas=2 if other else 1), lambda step: step(x())),
        "seed": (lambda: step_of(seed=3 + rank), lambda step: step(x())),
        "model": (lambda: step_of(Regressor(7 if other else 6)), lambda step: step(x())),
        "optimiser": (lambda: step_of(kind=torch.optim.Adam if other else torch.optim.SGD), lambda step: step(x())),
        "learning rate": (lambda: step_of(lr=0.2 if other else 0.1), lambda step: step(x())),
        "frozen": (lambda: step_of(frozen(Regressor()) if other else None), lambda step: step(x())),
    }
    for name, (make, call) in cases.items():
        step = make()
        found[name] = told(lambda call=call, step=step: call(step), step)

    step = step_of()
    step.facts["length of the dataset"] = 100 - rank
    found["dataset"] = told(lambda: step(x()), step)

    torchipu.step.replicated.__version__ = f"0.{rank}"
    step = step_of()
    found["version"] = told(lambda: step(x()), step)
    torchipu.step.replicated.__version__ = torchipu.__version__

    step = step_of()
    step(x())
    found["one compiles anew"] = told(lambda: step(x(8 if other else 4)), step)
    found["later learning rate"] = told(lambda: (changed(step, 0.3 if other else 0.1), step(x())), step)
    changed(step, 0.1)
    found["all refuse"] = told(lambda: step_of(gradient_accumulation=3)(x()), step)
    found["nothing"] = told(lambda: step(x()), step)
    return found


def frozen(model: nn.Module) -> nn.Module:
    next(model.parameters()).requires_grad_(False)
    return model


def changed(step: Any, lr: float) -> None:
    step.optimizer.param_groups[0]["lr"] = lr


class Labelled(nn.Module):
    """Stops at a label that there is not."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(6, 5)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.layer(x), y)


def leave(rank: int, size: int, argument: str) -> dict[str, Any]:
    """Let rank 1 stop at a bad label in the middle of a run; then neither can go on."""
    step = step_of(Labelled(), gradient_accumulation=2)
    good = torch.zeros(ROWS, dtype=torch.int64)
    step(x(), good)
    bad = torch.full((ROWS,), 99) if rank == 1 else good
    first = told(lambda: step(x(), bad), step)
    return {"first": first, "second": told(lambda: step(x(), good), step)}


def freeze(rank: int, size: int, argument: str) -> dict[str, Any]:
    """Let rank 1 freeze before its second call."""
    step = step_of(Labelled(), process_group=dist.new_group(timeout=timedelta(seconds=3)))
    good = torch.zeros(ROWS, dtype=torch.int64)
    step(x(), good)
    if rank == 1:
        time.sleep(8)
        return {}
    return told(lambda: step(x(), good), step)
