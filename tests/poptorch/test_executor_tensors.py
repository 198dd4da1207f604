"""Anchored tensors, names, hooks, counters and the other things that an executor tells of its program."""

from __future__ import annotations

import datetime
import json
import time
from typing import Any

import pytest
import torch
from torch import nn

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, options, sgd, twin_of
from torchipu.poptorch import OutputMode


def test_anchors_hand_back_gradients_and_updated_weights() -> None:
    model = Classifier()
    twin = twin_of(model)
    settings = options(1, 2, OutputMode.Final)
    settings.anchorTensor("gradients", "Gradient___head.bias", OutputMode.All)
    settings.anchorTensor("last", "Gradient___head.bias")
    settings.anchorTensor("weight", "UpdatedVar___head.bias")
    settings.anchorTensor("before", "head.bias")
    step = poptorch.trainingModel(model, settings, sgd(model))
    with pytest.raises(AssertionError, match=r"No tensor with name gradients found\."):
        step.getAnchoredTensor("gradients")
    x, labels = batch(8)
    logits, _ = step(x, labels)
    assert logits.shape == (4, 3)
    gradients = []
    for inputs, targets in zip(x.chunk(2), labels.chunk(2), strict=True):
        gradients += torch.autograd.grad(twin(inputs, targets)[1], twin.head.bias)
    torch.testing.assert_close(step.getAnchoredTensor("gradients"), torch.cat(gradients))
    torch.testing.assert_close(step.getAnchoredTensor("last"), gradients[-1])
    torch.testing.assert_close(step.getAnchoredTensor("before"), twin.head.bias.detach())
    torch.testing.assert_close(
        step.getAnchoredTensor("weight"), twin.head.bias.detach() - 0.1 * torch.stack(gradients).mean(0),
    )
    with pytest.raises(AssertionError, match="No tensor with name nothing found"):
        step.getAnchoredTensor("nothing")


def test_the_scale_of_automatic_loss_scaling_can_be_watched() -> None:
    model = Classifier()
    settings = options(2, 2)
    settings.Training.setAutomaticLossScaling(True)
    settings.anchorTensor("scale", "finalLossScale")
    settings.anchorTensor("all", "finalLossScale", OutputMode.All)
    step = poptorch.trainingModel(model, settings, poptorch.optim.SGD(model.parameters(), lr=0.1, loss_scaling=8.0))
    step(*batch(8))
    assert "finalLossScale" in step.getTensorNames()
    scale, everything = step.getAnchoredTensor("scale"), step.getAnchoredTensor("all")
    # No gradient is large: the scale doubles with the update between the two iterations.
    assert everything.tolist() == [8.0, 8.0, 16.0, 16.0]
    assert scale.tolist() == 16.0


def test_an_activation_is_anchored_by_the_name_that_getTensorNames_gives() -> None:
    model = Classifier()
    first = poptorch.inferenceModel(model)
    with pytest.raises(AssertionError):
        first.getTensorNames()
    x, _ = batch(8)
    first.compile(x)
    name, = (name for name in first.getTensorNames() if name.startswith("body/") and "MatMul" in name)
    settings = options(4)
    settings.anchorTensor("hidden", name, OutputMode.EveryN, 2)
    step = poptorch.inferenceModel(model, settings)
    step(x)
    found = step.getAnchoredTensor("hidden")
    expected = model.body(x).detach().unflatten(0, (4, 2))[[1, 3]].flatten(0, 1)
    torch.testing.assert_close(found, expected)


def test_an_anchor_that_the_program_does_not_have_is_refused() -> None:
    settings = options()
    settings.anchorTensor("odd", "Gradient___nothing")
    step = poptorch.inferenceModel(Classifier(), settings)
    with pytest.raises(poptorch.Error, match="Gradient___nothing"):
        step(batch(4)[0])


