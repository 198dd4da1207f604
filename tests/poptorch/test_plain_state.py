"""What forward leaves in plain attributes of a model, though capturing runs it several times; judged by eager runs."""

from __future__ import annotations

import copy
import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from tqdm import tqdm

import torchipu.poptorch as poptorch
from tests.releases import LEFT_TENSORS


class Remembering(nn.Module):
    """Keeps, in the way that a test says, what earlier runs of its forward did."""

    def __init__(self, remember: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.remember = remember
        self.inner = nn.Module()
        self.inner.calls = 0
        self.kept: list[torch.Tensor] = []
        self.by_name: dict[str, torch.Tensor] = {"start": torch.full((2,), 5.0)}
        self.names: set[str] = {"first"}
        self.tensors = [torch.full((2,), 7.0)]
        self.state: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.remember(self, x)


def count(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.inner.calls += 1
    return x * model.inner.calls


def append(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.kept.append(x + 1)
    return torch.cat(model.kept)


def append_to_tensors(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.tensors.append(x * 2)
    return torch.cat(model.tensors)


def name(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.names.add(str(len(model.names)))
    model.by_name[str(len(model.by_name))] = x * 3
    return torch.stack([*model.by_name.values()]).sum(0) * len(model.names)


def carry(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.state = x if model.state is None else model.state + x
    return model.state + 0


def begin(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.offset = x.sum() if not hasattr(model, "offset") else model.offset + 100
    return x + model.offset


def replace_in_list(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.tensors[0] = model.tensors[0] * 2 + x
    return model.tensors[0] + 0


def replace_by_name(model: Any, x: torch.Tensor) -> torch.Tensor:
    model.by_name["start"] = model.by_name["start"] + 1
    return x * model.by_name["start"]


@pytest.mark.parametrize("remember", [
    count, append, append_to_tensors, name, carry, begin, replace_in_list, replace_by_name,
])
def test_forward_sees_the_attributes_of_its_first_run(remember: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
    model = Remembering(remember)
    twin = copy.deepcopy(model)
    x = torch.tensor([1.0, 2.0])
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), twin(x))


@pytest.mark.parametrize("remember", [append, append_to_tensors, carry, begin, replace_in_list, replace_by_name])
def test_tensors_without_values_do_not_stay_in_the_model(
    remember: Callable[[Any, torch.Tensor], torch.Tensor],
) -> None:
    model = Remembering(remember)
    twin = copy.deepcopy(model)
    x = torch.tensor([1.0, 2.0])
    poptorch.inferenceModel(model)(x)
    torch.testing.assert_close(model(x), twin(x))  # on the host it has not run before


def test_numbers_that_forward_changes_stay_changed_by_one_run() -> None:
    model = Remembering(count)
    poptorch.inferenceModel(model)(torch.ones(2))
    assert model.inner.calls == 1


def test_what_forward_keeps_outside_the_model_is_set_back_too() -> None:
    kept: list[torch.Tensor] = []

    def forward(x: torch.Tensor) -> torch.Tensor:
        kept.append(x + 1)
        return torch.cat(kept)

    executor = poptorch.inferenceModel(forward)
    for x in (torch.ones(2), torch.zeros(2)):
        torch.testing.assert_close(executor(x), x + 1)
    assert kept == []


def test_counters_defaults_and_attributes_of_functions_are_set_back_too() -> None:
    counts: Counter[str] = Counter()

    def remembering(x: torch.Tensor, kept: list[torch.Tensor] = []) -> torch.Tensor:  # noqa: B006
        kept.append(x + 1)
        counts["runs"] += 1
        remembering.runs = getattr(remembering, "runs", 0) + 1  # type: ignore[attr-defined]
        return torch.cat(kept) * counts["runs"] * remembering.runs  # type: ignore[attr-defined]

    executor = poptorch.inferenceModel(lambda x: remembering(x))
    for x in (torch.ones(2), torch.zeros(2)):
        torch.testing.assert_close(executor(x), x + 1)
    assert remembering.__defaults__ == ([],)
    assert counts == {"runs": 1}
    assert vars(remembering) == {"runs": 1}


class Slotted:
    """Holds what nobody finds who looks through attributes."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept: list[torch.Tensor] = []


@LEFT_TENSORS
@pytest.mark.parametrize("folder", ["users", "lib/python3.11/site-packages", "lib/python3/dist-packages"])
def test_classes_of_libraries_keep_what_they_got_in_the_meantime(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"bars_{folder[-5:].replace('-', '_')}"
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / folder / f"{name}.py").write_text("class Bar:\n    pass\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / folder)
    bar = importlib.import_module(name).Bar

    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(bar, "lock"):
                bar.lock = []
            bar.lock.append(1)
            return x * len(bar.lock)

    given = poptorch.inferenceModel(Named())(torch.ones(2))
    is_of_library = folder != "users"
    # What a library's class keeps is its own affair: forward finds what its first run left there.
    assert (given.tolist() == [1, 1]) is not is_of_library
    assert (len(bar.lock) == 1) is not is_of_library


@pytest.mark.parametrize("bar", [tqdm, type("Ours", (tqdm,), {})], ids=["tqdm", "a class of the user's"])
def test_a_bar_of_tqdm_that_is_shown_while_forward_runs_goes_on(bar: type[tqdm]) -> None:
    class Named(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in bar(()) if len(x) > 2 else ():
                x = x + 1
            return x * 2

    for lock in [name for name in vars(tqdm) if name == "_lock"]:
        delattr(tqdm, lock)  # as where no bar was shown yet
    with tqdm(total=3, mininterval=0) as shown:
        assert poptorch.inferenceModel(Named())(torch.ones(2)).tolist() == [2, 2]
        shown.update()
    assert shown.n == 1


def test_a_tensor_kept_where_nobody_looks_is_refused() -> None:
    held = Slotted()

    def forward(x: torch.Tensor) -> torch.Tensor:
        held.kept.append(x + 1)
        return torch.cat(held.kept)

    with pytest.raises(poptorch.Error, match="made by an earlier run of forward, which left it outside") as caught:
        poptorch.inferenceModel(forward)(torch.ones(2))
    assert "keep it in a buffer that forward writes into" in str(caught.value)


def test_layers_that_list_their_weights_keep_them() -> None:
    lstm = nn.LSTM(3, 4)
    weights = list(lstm._flat_weights)
    x = torch.randn(5, 2, 3)
    result, _ = poptorch.inferenceModel(lstm)(x)
    torch.testing.assert_close(result, lstm(x)[0].detach())
    assert all(one is other for one, other in zip(lstm._flat_weights, weights, strict=True))
