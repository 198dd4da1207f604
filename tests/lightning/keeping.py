"""A module that keeps what its step makes wherever a test says, and its training with what was said of that."""

from __future__ import annotations

import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from tests.lightning.runs import Run

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [-2.0, 4.0], [1.0, 1.0], [2.0, 2.0]])


@dataclass
class Record:
    """An object whose fields a step fills."""

    last: torch.Tensor | None = None
    by_name: dict[str, Any] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)


class Part(nn.Module):
    """A part that keeps a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.last: torch.Tensor | None = None


class Keeping(L.LightningModule):
    """Keeps its loss somewhere; a hook reads it back."""

    def __init__(self, keep: Callable[[Any, torch.Tensor], Any], read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.linear, self.keep, self.read = nn.Linear(2, 2), keep, read
        self.losses: list[torch.Tensor] = []
        self.recent: deque[torch.Tensor] = deque(maxlen=2)
        self.box, self.pair = SimpleNamespace(last=None), (torch.zeros(()), 0)
        self.variable = variable()
        self.found: list[float] = []
        self.last: torch.Tensor | None = None
        self.part, self.record = Part(), Record()
        self.by_name: dict[str, Any] = {}
        self.nested: dict[str, Any] = {"losses": [], "inner": {"x": torch.zeros(())}}
        self.lists: list[list[torch.Tensor]] = [[], []]
        self.made: defaultdict[str, list[torch.Tensor]] = defaultdict(list)
        self.counts: defaultdict[str, int] = defaultdict(int)
        self.ordered: OrderedDict[str, torch.Tensor] = OrderedDict()
        self.names: set[str] = set()
        self._is_ready = False
        self.mean = MeanMetric()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.linear(batch[0]).square().mean()
        kept = self.keep(self, loss.detach())
        return loss if kept is None else loss * kept

    def on_train_batch_end(self, *_: Any) -> None:
        self.found.append(float(sum(self.read(self))))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def variable() -> Callable[..., Any]:
    held = None

    def call(value: Any = None) -> Any:
        nonlocal held
        held = value if value is not None else held
        return held

    return call


class ByHand(Keeping):
    """The same by manual optimisation, with numbers of the loop in its places."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizer: Any = self.optimizers()
        loss = self.linear(batch[0]).square().mean()
        kept = self.keep(self, loss.detach())
        self.by_name["index"] = batch_idx
        optimizer.zero_grad()
        self.manual_backward(loss if kept is None else loss * kept)
        optimizer.step()


def fit(
    forget: Callable[[], None], accelerator: str, keep: Any, read: Any = lambda module: [],
    kind: type[Keeping] = Keeping,
) -> tuple[Keeping, list[str]]:
    """Return a module that was trained, and what was said of what it keeps.

    Args:
        forget: Empties what the functions of the test keep outside of the module.
        accelerator: Of Lightning.
        keep: Called with the module and the loss of a step; its result multiplies the loss.
        read: Returns what a hook sums.
        kind: Class of the module.
    """
    forget()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = Run(
            accelerator, lambda: kind(keep, read), lambda: DataLoader(TensorDataset(X), batch_size=2), max_epochs=2,
        )
    return run.module, [str(one.message) for one in caught if "when the step was captured" in str(one.message)]
