"""A capture from the cache is the one that would be made: what a program depends on, changed in one place at a time."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import types
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F

from torchipu import InferenceStep, Options, TrainStep
from torchipu.cache import captures
from torchipu.cache import settings as of_cache
from torchipu.cache.captures import Request, fetch
from torchipu.cache.described import OpaqueError
from torchipu.cache.store import Store
from torchipu.capture.aot import capture_inference
from torchipu.ir.text import format_graph
from torchipu.stored import tensor_file

pytestmark = pytest.mark.whole  # each change is one that an entry must tell; a wrong entry is a wrong result
FACTOR = 2.0
TABLE = {"shift": 1.0, "nested": [1.0, 2.0]}


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * FACTOR + TABLE["shift"] + TABLE["nested"][1]


def halved(x: torch.Tensor) -> torch.Tensor:
    return x / 2


class Activation:
    """What a model calls that is no module."""

    slope = 0.5

    def __init__(self) -> None:
        self.limits = {"low": -1.0}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x > self.limits["low"], x, x * self.slope)


class Model(torch.nn.Module):
    """Float32 ``[N, 4]`` to the loss, and ``[N, 3]`` by its name."""

    gain = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        self.drop = torch.nn.Dropout(0.5)
        self.act, self.depth, self.constant = Activation(), 2, torch.tensor([1.0, 2.0, 3.0])
        self.register_buffer("offset", torch.zeros(3))

    def forward(self, x: torch.Tensor, *, power: float = 1.0) -> dict[str, torch.Tensor]:
        for _ in range(self.depth):
            x = self.act(self.first(scaled(x)))
        y = self.drop(self.second(x)) * self.gain + self.offset
        return {"loss": F.mse_loss(y, torch.ones_like(y)) * power, "y": y}


class Outcome(NamedTuple):
    """What a training gives: its program's graph, results, weights, and whether the capture came from the cache."""

    graph: str
    loss: torch.Tensor
    weights: list[torch.Tensor]
    is_hit: bool


def train(change: Callable[[Model], object] = lambda model: None, rows: int = 4, **settings: Any) -> Outcome:
    """Train once, after a change of the model."""
    torch.manual_seed(0)
    model = Model()
    keywords = settings.pop("keywords", {})
    change(model)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    step = TrainStep(model, optimizer, Options(seed=1, **settings))
    loss = step(torch.linspace(-1, 1, rows * 4).reshape(rows, 4), **keywords)["loss"]
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    return Outcome(format_graph(step.compiled.captured), loss, weights, bool(step._seen.cache_hits))


