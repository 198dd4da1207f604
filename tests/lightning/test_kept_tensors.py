"""Tensors that a step leaves outside of itself and hooks read back: those of each micro-batch, as on the CPU."""

from __future__ import annotations

import inspect
import re
import warnings
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tests.lightning.runs import Run

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [-2.0, 4.0], [1.0, 1.0], [2.0, 2.0]])
SEEN: list[torch.Tensor] = []
LAST: Any = None
CALLS = 0


@dataclass
class Record:
    """An object whose fields a step fills."""

    last: torch.Tensor | None = None
    by_name: dict[str, Any] = field(default_factory=dict)


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


def in_a_list(module: Any, loss: torch.Tensor) -> None:
    module.losses.append(loss)


def in_an_emptied_list(module: Any, loss: torch.Tensor) -> None:
    module.losses.clear()
    module.losses.append(loss)


def in_place_of_all(module: Any, loss: torch.Tensor) -> None:
    module.losses[:] = [loss, loss * 2]


def in_a_deque(module: Any, loss: torch.Tensor) -> None:
    module.recent.append(loss)


def in_an_object(module: Any, loss: torch.Tensor) -> None:
    module.box.last = loss


def in_a_variable(module: Any, loss: torch.Tensor) -> None:
    module.variable(loss)


def in_a_global_list(module: Any, loss: torch.Tensor) -> None:
    SEEN.append(loss)


def in_a_global(module: Any, loss: torch.Tensor) -> None:
    global LAST
    LAST = loss


def in_a_dict(module: Any, loss: torch.Tensor) -> None:
    module.by_name["loss"] = loss
    module.by_name.update(twice=module.by_name["loss"] * 2)


def in_an_emptied_dict(module: Any, loss: torch.Tensor) -> None:
    module.nested["inner"].clear()
    module.nested["inner"]["loss"] = loss


def in_place_of_a_key(module: Any, loss: torch.Tensor) -> None:
    module.nested["inner"].pop("x", None)
    module.nested["inner"]["loss"] = loss


def in_a_list_emptied_within_a_dict(module: Any, loss: torch.Tensor) -> None:
    module.nested["losses"].clear()
    module.nested["losses"].append(loss)


def in_a_list_emptied_within_a_list(module: Any, loss: torch.Tensor) -> None:
    del module.lists[1][:]
    module.lists[1].extend([loss, loss])


def in_a_list_within_a_dict(module: Any, loss: torch.Tensor) -> None:
    module.nested["losses"].append(loss)


def in_an_attribute(module: Any, loss: torch.Tensor) -> None:
    module.last = module.part.last = module.record.last = loss


def in_order(module: Any, loss: torch.Tensor) -> None:
    module.ordered["loss"] = loss
    module.ordered.move_to_end("loss")


KEPT: dict[Callable[[Any, torch.Tensor], Any], Callable[[Any], Any]] = {
    in_a_list: lambda module: module.losses, in_an_emptied_list: lambda module: module.losses,
    in_place_of_all: lambda module: module.losses, in_a_deque: lambda module: module.recent,
    in_an_object: lambda module: [module.box.last], in_a_variable: lambda module: [module.variable()],
    in_a_global_list: lambda module: SEEN, in_a_global: lambda module: [LAST],
    in_a_dict: lambda module: module.by_name.values(),
    in_an_emptied_dict: lambda module: module.nested["inner"].values(),
    in_place_of_a_key: lambda module: module.nested["inner"].values(),
    in_a_list_emptied_within_a_dict: lambda module: module.nested["losses"],
    in_a_list_emptied_within_a_list: lambda module: module.lists[1],
    in_a_list_within_a_dict: lambda module: module.nested["losses"],
    in_an_attribute: lambda module: [module.last, module.part.last, module.record.last],
    in_order: lambda module: module.ordered.values(),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    global LAST, CALLS
    LAST, CALLS = None, 0
    SEEN.clear()


def fit(accelerator: str, keep: Any, read: Any = lambda module: []) -> tuple[Keeping, list[str]]:
    """Return a module that was trained, and what was said of what it keeps."""
    forget()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = Run(
            accelerator, lambda: Keeping(keep, read), lambda: DataLoader(TensorDataset(X), batch_size=2), max_epochs=2,
        )
    return run.module, [str(one.message) for one in caught if "when the step was captured" in str(one.message)]


@pytest.mark.parametrize("keep", KEPT)
def test_what_a_step_keeps_is_there_for_hooks(keep: Any) -> None:
    cpu, _ = fit("cpu", keep, KEPT[keep])
    ours, told = fit("ipu", keep, KEPT[keep])
    assert ours.found == pytest.approx(cpu.found, rel=1e-4)
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)
    assert told == []


def reads_the_list(module: Any, loss: torch.Tensor) -> Any:
    module.losses.append(loss)
    return sum(module.losses)


