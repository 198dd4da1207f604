"""Constants that a step makes once and keeps: nothing is said of them, and they are those of the CPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
import torch

from tests.lightning import keeping
from tests.lightning.keeping import ByHand, forgetting

SEEN: list[torch.Tensor] = []
NAMES: set[str] = set()
TABLES: dict[int, torch.Tensor] = {}
LAST: Any = None
IS_READY = False


def forget() -> None:
    global LAST, IS_READY
    LAST, IS_READY = None, False
    for held in (SEEN, NAMES, TABLES):
        held.clear()


fresh = forgetting(forget)
fit = functools.partial(keeping.fit, forget)


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


@pytest.mark.parametrize("keep", [mask_of_a_part, global_mask, names_in_a_set])
def test_constants_of_manual_optimisation(keep: Any) -> None:
    def read(module: Any) -> Any:
        return [*MADE_ONCE[keep](module), module.by_name["index"]]

    cpu, _ = fit("cpu", keep, read, ByHand)
    ours, told = fit("ipu", keep, read, ByHand)
    assert told == []
    assert ours.found == pytest.approx(cpu.found, rel=1e-4)
    torch.testing.assert_close(ours.linear.weight, cpu.linear.weight)


class Shade(Enum):
    DARK = 1


@pytest.mark.parametrize(
    "value",
    [
        torch.float16, torch.device("cpu"), torch.strided, torch.contiguous_format, torch.Size([2]), Shade.DARK,
        range(3), int, (torch.int8, "name", None), b"bytes",
    ],
    ids=repr,
)
def test_each_micro_batch_leaves_values_that_nobody_can_change(value: Any) -> None:
    left: list[Any] = []
    attributes: set[Any] = set()

    def keep(module: Any, loss: torch.Tensor) -> None:
        left.append(value)
        attributes.add(value)
        module.box.last = value

    def of(accelerator: str) -> tuple[list[Any], set[Any], Any, list[str]]:
        left.clear()
        attributes.clear()
        module, told = fit(accelerator, keep, lambda module: [])
        return list(left), set(attributes), module.box.last, told

    assert of("ipu") == of("cpu")
