"""The cache of executables: who is captured once and no second time, and what has an entry of its own."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path
from typing import Any

import filelock
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of
from torchipu.poptorch.executor import session
from torchipu.stored import tensor_file


def cached(folder: Path, **more: Any) -> poptorch.Options:
    return options(**more).enableExecutableCaching(folder)


def entries(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the name of every graph that is captured."""
    found: list[str] = []
    original = session.capture_by_running

    def noted(*args: Any, **keywords: Any) -> Any:
        found.append(keywords["name"])
        return original(*args, **keywords)

    monkeypatch.setattr(session, "capture_by_running", noted)
    return found


def test_a_model_is_captured_once_and_then_trains_from_the_cache(tmp_path: Path, captures: list[str]) -> None:
    x, labels = batch(8)
    for seed in (1, 2):
        model = Classifier()
        torch.manual_seed(seed)
        nn.init.normal_(model.head.weight)  # values are no part of a program
        twin = twin_of(model)
        step = poptorch.trainingModel(model, cached(tmp_path, accumulation=2), sgd(model, momentum=0.9))
        optimizer = sgd(twin, momentum=0.9)
        for _ in range(3):
            loss = step(x, labels)[1]
            expected = eager_training(twin, optimizer, (x, labels), micro_batches=2)
        torch.testing.assert_close(loss, expected[-1][1])
        torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
        assert captures == ["training"]
        assert len(entries(tmp_path)) == 1  # no lock is left either


def test_a_file_saved_by_an_executor_of_the_cache_is_whole(tmp_path: Path) -> None:
    x, _ = batch(4)
    for _ in range(2):
        step = poptorch.inferenceModel(Classifier(), cached(tmp_path / "cache"))
        expected = step(x)
    step.save(tmp_path / "model")
    assert torch.equal(poptorch.load(tmp_path / "model")(x), expected)


def test_control_flow_is_in_the_cache_and_in_files_with_host_functions(tmp_path: Path, captures: list[str]) -> None:
    class Looping(nn.Module):
        def __init__(self, trips: int = 3, step: float = 1.0) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 4)
            self.trips, self.step = trips, step
            self.host: Any = torch.cos

        def forward(self, x: torch.Tensor, above: torch.Tensor) -> Any:
            x, = poptorch.for_loop(self.trips, lambda value: torch.tanh(self.layer(value)), [x])
            x, = poptorch.cond(above > 0, lambda value: value + 1, [x], lambda value: value - self.step, [x])
            return self.host(x)

    def eager(model: Looping, x: torch.Tensor, above: float) -> torch.Tensor:
        for _ in range(model.trips):
            x = torch.tanh(model.layer(x))
        return torch.cos(x + 1 if above > 0 else x - model.step)

    for arguments, num_captures in ((), 1), ((4,), 2), ((3, 2.0), 3), ((), 3):
        model = Looping(*arguments)
        step = poptorch.inferenceModel(model, cached(tmp_path / "cache"))
        x = torch.randn(2, 4)
        for above in (1.0, -1.0):
            torch.testing.assert_close(step(x, torch.tensor([above])), eager(model, x, above))
        assert len(captures) == len(entries(tmp_path / "cache")) == num_captures
    model.host = poptorch.CPU(torch.cos, "cosine of the test of the cache")  # each has a number of its own
    step = poptorch.inferenceModel(model)
    step.compile(x, torch.tensor([1.0]))
    step.save(tmp_path / "model")
    torch.testing.assert_close(poptorch.load(tmp_path / "model")(x, torch.tensor([1.0])), eager(model, x, 1.0))


class Doubled(torch.autograd.Function):
    """Copies, with a gradient that is not the one of a copy."""

    factor = 2.0

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient * Doubled.factor


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.constant = torch.ones(4)
        self.exponent = 2

    def forward(self, x: torch.Tensor) -> Any:
        out = Doubled.apply(self.linear(x)) * self.constant
        return out, poptorch.identity_loss(out**self.exponent, "sum")


def shorter_name(model: Scaled) -> None:
    model.lin = model.linear
    del model.linear
    model.__class__ = type("Renamed", (Scaled,), {"linear": property(lambda self: self._modules["lin"])})


