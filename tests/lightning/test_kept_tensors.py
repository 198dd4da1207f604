"""Tensors that a step leaves outside of itself and hooks read back: those of each micro-batch, as on the CPU."""

from __future__ import annotations

import contextlib
import copy
import pickle
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import lightning as L
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from tests.lightning import keeping
from tests.lightning.keeping import Keeping, Part, Record, X
from tests.lightning.runs import QUIET

SEEN: list[torch.Tensor] = []
RECENT: deque[torch.Tensor] = deque()
LAST: Any = None


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
    global LAST
    LAST = None
    for held in (SEEN, RECENT):
        held.clear()


fit = partial(keeping.fit, forget)


@pytest.mark.parametrize("keep", KEPT)
def test_what_a_step_keeps_is_there_for_hooks(keep: Any) -> None:
    cpu, _ = fit("cpu", keep, KEPT[keep])
    ours, told = fit("ipu", keep, KEPT[keep])
    assert ours.found == pytest.approx(cpu.found, rel=1e-4)
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)
    assert told == []


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
