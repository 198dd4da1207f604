"""A few samples of torch's databases, and whether what is wrong would be told."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.opinfo.samples import OPS, Call, Case
from tests.reliability import databases
from torchipu.errors import InternalError, UnsupportedOpError


def module(name: str) -> tuple[Any, Any]:
    from torch.testing._internal.common_modules import module_db

    info = next(info for info in module_db if info.name == name)
    return info, info.module_inputs_func(info, "cpu", torch.float32, True, True)[0]


@pytest.mark.slow
def test_samples_of_opinfo_are_judged_on_from_where_a_run_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(databases, "WORKERS", 1)
    path = tmp_path / "kept" / "results.jsonl"
    first = databases.opinfo(2, path)
    assert first["samples"] == 2
    assert databases.opinfo(2, path) == first
    more = databases.opinfo(4, path)
    assert more["samples"] == 4 == len(path.read_text().splitlines())
    assert (more["wrong"], more["error"], more["crash"], more["hang"]) == (0, 0, 0, 0)


def test_an_operator_with_one_wrong_sample_is_not_whole() -> None:
    judged = (("add", 0, "ok"), ("add", 1, "wrong"), ("mul", 0, "ok"), ("mul", 1, "breaks"))
    results = [{"op": op, "dtype": "float32", "index": at, "verdict": word, "line": ""} for op, at, word in judged]
    found = databases.tally(results)
    assert (found["samples"], found["right"], found["wrong"], found["of torch"]) == (4, 2, 1, 1)
    assert (found["operators"], found["whole"]) == (2, 1)


@pytest.mark.parametrize(("raised", "word"), [
    (RuntimeError, "same"), (UnsupportedOpError, "same"), (KeyError, "other"), (None, "accepted"),
    (functools.partial(InternalError, script=None), "other"),
])
def test_another_exception_than_eagers_is_told(
    monkeypatch: pytest.MonkeyPatch, raised: Callable[[str], Exception] | None, word: str,
) -> None:
    def compiled(call: Call, tensors: object) -> Any:
        def function(*tensors: torch.Tensor) -> None:
            if raised is not None:
                raise raised("of this test")

        return function

    def traced(call: Call) -> Any:
        return lambda *tensors: call(*tensors)

    monkeypatch.setattr(databases, "directly", compiled)
    monkeypatch.setattr(databases, "traced_by_torch", traced)
    wrong = next(one for one in OPS["gather"].error_inputs("cpu") if one.error_type is RuntimeError)
    assert databases._refusal(Call(Case("gather", "float32"), wrong.sample_input), RuntimeError) == word


def test_wrong_arguments_are_refused_as_by_eager() -> None:
    found = databases.error_inputs(6)
    assert found["inputs"] == found["same"] + found["of torch"] == 6


@pytest.mark.parametrize("name", ["nn.Linear", "nn.GRUCell"])
def test_a_module_is_right_and_a_wrong_one_is_told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    torch._dynamo.reset()
    assert databases._judge_module(*module(name)) == ""
    monkeypatch.setattr(torch, "compile", lambda model, backend: lambda *args, **kwargs: model(*args, **kwargs) * 1.001)
    assert "differ" in databases._judge_module(*module(name))


def test_an_optimiser_is_right_and_one_that_does_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    assert databases._judge_optimiser(torch.optim.Adagrad, {}) == ""
    monkeypatch.setattr(torch, "compile", lambda update, backend: lambda: None)
    assert databases._judge_optimiser(torch.optim.Adagrad, {}) == "weights differ"
