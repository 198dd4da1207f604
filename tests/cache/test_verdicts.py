"""Programs that are known to fit are lowered when somebody asks; those that do not fit fail in the same words."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from torchipu import Options, OutOfTileMemoryError, TrainStep, compiler
from torchipu.cache import verdicts
from torchipu.cache.store import Store
from torchipu.cache.verdicts import verdict_on
from torchipu.cli.cache import print_cache
from torchipu.compiler import OnDevice
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.text import format_executable
from torchipu.ir.types import DType, Leg, Role, Source
from torchipu.options import TensorLocation
from torchipu.report.recorder import recording
from torchipu.stored import tensor_file
from torchipu.target import lookup_target

STARVED = "mk2,num_tiles=4,tile_memory_bytes=30000,code_region_bytes=20000"


class Model(torch.nn.Module):
    """Float32 ``[N, 8]`` to the loss."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(8, width), torch.nn.Linear(width, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(self.second(torch.tanh(self.first(x))), x)


def step_of(width: int = 8, momentum: float = 0.9, **settings: Any) -> TrainStep:
    """Return a step that was compiled, without checks of the IR, which want every stage."""
    torch.manual_seed(0)
    model = Model(width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=momentum)
    step = TrainStep(model, optimizer, Options(**{"verify": False, **settings}))
    step.compile(torch.linspace(-1, 1, 64).reshape(8, 8))
    return step


def is_lowered(step: TrainStep) -> bool:
    """Whether the stages of the device have run for a step's program."""
    return "lower" in step.compiled.seconds_by_stage


def kept() -> list[str]:
    """Return the names of entries that say that a program fits."""
    return Store.opened().names(verdicts.PREFIX)


@pytest.fixture
def first() -> TrainStep:
    """Return the step that was compiled first, which has filled the cache."""
    step = step_of()
    assert is_lowered(step)
    assert len(kept()) == 1
    return step


def test_a_program_that_is_known_to_fit_is_lowered_when_somebody_asks(first: TrainStep) -> None:
    again = step_of()
    assert not is_lowered(again)
    x = torch.linspace(-1, 1, 64).reshape(8, 8)
    assert torch.equal(again(x), first(x))
    assert not is_lowered(again)
    assert again.profile.json() == first.profile.json()
    assert is_lowered(again)
    assert format_executable(again.compiled.executable) == format_executable(first.compiled.executable)
    assert list(again.compiled.seconds_by_stage) == list(first.compiled.seconds_by_stage)


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("settings", [
    {"target": "bow"}, {"target": "mk2,tile_memory_bytes=600000"}, {"gradient_accumulation": 2},
    {"allow_out_of_memory": True}, {"outlining": False}, {"partials_type": "half"}, {"io_tiles": 32},
    {"replicas": 2}, {"momentum": 0.0}, {"width": 16}, {"optimiser_state_location": TensorLocation(on_chip=False)},
], ids=str)
def test_another_program_is_judged_anew(settings: dict[str, Any]) -> None:
    assert is_lowered(step_of(**settings))
    assert not is_lowered(step_of(**settings))
    assert len(kept()) == 2


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("settings", [{"seed": 5}, {"host_threads": 1}], ids=str)
def test_options_of_the_host_alone_change_nothing(settings: dict[str, Any]) -> None:
    assert not is_lowered(step_of(**settings))


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("settings", [{"verify": True}, {"dump": "here"}], ids=str)
def test_where_the_ir_is_looked_at_all_stages_run(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_lowered(step_of(**settings))


def test_what_does_not_fit_fails_in_the_same_words_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def words() -> tuple[object, ...]:
        with pytest.raises(OutOfTileMemoryError) as error:
            step_of(1024, target=STARVED)
        told = error.value
        return str(told).partition("\n")[0], told.ipu, told.tile, told.needed_bytes, told.available_bytes, told.detail

    monkeypatch.setattr("torchipu.advice.remedies.advise", lambda error, subject: None)  # which takes its time
    cold, warm = words(), words()
    monkeypatch.setenv("TORCHIPU_CACHE", "0")
    assert cold == warm == words()
    monkeypatch.setenv("TORCHIPU_CACHE", "1")
    assert kept() == []
    allowed = step_of(1024, target=STARVED, allow_out_of_memory=True)
    assert allowed.profile.memory_by_ipu[0].total_bytes > 30000
    assert not is_lowered(step_of(1024, target=STARVED, allow_out_of_memory=True))
    assert words() == cold


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def _changed(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b" fits", b" Fits"))