def test_the_ir_lists_ops_with_their_module_and_place() -> None:
    model = Classifier()
    step = poptorch.trainingModel(model, options(), sgd(model))
    with pytest.raises(poptorch.Error, match="Model has not been compiled"):
        step._debugGetPopartIR()
    assert step._executable is None
    step.compile(*batch(4))
    assert step._executable
    ops = json.loads(step._debugGetPopartIR())["maingraph"]
    kinds = {op["type"] for op in ops}
    assert {"MatMul", "SGD0VarUpdate", "Nll"} <= kinds
    assert any(op["name"].startswith("head/") for op in ops)
    assert all(isinstance(value, str) for op in ops for value in op["attributes"].values())


def test_the_ir_calls_layers_and_attributes_as_popart_does() -> None:
    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            product = poptorch.set_available_memory(torch.mm(x, x.t()), 0.3)
            result = torch.relu(self.norm(x)) + product.sum()
            return result, poptorch.identity_loss(result, "sum")

    step = poptorch.trainingModel(Normed())
    step.compile(torch.ones(3, 4))
    ops = json.loads(step._debugGetPopartIR())["maingraph"]
    assert {"BatchNormalization", "BatchNormalizationGrad", "Relu", "ReluGrad"} <= {op["type"] for op in ops}
    product = next(op for op in ops if op["type"] == "MatMul")
    assert product["attributes"]["availableMemoryProportion"] == "0.3"
    assert product["attributes"]["partialsType"] == "float"


@pytest.mark.parametrize(("make", "accumulation", "kinds"), [
    (lambda p: poptorch.optim.SGD(p, lr=0.1), 1, {"SGD0VarUpdate"}),
    (lambda p: poptorch.optim.SGD(p, lr=0.1), 2, {"SGD2PartialAcclUpdate", "SGD2VarUpdate"}),
    (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, {"SGD2PartialAcclUpdate", "SGD2VarUpdate"}),
    (lambda p: poptorch.optim.SGD(p, lr=0.1, momentum=0.9, use_combined_accum=True), 1,
     {"SGD1AcclUpdate", "SGD1VarUpdate"}),
    (lambda p: poptorch.optim.Adam(p, lr=0.1), 1, {"AdamUpdater", "AdamVarUpdate"}),
])
def test_the_ir_tells_the_variants_of_optimisers_apart(make: Any, accumulation: int, kinds: set[str]) -> None:
    model = Classifier()
    step = poptorch.trainingModel(model, options(1, accumulation), make(model.parameters()))
    step.compile(*batch(4))
    ops = json.loads(step._debugGetPopartIR())["maingraph"]
    assert {op["type"] for op in ops if "Update" in op["type"]} == kinds


@pytest.mark.parametrize(("has_checkpoint", "level", "num_stashes"), [
    (False, None, 1), (True, None, 2), (False, 0, 3),
])
def test_the_ir_shows_what_a_pipeline_keeps_for_the_backward(
    has_checkpoint: bool, level: int | None, num_stashes: int,
) -> None:
    class Staged(Classifier):
        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
            with poptorch.Block("first", ipu_id=0):
                x = torch.tanh(self.body(x))
                x = torch.tanh(poptorch.recomputationCheckpoint(x) if has_checkpoint else x)
            with poptorch.Block("second", ipu_id=1):
                return torch.nn.functional.cross_entropy(self.head(x), labels)

    settings = options(1, 4)
    if level is not None:
        settings._Popart.set("autoRecomputation", level)
    model = Staged()
    step = poptorch.trainingModel(model, settings, sgd(model))
    step.compile(*batch(8))
    ops = json.loads(step._debugGetPopartIR())["maingraph"]
    assert sum(op["type"] == "Stash" for op in ops) == sum(op["type"] == "Restore" for op in ops) == num_stashes
    assert any("Checkpoint" in op["name"] for op in ops) == has_checkpoint