def counts_the_list(module: Any, loss: torch.Tensor) -> Any:
    module.losses.append(loss)
    return len(module.losses)


def keeps_two(module: Any, loss: torch.Tensor) -> None:
    module.losses.append(loss)
    if len(module.losses) > 2:
        module.losses.pop(0)


def pair(module: Any, loss: torch.Tensor) -> Any:
    total, count = module.pair
    module.pair = (total + loss, count + 1)
    return module.pair[0] / module.pair[1]


def global_number(module: Any, loss: torch.Tensor) -> Any:
    global CALLS
    CALLS += 1
    return CALLS


def gets(module: Any, loss: torch.Tensor) -> Any:
    before = module.by_name.get("loss")
    module.by_name["loss"] = loss
    return before


def asks(module: Any, loss: torch.Tensor) -> Any:
    is_first = "loss" not in module.by_name
    module.by_name["loss"] = loss
    return 1 if is_first else 2


def sets_once(module: Any, loss: torch.Tensor) -> Any:
    return module.by_name.setdefault("loss", loss)


def tries(module: Any, loss: torch.Tensor) -> Any:
    try:
        return module.by_name["loss"]
    except KeyError:
        module.by_name["loss"] = loss
    return None


def counts_keys(module: Any, loss: torch.Tensor) -> Any:
    count = len(module.by_name)
    module.by_name["loss"] = loss
    return count + 1


def makes_a_list(module: Any, loss: torch.Tensor) -> Any:
    module.made["losses"].append(loss)


def counts_by_name(module: Any, loss: torch.Tensor) -> Any:
    module.counts["steps"] += 1
    return module.counts["steps"]


def fills_none(module: Any, loss: torch.Tensor) -> Any:
    before, module.last = module.last, loss
    return before


def makes_an_attribute(module: Any, loss: torch.Tensor) -> Any:
    is_first = not hasattr(module, "newest")
    module.newest = loss
    return 1 if is_first else 2


def fills_a_part(module: Any, loss: torch.Tensor) -> Any:
    if module.part.last is None:
        module.part.last = loss
    return module.part.last


def fills_a_field(module: Any, loss: torch.Tensor) -> Any:
    before = getattr(module.record, "last", None)
    module.record.last = loss
    return before


def counts_within_a_dict(module: Any, loss: torch.Tensor) -> Any:
    module.nested["losses"].append(loss)
    return len(module.nested["losses"])


TOLD: dict[Any, str] = {
    gets: "by_name.loss", asks: "by_name.loss", sets_once: "by_name.loss", tries: "by_name.loss",
    counts_keys: "by_name.loss", makes_a_list: "made.losses", counts_by_name: "counts.steps", fills_none: "last",
    makes_an_attribute: "newest", fills_a_part: "part.last", fills_a_field: "record.last",
    counts_within_a_dict: "nested.losses",
    reads_the_list: "losses", counts_the_list: "losses", keeps_two: "losses", pair: "pair", global_number: "CALLS",
}


@pytest.mark.parametrize("keep", TOLD)
def test_what_the_next_micro_batch_would_read_is_told_of(keep: Any) -> None:
    _, told = fit("ipu", keep)
    assert len(told) == 1
    assert TOLD[keep] in told[0]
    assert "Keeping" in told[0] or "Record" in told[0]


WITH_LINES = [keep for keep in TOLD if keep not in (keeps_two, pair, global_number)]


@pytest.mark.parametrize("keep", WITH_LINES)
def test_the_line_that_reads_is_named(keep: Any) -> None:
    _, told = fit("ipu", keep)
    lines, first = inspect.getsourcelines(keep)
    named = re.search(rf"{re.escape(__file__)}:(\d+)", told[0])
    assert named is not None
    assert first < int(named[1]) < first + len(lines)


def reads_its_own(module: Any, loss: torch.Tensor) -> Any:
    module.losses.clear()
    module.losses.append(loss)
    return sum(module.losses) + module.losses[-1] + len(module.losses)


def test_nothing_is_said_of_what_a_step_reads_of_its_own() -> None:
    cpu, _ = fit("cpu", reads_its_own, KEPT[in_a_list])
    ours, told = fit("ipu", reads_its_own, KEPT[in_a_list])
    assert told == []
    assert ours.found == pytest.approx(cpu.found, rel=1e-4)
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)


def compares_objects(module: Any, loss: torch.Tensor) -> Any:
    module.losses.append(loss)
    is_new = module.record == Record() and module.record.__class__ is Record
    return loss * (1.0 if is_new and isinstance(module.part, Part) else 3.0)


def test_objects_that_are_watched_are_of_their_class() -> None:
    cpu, _ = fit("cpu", compares_objects, KEPT[in_a_list])
    ours, _ = fit("ipu", compares_objects, KEPT[in_a_list])
    assert type(ours.record) is Record
    assert type(ours.part) is Part
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)