def _of_another_version(path: Path) -> None:
    tensors, texts = tensor_file.read(path)
    tensor_file.write(path, tensors, {**texts, "version": "0.0.1"})


def _of_another_program(path: Path) -> None:
    tensors, texts = tensor_file.read(path)
    tensor_file.write(path, tensors, {**texts, "name": f"{verdicts.PREFIX}another"})


@pytest.mark.usefixtures("first")
@pytest.mark.parametrize("damage", [
    _cut, _changed, _of_another_version, _of_another_program, lambda path: path.write_bytes(b""),
    lambda path: path.unlink(),
], ids=["cut", "changed", "another version", "another program", "empty", "gone"])
def test_an_entry_that_is_not_sound_tells_nothing(damage: Callable[[Path], object]) -> None:
    store = Store.opened()
    (name,) = kept()
    damage(store._path(name))
    assert is_lowered(step_of())
    assert kept() == [name]
    assert not is_lowered(step_of())
    assert set(store.verify().values()) == {""}


@pytest.mark.usefixtures("first")
def test_another_version_of_our_sources_judges_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "surroundings", lambda sources: "another")
    assert is_lowered(step_of())
    assert len(kept()) == 2


@pytest.mark.usefixtures("first")
def test_the_command_lists_and_verifies_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert print_cache("ls") == 0
    assert " fits, " in capsys.readouterr().out
    assert print_cache("verify") == 0
    assert "2 of 2 entries are sound" in capsys.readouterr().out


def test_what_cannot_be_written_is_not_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder,
) -> None:
    write = tensor_file.write

    def full(path: Path, tensors: Any, texts: Any) -> None:
        if path.name.startswith(verdicts.PREFIX):
            raise OSError(28, "No space left on device", str(path))
        write(path, tensors, texts)

    monkeypatch.setattr(tensor_file, "write", full)
    caplog.set_level("DEBUG", logger="torchipu.cache")
    assert is_lowered(step_of())
    assert "is not written: [Errno 28] No space left on device" in caplog.text
    assert not [one for one in recwarn if "cache" in str(one.message)]
    assert is_lowered(step_of())


def test_without_a_cache_nothing_is_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    step_of()
    monkeypatch.setenv("TORCHIPU_CACHE", "0")
    assert is_lowered(step_of())


def test_the_programs_of_torch_compile_are_put_off_unless_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "LEAST_OPS", 1)
    lowered: list[Graph] = []
    lower = compiler.lower
    monkeypatch.setattr(compiler, "lower", lambda graph, *rest, **more: lowered.append(graph) or lower(
        graph, *rest, **more))

    def train() -> torch.Tensor:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Model()
        loss = torch.compile(model, backend="ipu", options={"verify": False})(torch.linspace(-1, 1, 64).reshape(8, 8))
        loss.backward()
        assert model.first.weight.grad is not None
        return model.first.weight.grad

    cold = train()
    assert len(lowered) == len(kept()) == 2
    assert torch.equal(train(), cold)
    assert len(lowered) == 2
    with recording() as heard:
        train()
    assert len(heard) == len(lowered) - 2 == 2
    assert all(one.profile.cycles_per_update > 0 for one in heard)


def test_small_programs_are_not_worth_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "LEAST_OPS", 1000)
    step_of()
    assert kept() == []


def test_threads_that_ask_at_once_get_the_same_program() -> None:
    made: list[int] = []
    begin = threading.Barrier(8)

    def make() -> Any:
        made.append(1)
        return object(), object(), object()

    on_device, found = OnDevice(make), list[object]()

    def ask() -> None:
        begin.wait()
        found.append(on_device())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert len(found) == 8
    assert len({id(one) for one in found}) == 1


def test_what_failed_is_made_again_when_it_is_asked_for_again() -> None:
    made: list[int] = []

    def make() -> Any:
        made.append(1)
        if len(made) == 1:
            raise KeyboardInterrupt
        return object(), object(), object()

    on_device = OnDevice(make)
    with pytest.raises(KeyboardInterrupt):
        on_device()
    assert on_device() is on_device()
    assert made == [1, 1]


# ---------------------------------------------------------------------- what tells graphs apart
X, W = Tensor("x", (4, 8), DType.FLOAT, Role.INPUT), Tensor("w", (4, 8), DType.FLOAT, Role.WEIGHT)


def _op(**changes: Any) -> Op:
    made: dict[str, Any] = {
        "kind": "add", "inputs": (X, W), "outputs": (Tensor("y", (4, 8), DType.FLOAT),), "attrs": {"alpha": 1},
        "target": "aten.add.Tensor", "operands": ("self", "other"),
    }
    return Op(**(made | changes))