@pytest.mark.parametrize(("mode", "more", "outputs"), [
    (OutputMode.All, {}, 8), (OutputMode.Final, {}, 1), (OutputMode.Sum, {}, 1),
    (OutputMode.EveryN, {"output_return_period": 2}, 4),
])
def test_counters_have_an_entry_for_every_micro_batch(mode: Any, more: Any, outputs: int) -> None:
    step = poptorch.inferenceModel(Classifier(), options(8, 1, mode, **more))
    assert list(step.getPerfCounters()) == ["input", "input_complete", "output", "output_complete"]
    assert all(times == [[]] for times in step.getPerfCounters().values())
    assert step.getLatency() == (0.0, 0.0, 0.0)
    step(batch(8)[0])
    counters = step.getPerfCounters()
    assert [len(times) for times in counters["input"]] == [8]
    assert [len(times) for times in counters["output_complete"]] == [outputs]
    assert counters["input"][0][0] <= counters["input_complete"][0][-1] <= counters["output"][0][0]
    for latency in (step.getLatency, step.getHostIpuLatency, step.getComputeLatency, step.getIpuHostLatency):
        least, greatest, mean = latency()
        assert 0 <= least <= mean <= greatest
    assert step.getLatency()[1] >= step.getComputeLatency()[1]


def test_compilation_is_no_part_of_the_first_latency() -> None:
    step = poptorch.inferenceModel(torch.nn.Linear(3, 3))
    began = time.perf_counter()
    step(torch.ones(2, 3))
    first_input = step.getPerfCounters()["input"][0][0]
    assert first_input - began >= step.compilationTime().total_seconds()


def test_cycles_are_those_of_the_machine_model() -> None:
    with pytest.raises(poptorch.Error, match="Cycle count logging is disabled"):
        poptorch.inferenceModel(Classifier()).cycleCount()
    counts = []
    for iterations in (1, 4):
        settings = options(iterations)
        settings.logCycleCount(True)
        model = Classifier()
        step = poptorch.trainingModel(model, settings, sgd(model))
        with pytest.raises(poptorch.Error, match="Please run the model at least once"):
            step.cycleCount()
        step(*batch(4 * iterations))
        counts.append(step.cycleCount())
    assert counts[0] > 0
    assert counts[1] == 4 * counts[0]


def test_compilation_time_is_told_after_compiling() -> None:
    step = poptorch.inferenceModel(Classifier())
    with pytest.raises(poptorch.Error, match="Please compile the model before obtaining compilation time"):
        step.compilationTime()
    step.compile(batch(4)[0])
    assert datetime.timedelta(0) < step.compilationTime() < datetime.timedelta(hours=1)


