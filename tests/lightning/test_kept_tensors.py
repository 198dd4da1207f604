"""Tensors that a step leaves outside of itself and hooks read back: those of each micro-batch, as on the CPU."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import re
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MeanMetric

from tests.lightning import runs
from tests.lightning.runs import QUIET, Run

X = torch.tensor([[1.0, 2.0], [3.0, -1.0], [0.5, 0.25], [-2.0, 4.0], [1.0, 1.0], [2.0, 2.0]])
SEEN: list[torch.Tensor] = []
NAMES: set[str] = set()
RECENT: deque[torch.Tensor] = deque()
TABLES: dict[int, torch.Tensor] = {}
COUNTS: Counter[str] = Counter()
LAST: Any = None
CALLS = 0
IS_READY = False


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


def in_an_emptied_list_of_an_object(module: Any, loss: torch.Tensor) -> None:
    module.record.losses.clear()
    module.record.losses.append(loss)


def in_an_emptied_global_list(module: Any, loss: torch.Tensor) -> None:
    SEEN.clear()
    SEEN.append(loss)


def in_an_emptied_deque(module: Any, loss: torch.Tensor) -> None:
    module.recent.clear()
    module.recent.append(loss)
    RECENT.clear()
    RECENT.extend([loss, loss])


def first_in_a_deque(module: Any, loss: torch.Tensor) -> None:
    RECENT.appendleft(loss)
    RECENT.pop()
    RECENT.append(loss)


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
    in_an_emptied_list_of_an_object: lambda module: module.record.losses,
    in_an_emptied_global_list: lambda module: SEEN, in_an_emptied_deque: lambda module: [*module.recent, *RECENT],
    in_an_attribute: lambda module: [module.last, module.part.last, module.record.last],
    in_order: lambda module: module.ordered.values(),
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    global LAST, CALLS, IS_READY
    LAST, CALLS, IS_READY = None, 0, False
    runs.LAST = None
    for held in (SEEN, NAMES, RECENT, TABLES, COUNTS, *(fills_a_default.__defaults__ or ())):
        held.clear()
    counts_in_a_function.__dict__.clear()


def fit(
    accelerator: str, keep: Any, read: Any = lambda module: [], kind: type[Keeping] = Keeping,
) -> tuple[Keeping, list[str]]:
    """Return a module that was trained, and what was said of what it keeps."""
    forget()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = Run(
            accelerator, lambda: kind(keep, read), lambda: DataLoader(TensorDataset(X), batch_size=2), max_epochs=2,
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


def fills_a_global(module: Any, loss: torch.Tensor) -> Any:
    global LAST
    before, LAST = LAST, loss
    return before


def fills_a_global_once(module: Any, loss: torch.Tensor) -> Any:
    global LAST
    if LAST is None:
        LAST = loss
    return LAST


def fills_a_variable(module: Any, loss: torch.Tensor) -> Any:
    before = module.variable()
    module.variable(loss)
    return before


def fills_a_namespace(module: Any, loss: torch.Tensor) -> Any:
    if module.box.last is None:
        module.box.last = loss
    return module.box.last


def asks_a_set(module: Any, loss: torch.Tensor) -> Any:
    is_first = "loss" not in module.names
    module.names.add("loss")
    return 1 if is_first else 2


def asks_a_global_set(module: Any, loss: torch.Tensor) -> Any:
    count = len(NAMES)
    NAMES.add("loss")
    return count + 1


def counts_a_deque(module: Any, loss: torch.Tensor) -> Any:
    RECENT.append(loss)
    return 2 if len(RECENT) > 3 else 1


def reads_a_deque(module: Any, loss: torch.Tensor) -> Any:
    module.recent.append(loss)
    return sum(module.recent)


def stacks_the_list(module: Any, loss: torch.Tensor) -> Any:
    module.losses.append(loss)
    return torch.stack(module.losses).sum()


def asks_whether_there_is_any(module: Any, loss: torch.Tensor) -> Any:
    module.losses += [loss]
    return (loss + 1) if module.losses.count(None) else module.losses.copy()[0]


def draws_once(module: Any, loss: torch.Tensor) -> Any:
    if module.part.last is None:
        module.part.last = torch.rand(())
    return module.part.last


def keeps_a_weight(module: Any, loss: torch.Tensor) -> Any:
    if "weight" not in module.by_name:
        module.by_name["weight"] = module.linear.weight.detach().sum()
    return module.by_name["weight"]


def remembers_that_it_ran(module: Any, loss: torch.Tensor) -> Any:
    is_first = "done" not in module.by_name
    module.by_name["done"] = True
    return 1 if is_first else 2


def raises_a_private_flag(module: Any, loss: torch.Tensor) -> Any:
    is_first = not module._is_ready
    module._is_ready = True
    return 1 if is_first else 2


def shifts(module: Any, loss: torch.Tensor) -> Any:
    if module.part.last is not None:
        module.record.last = module.part.last
    module.part.last = loss


def looks_and_empties(module: Any, loss: torch.Tensor) -> Any:
    count = len(module.nested["inner"])
    module.nested["inner"].clear()
    module.nested["inner"].update(one=loss, two=loss)
    return count


def counts_by_a_counter(module: Any, loss: torch.Tensor) -> Any:
    COUNTS["steps"] += 1
    return COUNTS["steps"]


def fills_a_default(module: Any, loss: torch.Tensor, kept: list[torch.Tensor] = []) -> Any:  # noqa: B006
    kept.append(loss)
    return len(kept)


def counts_in_a_function(module: Any, loss: torch.Tensor) -> Any:
    counts_in_a_function.count = getattr(counts_in_a_function, "count", 0) + 1  # type: ignore[attr-defined]
    return counts_in_a_function.count  # type: ignore[attr-defined]


def fills_another_file_s_global(module: Any, loss: torch.Tensor) -> Any:
    before, runs.LAST = runs.LAST, loss
    return before


TOLD: dict[Any, str] = {
    counts_by_a_counter: "COUNTS, a Counter,", fills_a_default: "kept, a list,",
    counts_in_a_function: "Attribute count of the function counts_in_a_function",
    fills_another_file_s_global: "The global LAST of tests.lightning.runs",
    looks_and_empties: "nested.inner",
    raises_a_private_flag: "_is_ready", shifts: "record.last",
    fills_a_global: "The global LAST", fills_a_global_once: "The global LAST",
    fills_a_variable: "held of an enclosing function", fills_a_namespace: "Attribute box.last of SimpleNamespace",
    asks_a_set: "names, a set,", asks_a_global_set: "NAMES, a set,", counts_a_deque: "RECENT, a deque,",
    reads_a_deque: "recent, a deque,", stacks_the_list: "losses", asks_whether_there_is_any: "losses",
    draws_once: "part.last", keeps_a_weight: "by_name.weight", remembers_that_it_ran: "by_name.done",
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


UNSEEN = (
    counts_by_a_counter, fills_a_default, fills_another_file_s_global, fills_a_global, fills_a_global_once,
    fills_a_variable, fills_a_namespace,
)
WITHOUT_LINES = (keeps_two, pair, global_number, shifts, counts_in_a_function, *UNSEEN)
WITH_LINES = [keep for keep in TOLD if keep not in WITHOUT_LINES]


@pytest.mark.parametrize("keep", WITH_LINES)
def test_the_line_that_reads_is_named(keep: Any) -> None:
    _, told = fit("ipu", keep)
    lines, first = inspect.getsourcelines(keep)
    named = re.search(rf"{re.escape(__file__)}:(\d+)", told[0])
    assert named is not None
    assert first < int(named[1]) < first + len(lines)


@pytest.mark.parametrize("keep", UNSEEN)
def test_where_reads_are_not_seen_the_line_is_that_which_computes_something_else(keep: Any) -> None:
    _, told = fit("ipu", keep)
    lines, first = inspect.getsourcelines(Keeping.training_step)
    assert f"{__file__}:{first + len(lines) - 1}" in told[0]


def mask_of_an_attribute(module: Any, loss: torch.Tensor) -> Any:
    if module.last is None:
        module.last = torch.full((), 2.0)
    return module.last


def mask_of_a_part(module: Any, loss: torch.Tensor) -> Any:
    if module.part.last is None:
        mask = torch.zeros(2, 2)
        mask[0] = 3.0
        module.part.last = mask.triu_().sum()
    return module.part.last


def mask_of_an_object(module: Any, loss: torch.Tensor) -> Any:
    if module.box.last is None:
        module.box.last = module.record.last = torch.ones_like(loss) * 2
    return module.box.last * module.record.last


def table(size: int) -> torch.Tensor:
    if size not in TABLES:
        TABLES[size] = torch.arange(1, size + 1).float().prod()
    return TABLES[size]


def table_of_a_global(module: Any, loss: torch.Tensor) -> Any:
    return table(3)


def table_of_the_module(module: Any, loss: torch.Tensor) -> Any:
    if 3 not in module.by_name:
        module.by_name[3] = torch.tensor([1.0, 2.0]).sum()
    return module.by_name[3] * module.by_name.setdefault("four", torch.ones(()))


@functools.lru_cache
def kept_table(size: int) -> torch.Tensor:
    return torch.arange(1, size + 1).float().prod()


def table_of_a_function_that_keeps_it(module: Any, loss: torch.Tensor) -> Any:
    return kept_table(3)


def global_mask(module: Any, loss: torch.Tensor) -> Any:
    global LAST
    if LAST is None:
        LAST = torch.full((), 2.0)
    return LAST


def mask_in_a_list(module: Any, loss: torch.Tensor) -> Any:
    if not module.losses:
        module.losses.append(torch.full((), 2.0))
    if not SEEN:
        SEEN.append(torch.full((), 3.0))
    return module.losses[0] * SEEN[0]


def names_in_a_set(module: Any, loss: torch.Tensor) -> Any:
    if "loss" not in NAMES:
        NAMES.add("loss")
    module.names.add("loss")
    return len(NAMES | module.names)


def flag(module: Any, loss: torch.Tensor) -> Any:
    global IS_READY
    if not IS_READY:
        IS_READY = True
    return None


def mask_beside_a_metric(module: Any, loss: torch.Tensor) -> Any:
    module.by_name["mean"] = module.mean(loss)
    return global_mask(module, loss)


MADE_ONCE: dict[Any, Callable[[Any], Any]] = {
    mask_of_an_attribute: lambda module: [module.last], mask_of_a_part: lambda module: [module.part.last],
    mask_of_an_object: lambda module: [module.box.last, module.record.last],
    table_of_a_global: lambda module: TABLES.values(), table_of_the_module: lambda module: module.by_name.values(),
    table_of_a_function_that_keeps_it: lambda module: [kept_table(3)],
    mask_beside_a_metric: lambda module: module.by_name.values(), global_mask: lambda module: [LAST],
    mask_in_a_list: lambda module: [*module.losses, *SEEN],
    names_in_a_set: lambda module: [len(NAMES), len(module.names)], flag: lambda module: [IS_READY],
}


@pytest.mark.parametrize("keep", MADE_ONCE)
def test_nothing_is_said_of_constants_that_are_made_once(keep: Any) -> None:
    cpu, _ = fit("cpu", keep, MADE_ONCE[keep])
    ours, told = fit("ipu", keep, MADE_ONCE[keep])
    assert told == []
    assert ours.found == pytest.approx(cpu.found, rel=1e-4)
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)


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


@pytest.mark.parametrize("keep", [mask_of_a_part, global_mask, names_in_a_set])
def test_constants_of_manual_optimisation(keep: Any) -> None:
    def read(module: Any) -> Any:
        return [*MADE_ONCE[keep](module), module.by_name["index"]]

    cpu, _ = fit("cpu", keep, read, ByHand)
    ours, told = fit("ipu", keep, read, ByHand)
    assert told == []
    assert ours.found == pytest.approx(cpu.found, rel=1e-4)
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)


@pytest.mark.parametrize("keep", [fills_a_global, fills_none, asks_a_set])
def test_what_is_read_in_manual_optimisation(keep: Any) -> None:
    _, told = fit("ipu", keep, kind=ByHand)
    assert len(told) == 1
    assert TOLD[keep] in told[0]


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


def copies(module: Any, loss: torch.Tensor) -> Any:
    module.last, module.pair = module.recent, module.names
    for one in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        assert type(one(module.record)) is Record
        assert type(one(module.part)) is Part
        mappings = (module.made, module.counts, module.ordered, module.by_name)
        for held in (*mappings, module.recent, module.names, module.lists):
            assert type(one(held)).__module__ in ("builtins", "collections")
    assert type(copy.deepcopy(module.record).losses) is list
    for kind, made in (
        (deque, module.recent.copy()), (deque, module.recent + module.recent), (set, module.names.copy()),
        (set, module.names | module.names), (list, module.losses * 2), (dict, module.by_name.copy()),
    ):
        assert type(made) is kind


def copies_and_fails(module: Any, loss: torch.Tensor) -> Any:
    copies(module, loss)
    raise ArithmeticError("the step's own")


@pytest.mark.parametrize("keep", [copies, copies_and_fails])
def test_copies_that_a_step_makes_are_of_plain_classes(keep: Any) -> None:
    module = Keeping(keep, lambda module: [])
    trainer = L.Trainer(accelerator="ipu", devices=1, max_epochs=1, **QUIET)
    loader = DataLoader(TensorDataset(X), batch_size=2)
    with pytest.raises(ArithmeticError, match="own") if keep is copies_and_fails else contextlib.nullcontext():
        trainer.fit(module, loader)
    for one in (module, copy.deepcopy(module)):
        held = (one, one.record, one.part, one.recent, one.names, one.losses, one.record.losses, one.made)
        assert [type(each) for each in held] == [Keeping, Record, Part, deque, set, list, list, defaultdict]
    assert (type(module.last), type(module.pair)) == ((deque, set) if keep is copies else (type(None), tuple))


def test_objects_that_are_watched_are_of_their_class() -> None:
    cpu, _ = fit("cpu", compares_objects, KEPT[in_a_list])
    ours, _ = fit("ipu", compares_objects, KEPT[in_a_list])
    assert type(ours.record) is Record
    assert type(ours.part) is Part
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)