def _graph(op: Op) -> Graph:
    return Graph("g", (X, W), op.outputs, (op,))


def _verdict(graph: Graph) -> verdicts.Verdict | None:
    return verdict_on(graph, Options(), lookup_target("mk2"), 1, 1)


def _name(graph: Graph) -> str:
    verdict = _verdict(graph)
    assert verdict is not None
    return verdict.name


@pytest.fixture
def _small_graphs_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "LEAST_OPS", 1)


@pytest.mark.usefixtures("_small_graphs_too")
@pytest.mark.parametrize("changes", [
    {"kind": "sub"}, {"inputs": (W, X)}, {"inputs": (X, X)}, {"outputs": (Tensor("y", (8, 4), DType.FLOAT),)},
    {"outputs": (Tensor("y", (4, 8), DType.HALF),)}, {"outputs": (Tensor("z", (4, 8), DType.FLOAT),)},
    {"outputs": (Tensor("y", (4, 8), DType.FLOAT, Role.GRADIENT),)}, {"attrs": {"alpha": 2}}, {"attrs": {"alpha": 1.0}},
    {"attrs": {"alpha": "1"}}, {"attrs": {"alpha": (1,)}}, {"attrs": {"alpha": [1]}}, {"attrs": {}},
    {"target": "aten.sub.Tensor"}, {"operands": ("other", "self")}, {"leg": Leg.BACKWARD}, {"block": ("b", 0)},
    {"bodies": (Graph("b", (), (), ()),)},
], ids=str)
def test_programs_that_differ_in_anything_have_entries_of_their_own(changes: dict[str, Any]) -> None:
    assert _name(_graph(_op(**changes))) != _name(_graph(_op()))


@pytest.mark.usefixtures("_small_graphs_too")
def test_what_a_body_says_tells_programs_apart() -> None:
    inner = _op()
    named = [_name(_graph(_op(bodies=(_graph(one),)))) for one in (inner, replace(inner, attrs={"alpha": 3}))]
    assert named[0] != named[1]


@pytest.mark.usefixtures("_small_graphs_too")
def test_states_that_are_written_tell_programs_apart() -> None:
    op = _op()
    assert _name(replace(_graph(op), updates=((W, op.outputs[0]),))) != _name(_graph(op))


@pytest.mark.usefixtures("_small_graphs_too")
def test_names_of_graphs_and_lines_of_the_users_tell_nothing() -> None:
    assert _name(_graph(_op(source=Source("model.py", 7, "x + w")))) == _name(_graph(_op()))
    assert _name(replace(_graph(_op()), name="another")) == _name(_graph(_op()))


@pytest.mark.usefixtures("_small_graphs_too")
def test_micro_batches_instances_and_machines_tell_programs_apart() -> None:
    graph, target = _graph(_op()), lookup_target("mk2")
    others = ((target, 2, 1), (target, 1, 2), (lookup_target("bow"), 1, 1), (target, 1, 1))
    verdicts_of = [verdict_on(graph, Options(), *other) for other in others]
    assert len({verdict.name for verdict in verdicts_of if verdict is not None}) == 4


@pytest.mark.usefixtures("_small_graphs_too")
def test_a_custom_operator_keeps_a_program_out() -> None:
    assert _verdict(_graph(_op(target="mine.twice.default"))) is None


@pytest.mark.usefixtures("_small_graphs_too")
def test_an_attribute_that_is_no_data_keeps_a_program_out() -> None:
    assert _verdict(_graph(_op(attrs={"alpha": object()}))) is None


SCRIPT = """
import torch
from torchipu import Options, TrainStep

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh())
model = torch.nn.Sequential(model, torch.nn.Flatten(0), torch.nn.Unflatten(0, (1, -1)))

class WithLoss(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).pow(2).mean()

optimizer = torch.optim.AdamW(model.parameters())
step = TrainStep(WithLoss(), optimizer, Options(verify=False, blocks=None))
step(torch.ones(4, 8))
print("lower" in step.compiled.seconds_by_stage, step.profile.cycles_per_update)
"""


def test_another_process_finds_it() -> None:
    def run() -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONHASHSEED": "random", "TORCHIPU_VERIFY": "0"},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.split()

    (was_lowered, cycles), (is_lowered_again, cycles_again) = run(), run()
    assert (was_lowered, is_lowered_again) == ("True", "False")
    assert cycles == cycles_again