def test_hooks_run_around_every_capture_in_order_also_where_it_fails() -> None:
    calls: list[str] = []
    handles = [
        poptorch.registerPreCompileHook(lambda: calls.append("first")),
        poptorch.registerPreCompileHook(lambda: calls.append("second")),
        poptorch.registerPostCompileHook(lambda: calls.append("after")),
    ]
    try:
        step = poptorch.inferenceModel(lambda x: x)
        step(torch.ones(2))
        step(torch.ones(2))
        assert calls == ["first", "second", "after"]
        handles[1].remove()
        calls.clear()
        with pytest.raises(ZeroDivisionError):
            poptorch.inferenceModel(lambda x: x * (1 // 0))(torch.ones(2))
        assert calls == ["first", "after"]
    finally:
        for handle in handles:
            handle.remove()
    with pytest.raises(RuntimeError, match="must be callable"):
        poptorch.registerPostCompileHook(3)


def test_random_numbers_follow_the_seed_and_can_be_set_back() -> None:
    def make() -> poptorch.PoplarExecutor:
        return poptorch.inferenceModel(lambda x: x + torch.rand(16), options().randomSeed(7))

    x = torch.zeros(16)
    step, other = make(), make()
    with pytest.raises(poptorch.Error, match="Model has not been compiled"):
        _ = step.rng_state
    first, second = step(x), step(x)
    assert not torch.equal(first, second)
    assert torch.equal(other(x), first)
    assert other.rng_state[0] == 7
    state = other.rng_state
    assert torch.equal(other(x), second)
    other.rng_state = state
    assert torch.equal(other(x), second)


def test_compiling_twice_is_told_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    step = poptorch.inferenceModel(lambda x: x + 1)
    step.compile(torch.ones(2))
    before = step._executable
    step.compile(torch.ones(3))
    assert step._executable is before


def test_names_that_programs_use_are_there() -> None:
    model = Classifier()
    step = poptorch.trainingModel(model, options(), sgd(model))
    assert poptorch._poplar_executor.PoplarExecutor is poptorch.PoplarExecutor
    assert isinstance(step, poptorch.PoplarExecutor)
    assert step._user_model is model
    assert step._options is step.options
    poptorch._impl.unwrapModelIfNecessary(model)
    assert type(model) is Classifier
    poptorch._impl.rewrapModelIfNecessary(model)
    assert type(model).__name__ == "PoptorchClassifier"
    plain = Classifier()
    poptorch._impl.unwrapModelIfNecessary(plain)
    poptorch._impl.rewrapModelIfNecessary(plain)
    assert type(plain) is Classifier


def test_every_name_that_is_given_can_be_anchored_with_the_value_of_eager_code() -> None:
    model, (x, labels) = Classifier(), batch(6)
    names = poptorch.inferenceModel(model)
    names(x)
    hidden = model.body(x)
    # As PopTorch has them: the path of the module, the kind of the op, and what tells it from others of its kind.
    expected = {"body/MatMul:0": hidden, "Relu:0": hidden.relu(), "head/MatMul:0": model.head(hidden.relu())}
    assert set(expected) <= set(names.getTensorNames())
    settings = options()
    for number, name in enumerate(names.getTensorNames()):
        settings.anchorTensor(f"tensor {number}", name)
    step = poptorch.inferenceModel(model, settings)
    step(x)
    for number, name in enumerate(names.getTensorNames()):
        value = step.getAnchoredTensor(f"tensor {number}")
        if name in expected:
            torch.testing.assert_close(value, expected[name].detach())
    training = poptorch.trainingModel(twin_of(model))
    training(x, labels)
    settings = options()
    for number, name in enumerate(training.getTensorNames()):
        settings.anchorTensor(f"tensor {number}", name)
    again = poptorch.trainingModel(twin_of(model), settings)
    again(x, labels)
    assert all(
        again.getAnchoredTensor(f"tensor {number}").isfinite().all() for number in range(len(training.getTensorNames()))
    )


def test_a_model_may_have_attributes_named_as_the_executors_own() -> None:
    model = torch.nn.Linear(2, 2)
    found = poptorch.inferenceModel(model)
    own = sorted(vars(found))
    for name in own:
        setattr(model, name, "of the model")
    again = poptorch.inferenceModel(model)
    x = torch.randn(3, 2)
    assert torch.allclose(again(x), torch.nn.functional.linear(x, model.weight, model.bias))
    assert {getattr(model, name) for name in own} == {"of the model"}


@pytest.mark.parametrize("replicas", [1, 2])
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("mode", [OutputMode.All, OutputMode.EveryN, OutputMode.Sum, OutputMode.Final])
def test_updated_weights_are_handed_back_as_each_micro_batch_leaves_them(
    mode: OutputMode, accumulation: int, replicas: int,
) -> None:
    model, iterations, period = Classifier(), 4, 2
    twin = twin_of(model)
    settings = options(iterations, accumulation, OutputMode.Final).replicationFactor(replicas)
    settings.anchorTensor("weight", "UpdatedVar___head.weight", mode, period)
    step = poptorch.trainingModel(model, settings, sgd(model))
    x, labels = batch(2 * iterations * accumulation * replicas)
    step(x, labels)
    weights = []
    judge = torch.optim.SGD(twin.parameters(), lr=0.1)
    for inputs, targets in zip(x.chunk(iterations), labels.chunk(iterations), strict=True):
        weights += [twin.head.weight.detach().clone()] * (accumulation - 1)
        judge.zero_grad()
        twin(inputs, targets)[1].backward()
        judge.step()
        weights.append(twin.head.weight.detach().clone())
    after = torch.stack(weights).unflatten(0, (iterations, accumulation))
    expected = {
        OutputMode.All: after.flatten(0, 1), OutputMode.EveryN: after[period - 1 :: period].flatten(0, 1),
        OutputMode.Sum: after.sum((0, 1))[None], OutputMode.Final: after[-1, -1:],
    }[mode].repeat_interleave(replicas, 0).flatten(0, 1)
    torch.testing.assert_close(step.getAnchoredTensor("weight"), expected)
