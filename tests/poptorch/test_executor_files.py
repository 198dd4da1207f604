"""Executors in files: what is read back computes the same, without the model's code and without pickle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of
from torchipu.stored import tensor_file


def saved(tmp_path: Path, **more: Any) -> tuple[poptorch.PoplarExecutor, Path]:
    model = Classifier()
    step = poptorch.trainingModel(model, options(2, 2), sgd(model, momentum=0.9))
    path = tmp_path / "deep" / "model.poptorch"
    step.compileAndExport(path, *batch(8), **more)
    return step, path


def test_a_loaded_executor_trains_on_where_the_saved_one_stood(tmp_path: Path) -> None:
    step, path = saved(tmp_path)
    twin = twin_of(step.model)
    x, labels = batch(8)
    step(x, labels)
    step.save(path)
    loaded = poptorch.load(path)
    # The saved options are those of the executor, the loaded module has the names of the user's.
    assert loaded.options.device_iterations == 2
    assert loaded.options.output_mode == poptorch.OutputMode.Final
    assert [name for name, _ in loaded.named_parameters()] == [name for name, _ in step.named_parameters()]
    torch.testing.assert_close(dict(loaded.state_dict()), dict(step.state_dict()))
    expected = step(x, labels)
    found = loaded(x, labels)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])
    optimizer = sgd(twin, momentum=0.9)
    for _ in range(2):
        eager_training(twin, optimizer, (x, labels), updates=2, micro_batches=2)
    expected = {name: value.detach() for name, value in twin.named_parameters()}
    torch.testing.assert_close(dict(loaded.state_dict()), expected)


def test_an_executable_is_loaded_into_the_users_own_model(tmp_path: Path) -> None:
    _, path = saved(tmp_path, export_model=False)
    model = Classifier()
    with torch.no_grad():
        model.head.bias.fill_(0.5)
    twin = twin_of(model)
    step = poptorch.trainingModel(model, options(2, 2), sgd(model, momentum=0.9))
    step.loadExecutable(path)
    assert step.isCompiled()
    assert step.isAttachedToDevice()
    x, labels = batch(8)
    loss = step(x, labels)[1]
    expected = eager_training(twin, sgd(twin, momentum=0.9), (x, labels), updates=2, micro_batches=2)
    torch.testing.assert_close(loss, expected[-1][1])
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))
    with pytest.raises(AssertionError, match="loadExecutable"):
        poptorch.load(path)


def test_inference_with_nested_arguments_comes_back(tmp_path: Path) -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("factor", torch.tensor([1.0, 2.0]))
            self.table = torch.tensor([10.0, 20.0])

        def forward(self, x: dict[str, torch.Tensor], power: int = 2) -> Any:
            return {"y": [x["a"] ** power * self.factor, "word"], "z": x["b"] + self.table}

    x = {"a": torch.rand(4, 2), "b": torch.rand(4, 2)}
    step = poptorch.inferenceModel(Scale(), options(2))
    expected = step(x)
    step.save(tmp_path / "scale.poptorch")
    changed: list[int] = []
    loaded = poptorch.load(
        tmp_path / "scale.poptorch", lambda settings: changed.append(settings.device_iterations),
    )
    assert changed == [2]
    found = loaded(x)
    assert torch.equal(found["y"][0], expected["y"][0])
    assert found["y"][1] == "word"
    assert torch.equal(found["z"], expected["z"])
    with pytest.raises(poptorch.Error, match="Shape mismatch for x"):
        loaded({"a": torch.rand(2, 2), "b": torch.rand(4, 2)})


def test_random_state_goes_with_the_file(tmp_path: Path) -> None:
    step = poptorch.inferenceModel(lambda x: torch.nn.functional.dropout(x, 0.5), options().randomSeed(3))
    x = torch.ones(64)
    first = step(x)
    step.save(tmp_path / "dropout.poptorch")
    loaded = poptorch.load(tmp_path / "dropout.poptorch")
    assert loaded.rng_state == step.rng_state
    second = step(x)
    assert not torch.equal(first, second)
    assert torch.equal(loaded(x), second)
    assert 8 < int((first == 0).sum()) < 56


def test_a_file_holds_json_and_tensors_and_tells_what_is_wrong_with_it(tmp_path: Path) -> None:
    _, path = saved(tmp_path)
    data = path.read_bytes()
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    assert header["__metadata__"]["kind"] == "torchipu.poptorch executable"
    assert header["parameter/head.bias"]["shape"] == [3]
    model = Classifier()
    step = poptorch.trainingModel(model, options(2, 2), sgd(model, momentum=0.9))
    for name, content in {"cut": data[:-5], "changed": data[:-3] + b"abc", "other": b"something else", "": b""}.items():
        broken = tmp_path / f"{name}.poptorch"
        broken.write_bytes(content)
        with pytest.raises(AssertionError, match="Invalid file"):
            poptorch.load(broken)
        with pytest.raises(poptorch.Error, match="Invalid file"):
            step.loadExecutable(broken)
    tensors, texts = tensor_file.read(path)
    for other in {"version": "3.2.0"}, {"layout": "1"}:
        tensor_file.write(path, tensors, {**texts, **other})
        with pytest.raises(AssertionError, match="PopTorch version mismatch"):
            poptorch.load(path)
    assert not step.isCompiled()


def test_an_option_that_a_file_cannot_hold_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = Classifier()
    settings = options(2, 2)
    settings.Precision.autocastPolicy(poptorch.autocasting.Policy(fp16=[torch.nn.Linear]))
    settings._Popart.set("numbersOfMine", {"few": frozenset({1, 2}), "many": np.float32(0.5)})
    step = poptorch.trainingModel(model, settings, sgd(model))
    step.compileAndExport(tmp_path / "model.poptorch", *batch(8))
    assert "The file does not hold poptorch.Options.Precision.autocast_policy, and gives it its default" in caplog.text
    assert "An object of class Policy cannot be stored" in caplog.text
    loaded = poptorch.load(tmp_path / "model.poptorch").options
    assert loaded._Popart.options["numbersOfMine"] == {"few": {1, 2}, "many": 0.5}


def test_where_a_file_goes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    step = poptorch.inferenceModel(lambda x: x * 2)
    with pytest.raises(poptorch.Error, match="Model has not been compiled"):
        step.save(tmp_path / "early")
    step.compile(torch.rand(2))
    step.save(tmp_path)
    assert (tmp_path / "model.poptorch").exists()
    assert torch.equal(poptorch.load(tmp_path)(torch.ones(2)), torch.full((2,), 2.0))
    (tmp_path / "file").write_text("")
    with pytest.raises(AssertionError, match="is not a directory"):
        step.save(tmp_path / "file" / "model.poptorch")
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_control_flow_and_functions_of_the_host_come_back(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.host = torch.nn.Linear(4, 4), poptorch.CPU(lambda x: x + 1, "plus")

        def forward(self, x: torch.Tensor, i: torch.Tensor) -> Any:
            y = poptorch.for_loop(3, lambda t: self.layer(t).tanh(), [x])[0]
            y = poptorch.cond(i[0] > 1, lambda a: a * 2, [y], lambda a: a - i, [y])[0]
            return self.host(poptorch.ipu_print_tensor(y, "seen")), x[:, i : i + 2]

    model, x = Model(), torch.randn(2, 4)
    step = poptorch.inferenceModel(model)
    step(x, torch.tensor([0]))
    step.save(tmp_path / "control.poptorch")
    loaded = poptorch.load(tmp_path / "control.poptorch")
    for start in (0, 2):
        with torch.no_grad():
            y = x
            for _ in range(3):
                y = model.layer(y).tanh()
            y = (y * 2 if start > 1 else y - start) + 1
        capfd.readouterr()
        found, part = loaded(x, torch.tensor([start]))
        torch.testing.assert_close(found, y)
        assert part.equal(x[:, start : start + 2])
        assert capfd.readouterr().err.startswith("seen: ((")


@pytest.mark.parametrize("make", [
    lambda p: poptorch.optim.SGD(
        p, lr=0.1, momentum=0.9, loss_scaling=8.0, max_grad_norm=0.01, velocity_accum_type=torch.float16,
    ),
    lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True, velocity_scaling=2.0),
    lambda p: poptorch.optim.AdamW(p, lr=0.1, max_grad_norm=0.01, first_order_momentum_accum_type=torch.float16),
    lambda p: poptorch.optim.RMSprop(p, lr=0.1, use_tf_variant=True),
    lambda p: poptorch.optim.LAMB(p, lr=0.1, max_weight_norm=0.5, bias_correction=False),
])
def test_what_an_optimiser_has_comes_back(make: Callable[[Any], Any], tmp_path: Path) -> None:
    model = Classifier()
    optimizer = make(model.parameters())
    optimizer.variable_attrs.markAsVariable("weight_decay")
    step = poptorch.trainingModel(model, options(), optimizer)
    x, labels = batch(4)
    step(x, labels)
    step.save(tmp_path / "model")
    loaded = poptorch.load(tmp_path / "model")
    for _ in range(2):
        assert torch.equal(loaded(x, labels)[1], step(x, labels)[1])
    for group in loaded._optimizer.param_groups:
        assert group["lr"] == 0.1
        group["weight_decay"] = 0.5
    loaded.setOptimizer(loaded._optimizer)


@pytest.mark.parametrize("strategy", [
    lambda: poptorch.ShardedExecution(poptorch.Stage("a").ipu(1), "b"),
    lambda: poptorch.SerialPhasedExecution([poptorch.Stage("a"), poptorch.Stage("b").ipu(1)]).setTensorsLiveness(
        poptorch.Liveness.OffChipAfterEachPhase,
    ).useSeparateBackwardPhase(),
    lambda: poptorch.ParallelPhasedExecution(poptorch.Phase("a").ipus(0), poptorch.Phase("b").ipus(1)),
])
def test_all_options_come_back(strategy: Callable[[], Any], tmp_path: Path) -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        with poptorch.Block("a"):
            x = x * 2
        with poptorch.Block("b"):
            return x + 1

    settings = options().setExecutionStrategy(strategy()).disableModuleNamescope().appendToLocationExcludes("here")
    settings.TensorLocations.numIOTiles(32).setWeightLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    step = poptorch.inferenceModel(forward, settings)
    expected = step(torch.ones(2))
    step.save(tmp_path / "model")
    loaded = poptorch.load(tmp_path / "model")
    assert torch.equal(loaded(torch.ones(2)), expected)
    assert repr(loaded.options) == repr(step.options)
    assert loaded.options._source_location_excludes == step.options._source_location_excludes
    assert loaded.options._module_namescope_enabled is False


def test_automatic_loss_scaling_goes_on_where_it_stood(tmp_path: Path) -> None:
    def wrapped() -> tuple[poptorch.PoplarExecutor, Any]:
        settings = options(accumulation=2)
        settings.Training.setAutomaticLossScaling(True)
        settings.anchorTensor("scale", "finalLossScale")
        settings.enableExecutableCaching(tmp_path / "cache")
        model = Classifier()
        optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, loss_scaling=4.0)
        return poptorch.trainingModel(model, settings, optimizer), optimizer

    step, optimizer = wrapped()
    x, labels = batch(8)
    for expected in (4.0, 8.0):
        step(x, labels)
        assert step.getAnchoredTensor("scale").item() == expected
    state = optimizer.state_dict()
    assert state["ipu_state"]["lossScaleUpdateFactor"].item() == 4.0
    step.save(tmp_path / "model")
    loaded = poptorch.load(tmp_path / "model")
    early, first = wrapped()
    early.load_state_dict(step.state_dict())
    first.load_state_dict(state)  # before there is a program
    late, second = wrapped()
    late.compile(x, labels)
    late.load_state_dict(step.state_dict())
    second.load_state_dict(state)
    loss = step(x, labels)[1]
    for other in (loaded, early, late):
        assert torch.equal(other(x, labels)[1], loss)
        assert other.getAnchoredTensor("scale").item() == 16.0


def test_a_tensor_of_several_names_stays_one(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
            self.second.weight = self.first.weight
            self.register_buffer("one", torch.ones(1))
            self.second.register_buffer("again", self.one)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return poptorch.identity_loss(self.second(self.first(x)) * self.one * self.second.again, "sum")

    model = Tied()
    step = poptorch.trainingModel(model, None, sgd(model))
    x = torch.randn(2, 3)
    step.compileAndExport(tmp_path / "model", x)
    loaded = poptorch.load(tmp_path / "model")
    for _ in range(2):
        assert torch.equal(loaded(x), step(x))
    assert loaded.second.weight is loaded.first.weight
    assert loaded.second.again is loaded.one
    torch.testing.assert_close(dict(loaded.state_dict()), dict(model.state_dict()))