@pytest.fixture(scope="module")
def entry(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    """Return a cache that the model as it is has filled, and the outcome of that."""
    folder = tmp_path_factory.mktemp("filled") / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(of_cache.SWITCH, "1")
        patch.setenv(of_cache.DIRECTORY, str(folder))
        outcome = train()
        assert not outcome.is_hit
        assert len(Store.opened().names()) == 1
    return folder, outcome


@pytest.fixture
def filled(entry: tuple[Path, Outcome], own_cache: Path) -> Outcome:
    """Fill the cache of the test with a copy of it: to capture the model anew takes as long as to capture a change."""
    folder, outcome = entry
    shutil.copytree(folder, own_cache)
    assert len(Store.opened().names()) == 1
    return outcome


def assert_as_without(outcome: Outcome, again: Callable[[], Outcome], monkeypatch: pytest.MonkeyPatch) -> None:
    """Hold an outcome to the one without a cache, bit by bit."""
    monkeypatch.setenv("TORCHIPU_CACHE", "0")
    plain = again()
    assert outcome.graph == plain.graph
    assert torch.equal(outcome.loss, plain.loss)
    assert all(map(torch.equal, outcome.weights, plain.weights))


def test_a_second_capture_comes_from_the_cache(filled: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = train()
    assert outcome.is_hit
    assert_as_without(outcome, train, monkeypatch)


def _with_shift(model: Model) -> None:
    model.act = Activation()
    model.act.limits["low"] = -0.5


class OtherModel(Model):
    """The same but for a method."""

    def extra_repr(self) -> str:
        return "another"


CHANGES: dict[str, Callable[[Model], object]] = {
    "a number of the model": lambda model: setattr(model, "depth", 3),
    "a tensor that is no buffer": lambda model: setattr(model, "constant", torch.tensor([1.0, 2.0, 4.0])),
    "an object that the model calls": _with_shift,
    "evaluation": lambda model: model.eval(),
    "the rate of dropout": lambda model: setattr(model.drop, "p", 0.25),
    "a frozen weight": lambda model: model.first.weight.requires_grad_(False),
    "tied weights": lambda model: setattr(model.first, "bias", torch.nn.Parameter(torch.zeros(4))) or setattr(
        model, "tied", model.first.bias),
    "another size": lambda model: setattr(model, "second", torch.nn.Linear(4, 5)) or setattr(
        model, "offset", torch.zeros(5)),
    "a wider buffer": lambda model: setattr(model, "offset", torch.zeros(3, dtype=torch.float64)),
    "another layer of the same sizes": lambda model: setattr(model, "drop", torch.nn.Identity()),
    "a hook": lambda model: model.first.register_forward_hook(lambda module, given, result: result * 2),
    "a method of the object": lambda model: setattr(model.act, "slope", 0.25),
    "another class": lambda model: setattr(model, "__class__", OtherModel),
}


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.usefixtures("filled")
def test_a_change_of_the_model_is_seen(what: str, monkeypatch: pytest.MonkeyPatch, is_thorough: bool) -> None:
    outcome = train(CHANGES[what])
    assert not outcome.is_hit
    if is_thorough:  # what is not in the cache is captured as without one
        assert_as_without(outcome, lambda: train(CHANGES[what]), monkeypatch)


OUTSIDE: dict[str, tuple[object, str, object]] = {
    "a global number": (sys.modules[__name__], "FACTOR", 3.0),
    "a global table": (sys.modules[__name__], "TABLE", {"shift": 2.0, "nested": [1.0, 2.0]}),
    "what a global table holds": (sys.modules[__name__], "TABLE", {"shift": 1.0, "nested": [1.0, 5.0]}),
    "a global function": (sys.modules[__name__], "scaled", halved),
    "an attribute of the class": (Model, "gain", 4.0),
    "an attribute of another class": (Activation, "slope", 0.25),
    "a method of the class": (Activation, "__call__", lambda self, x: x * self.slope),
    "a function of torch": (F, "mse_loss", F.l1_loss),
    "forward of a layer of torch": (torch.nn.Linear, "forward", lambda self, x: F.linear(x, self.weight)),
}


@pytest.mark.parametrize("what", OUTSIDE)
@pytest.mark.usefixtures("filled")
def test_a_change_of_what_the_model_uses_is_seen(
    what: str, monkeypatch: pytest.MonkeyPatch, is_thorough: bool,
) -> None:
    owner, name, value = OUTSIDE[what]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, value)
        outcome = train()
        assert not outcome.is_hit
        if is_thorough:
            assert_as_without(outcome, train, patch)
    again = train()
    assert again.is_hit  # the entry of before is still there


@pytest.mark.parametrize("settings", [
    {"rows": 8}, {"keywords": {"power": 2.0}}, {"loss_scaling": 8.0}, {"gradient_accumulation": 2, "rows": 8},
    {"strict_ops": True}, {"target": "bow"},
], ids=str)
@pytest.mark.usefixtures("filled")
def test_other_arguments_and_options_have_entries_of_their_own(settings: dict[str, Any]) -> None:
    assert not train(**settings).is_hit
    assert train(**settings).is_hit


@pytest.mark.usefixtures("filled")
def test_settings_of_torch_are_part_of_the_key() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert not train(lambda model: model.float()).is_hit
    finally:
        torch.set_default_dtype(torch.float32)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        assert not train().is_hit
    finally:
        torch.set_num_threads(threads)
    assert train().is_hit


@pytest.mark.usefixtures("filled")
def test_options_that_no_graph_depends_on_share_an_entry() -> None:
    assert train(host_threads=1).is_hit


@pytest.mark.usefixtures("filled")
def test_inference_and_training_have_entries_of_their_own() -> None:
    torch.manual_seed(0)
    model, x = Model().eval(), torch.ones(4, 4)
    results = [InferenceStep(model)(x)["y"] for _ in range(2)]
    assert len(Store.opened().names()) == 2
    assert torch.equal(*results)
    torch.testing.assert_close(results[0], model(x)["y"])


def test_a_model_that_cannot_be_described_is_captured_each_time() -> None:
    outcomes = [train(lambda model: setattr(model, "held", iter([1]))) for _ in range(2)]
    assert not any(outcome.is_hit for outcome in outcomes)
    assert Store.opened().names() == []


def test_a_custom_operator_is_captured_each_time() -> None:
    @torch.library.custom_op("torchipu_tests::cached_twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    class Calling(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return twice(x)

    assert torch.equal(InferenceStep(Calling())(torch.ones(3)), torch.full((3,), 2.0))
    assert Store.opened().names() == []


def test_a_damaged_entry_is_made_anew(filled: Outcome) -> None:
    store = Store.opened()
    path = store._path(store.names()[0])
    path.write_bytes(path.read_bytes()[:-3])
    outcome = train()
    assert not outcome.is_hit
    assert outcome.graph == filled.graph
    assert train().is_hit


class Told(torch.nn.Module):
    """Returns what it has been given beside a tensor."""

    def __init__(self, beside: object) -> None:
        super().__init__()
        self.beside = beside

    def forward(self, x: torch.Tensor) -> object:
        return {"y": x * 2, "beside": self.beside}


def told(beside: object) -> tuple[object, bool]:
    """Return what stands beside the tensor, and whether the capture came from the cache."""
    step = InferenceStep(Told(beside))
    return step(torch.ones(2))["beside"], bool(step._seen.cache_hits)


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class OfPairs(torch.nn.Module):
    """Takes and gives named tuples."""

    def forward(self, pair: Pair) -> Pair:
        return Pair(pair[1] * 2, pair[0])


class OfNames(torch.nn.Module):
    """Takes a value by a name that is no text."""

    def forward(self, given: dict[object, torch.Tensor]) -> torch.Tensor:
        return given["left", 1] * 2


@pytest.mark.parametrize(("make", "given"), [
    (OfPairs, Pair(torch.ones(2), torch.zeros(2))), (OfNames, {("left", 1): torch.ones(2)}),
    (OfNames, defaultdict(list, {("left", 1): torch.ones(2)})),
], ids=["named tuples", "names that are no texts", "tables with defaults"])
def test_values_that_are_nested_in_a_way_that_is_not_cached_are_captured_each_time(
    make: Callable[[], torch.nn.Module], given: object,
) -> None:
    results = InferenceStep(make())(given)
    expected = make()(given)
    assert type(results) is type(expected)
    assert all(map(torch.equal, results, expected))
    assert Store.opened().names() == []


@pytest.mark.parametrize("beside", [3, "text", None, 2.5, True], ids=str)
def test_what_stands_beside_tensors_in_results_comes_from_the_cache(beside: object) -> None:
    results, hits = zip(*(told(beside) for _ in range(2)), strict=True)
    assert hits == (False, True)
    assert all(type(result) is type(beside) and result == beside for result in results)


def test_results_that_no_entry_can_hold_are_captured_each_time() -> None:
    assert [told(torch.float16) for _ in range(2)] == [(torch.float16, False)] * 2
    assert Store.opened().names() == []


def _with_hooks_of_all_modules() -> AbstractContextManager[object]:
    handle = torch.nn.modules.module.register_module_forward_hook(lambda module, args, result: None)
    return contextlib.closing(types.SimpleNamespace(close=handle.remove))


@pytest.mark.parametrize("active", [
    lambda: torch.device("cpu"), _with_hooks_of_all_modules,
    lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
], ids=["a mode", "hooks of all modules", "hooks of saved tensors"])
def test_what_may_do_anything_keeps_captures_out_of_the_cache(
    active: Callable[[], AbstractContextManager[object]],
) -> None:
    with active():
        assert told(3) == (3, False)
        assert Store.opened().names() == []
    assert [told(3) for _ in range(2)] == [(3, False), (3, True)]


@pytest.mark.usefixtures("filled")
def test_an_entry_that_another_process_removes_meanwhile_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Store.names
    monkeypatch.setattr(Store, "names", lambda self, prefix="": [f"{prefix}-gone", *names(self, prefix)])
    assert train().is_hit


@pytest.mark.usefixtures("filled")
def test_an_entry_whose_results_are_of_an_unknown_class_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    store = Store.opened()
    path = store._path(store.names()[0])
    tensors, texts = tensor_file.read(path)
    data = json.loads(texts["capture"])
    data["results"][0] = "nowhere.Result"
    tensor_file.write(path, tensors, {**texts, "capture": json.dumps(data)})
    assert not train().is_hit
    assert "results of class nowhere.Result are not known here" in caplog.text


@pytest.mark.usefixtures("filled")
def test_places_of_a_hostile_entry_lead_nowhere(tmp_path: Path) -> None:
    store = Store.opened()
    name = store.names()[0]
    tensors, texts = tensor_file.read(store._path(name))
    proof = tmp_path / "proof"
    for table in (
        [["root", "module", "os"], ["attribute", 0, "system"], ["call", 1, f"touch {proof}"]],
        [["eval", "L", f"open({str(proof)!r}, 'w')"]], [["root", "L", 5]], [["attribute", 99, "x"]], "table", [[]],
        [["attribute", 0, ["x"]]], None,
    ):
        places = json.dumps({"table": table, "wanted": [[0, True], [1, False]]})
        tensor_file.write(store._path(name), tensors, {**texts, "places": places})
        assert not train().is_hit
        assert not proof.exists()


def test_a_capture_that_dynamo_had_no_part_in_is_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    model, x = torch.nn.Linear(4, 3), torch.ones(2, 4)
    made = capture_inference(model, (x,))
    caplog.set_level("DEBUG", logger="torchipu.cache")
    assert fetch(Request(model, (x,), {}, Options(), "elsewhere"), lambda: made) is made
    assert "it was captured in another way" in caplog.text
    assert Store.opened().names() == []


def test_code_that_no_description_covers_keeps_a_capture_out() -> None:
    def inner() -> Callable[[], int]:
        return lambda: 1

    traced = [inner.__code__, inner().__code__]
    captures._refuse_unseen_code(traced, {inner.__code__})  # with what is written within it
    with pytest.raises(OpaqueError, match="reached in a way that is not seen"):
        captures._refuse_unseen_code(traced, set())
    captures._refuse_unseen_code([contextlib.contextmanager.__code__, torch.nn.Module.train.__code__], set())


@pytest.mark.parametrize(("file", "expected"), [
    (torch.nn.functional.__file__, True), (captures.__file__, True), (contextlib.__file__, True),
    ("<frozen importlib._bootstrap>", True), (__file__, False), (pytest.__file__, False), ("<string>", False),
])
def test_versions_cover_torch_python_and_our_own_files_alone(file: str, expected: bool) -> None:
    captures._is_versioned.cache_clear()
    assert captures._is_versioned(file) is expected


def test_a_folder_that_is_not_used_is_one_warning(own_cache: Path) -> None:
    own_cache.mkdir()
    own_cache.chmod(0o777)
    with pytest.warns(UserWarning, match="the compile cache is not used: .* others may write into it") as told:
        assert not any(train().is_hit for _ in range(2))
    assert len([one for one in told if "compile cache" in str(one.message)]) == 1
    assert list(own_cache.iterdir()) == []


def test_without_torchs_caches_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHIPU_CACHE")
    with torch.compiler.config.patch(force_disable_caches=True):
        assert not train().is_hit
        assert not train().is_hit
    assert not train().is_hit
    assert train().is_hit


SCRIPT = """
import hashlib, os, sys, torch
from pathlib import Path
import torchipu.step.compiling  # what each capture imports
from torchipu import Options, TrainStep

def train():
    import users_model
    torch.manual_seed(0)
    model = users_model.Model()
    step = TrainStep(model, torch.optim.SGD(model.parameters(), lr=0.1), Options(seed=1))
    step(torch.ones(2, 4))
    digest = hashlib.sha256(model.fc.weight.detach().numpy().tobytes()).hexdigest()
    print(len(step._seen.cache_hits), digest, flush=True)

folder, *texts = sys.argv[1:]
sys.path.insert(0, folder)
for text in texts:
    Path(folder, "users_model.py").write_text(text)
    if os.fork() == 0:
        try:
            train()
        finally:
            os._exit(sys.exc_info()[0] is not None)
    assert os.wait()[1] == 0
"""
USERS_MODEL = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)

    def forward(self, x):
        return (self.fc(x) {}).pow(2).mean()
"""


def test_another_process_finds_it_and_an_edited_file_is_another_model(tmp_path: Path) -> None:
    def run(*changes: str) -> list[list[str]]:
        """Return hits and a digest for each text of the model; fresh processes import each."""
        texts = [USERS_MODEL.format(change) for change in changes]
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path), *texts], capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONHASHSEED": "random", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        assert done.returncode == 0, done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    (first,), (second, edited) = run("* 2"), run("* 2", "* 3")
    assert [first[0], second[0], edited[0]] == ["0", "1", "0"]
    assert first[1] == second[1]
    assert edited[1] != first[1]
