"""What a step reads that an earlier micro-batch has left: told of, with the line, as the program reads it no more."""

from __future__ import annotations

import inspect
import re
from collections import Counter, deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch

from tests.lightning import keeping, runs
from tests.lightning.keeping import ByHand, Keeping

SEEN: list[torch.Tensor] = []
NAMES: set[str] = set()
RECENT: deque[torch.Tensor] = deque()
COUNTS: Counter[str] = Counter()
LAST: Any = None
CALLS = 0


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    forget()
    yield
    forget()


def forget() -> None:
    global LAST, CALLS
    LAST, CALLS = None, 0
    runs.LAST = None
    counts_in_a_function.__dict__.clear()
    for held in (SEEN, NAMES, RECENT, COUNTS, *(fills_a_default.__defaults__ or ())):
        held.clear()


fit = partial(keeping.fit, forget)


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
    assert f"{inspect.getsourcefile(Keeping)}:{first + len(lines) - 1}" in told[0]


@pytest.mark.parametrize("keep", [fills_a_global, fills_none, asks_a_set])
def test_what_is_read_in_manual_optimisation(keep: Any) -> None:
    _, told = fit("ipu", keep, kind=ByHand)
    assert len(told) == 1
    assert TOLD[keep] in told[0]