@pytest.mark.whole
@pytest.mark.parametrize("change", [
    lambda m: setattr(m, "constant", torch.full((4,), 2.0)), lambda m: setattr(m, "exponent", 3),
    lambda m: m.linear.bias.requires_grad_(False), lambda m: m.half(), shorter_name,
    lambda m: setattr(Doubled, "factor", 3.0), lambda m: poptorch.BeginBlock(m.linear, ipu_id=0),
])
def test_what_changes_the_graph_has_an_entry_of_its_own(
    tmp_path: Path, change: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Doubled, "factor", 2.0)
    losses, found = [], []
    for number in range(2):
        model = Scaled()
        if number:
            change(model)
        x = torch.ones(2, 4, dtype=model.linear.weight.dtype)
        twin = twin_of(model)
        poptorch.trainingModel(model, cached(tmp_path), sgd(model))(x)
        losses.append(model.linear.weight.detach().float().clone())
        twin(x)[1].backward()
        sgd(twin).step()
        torch.testing.assert_close(losses[-1], twin.linear.weight.detach().float(), rtol=1e-3, atol=1e-3)
        found.append(entries(tmp_path))
    assert len(found[0]) == 1
    assert len(found[1]) == 2


def test_other_sizes_and_other_options_have_entries_of_their_own(tmp_path: Path) -> None:
    for size, iterations in ((4, 1), (8, 1), (8, 2), (4, 1)):
        poptorch.inferenceModel(Classifier(), cached(tmp_path, iterations=iterations))(batch(size)[0])
    assert len(entries(tmp_path)) == 3


def test_a_damaged_entry_is_made_anew_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, _ = batch(4)
    expected = poptorch.inferenceModel(Classifier(), cached(tmp_path))(x)
    entry, = tmp_path.iterdir()
    data = entry.read_bytes()
    entry.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert torch.equal(poptorch.inferenceModel(Classifier(), cached(tmp_path))(x), expected)
    words = f"The entry {entry} of the executable cache is not used: its header is not readable"
    assert capsys.readouterr().err.count(words) == 1
    assert entry.read_bytes() == data


def assert_trains_without(folder: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    """Two models of two executors train as in eager, and say that there is no cache."""
    x, labels = batch(8)
    capsys.readouterr()
    for _ in range(2):
        model = Classifier()
        twin = twin_of(model)
        loss = poptorch.trainingModel(model, cached(folder), sgd(model))(x, labels)[1]
        torch.testing.assert_close(loss, eager_training(twin, sgd(twin), (x, labels))[-1][1])
    told = capsys.readouterr().err
    assert told.count(f"The executable cache {folder} is not used, and the model compiled each time: ") == 2
    assert words in told


def test_a_folder_that_is_a_file_leaves_models_without_a_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert_trains_without(tmp_path / "file", capsys, "File exists")
    assert_trains_without(tmp_path / "file" / "below", capsys, "Not a directory")


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
@pytest.mark.parametrize("where", ["the entry", "its first byte", "the lock"])
def test_a_folder_that_cannot_be_written_leaves_models_without_a_cache(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, code: int, where: str,
) -> None:
    def fail(*args: Any, **keywords: Any) -> Any:
        raise OSError(code, os.strerror(code))

    class Full(io.BytesIO):
        write = fail

    if where != "its first byte":
        monkeypatch.setattr(tensor_file.tempfile, "mkstemp", fail)
    else:
        plain = os.fdopen

        def opened(handle: int, *more: Any, **keywords: Any) -> Any:
            os.close(handle)
            monkeypatch.setattr(os, "fdopen", plain)
            return Full()

        monkeypatch.setattr(tensor_file.os, "fdopen", opened)
        x, labels = batch(8)
        model = Classifier()
        poptorch.trainingModel(model, cached(tmp_path), sgd(model))(x, labels)
        assert os.strerror(code) in capsys.readouterr().err
        assert not entries(tmp_path)
        return
    if where == "the lock":
        monkeypatch.setattr(filelock.FileLock, "acquire", fail)
    assert_trains_without(tmp_path, capsys, os.strerror(code))
    assert not entries(tmp_path)


def test_the_environment_names_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_CACHE_DIR", str(tmp_path))
    poptorch.inferenceModel(Classifier())(batch(4)[0])
    assert len(entries(tmp_path)) == 1
    poptorch.inferenceModel(Classifier(), poptorch.Options().enableExecutableCaching(None))(batch(8)[0])
    assert len(entries(tmp_path)) == 1


def test_errors_of_a_model_reach_the_caller_as_without_a_cache(tmp_path: Path) -> None:
    class Broken(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise KeyError("no such layer")

    with pytest.raises(KeyError, match="no such layer"):
        poptorch.inferenceModel(Broken(), cached(tmp_path))(torch.ones(2))
    with pytest.raises(poptorch.Error, match="Couldn't find a loss in graph!"):
        poptorch.trainingModel(nn.Linear(2, 2), cached(tmp_path))(torch.ones(2, 2))
    assert not entries(tmp_path)


def test_several_processes_are_advised_to_have_one(capsys: pytest.CaptureFixture[str]) -> None:
    several = options()
    several.Distributed.configureProcessId(0, 2)
    poptorch.inferenceModel(lambda x: F.relu(x), several)(torch.ones(2))
    assert "Every one of 2 processes compiles the model" in capsys.readouterr().err
