"""What a call of an executor returns: output modes, nesting, types, losses; judged by eager PyTorch."""

from __future__ import annotations

import collections
import copy
import io
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchipu.poptorch as poptorch
from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of
from torchipu.poptorch import OutputMode


class Pair(NamedTuple):
    total: torch.Tensor
    double: torch.Tensor


def infer(forward: Any, *inputs: Any, settings: poptorch.Options | None = None, **keywords: Any) -> Any:
    return poptorch.inferenceModel(forward, settings)(*inputs, **keywords)


# --------------------------------------------------------------------------- output modes
@pytest.mark.parametrize(("mode", "period", "kept"), [
    (OutputMode.All, None, range(6)), (OutputMode.Final, None, [5]), (OutputMode.EveryN, 2, [2, 3]),
])
def test_training_returns_the_micro_batches_that_the_mode_names(mode: OutputMode, period: int, kept: Any) -> None:
    model = Classifier()
    twin = twin_of(model)
    more = {} if period is None else {"output_return_period": period}
    # Two micro-batches in each of three iterations; with EveryN(2) those of the second iteration.
    step = poptorch.trainingModel(model, options(3, 2, mode, **more), sgd(model))
    x, labels = batch(24)
    logits, losses = step(x, labels)
    found = eager_training(twin, sgd(twin), (x, labels), updates=3, micro_batches=2)
    torch.testing.assert_close(logits, torch.cat([found[n][0] for n in kept]))
    expected = torch.stack([found[n][1] for n in kept])
    torch.testing.assert_close(losses, expected[0] if len(kept) == 1 else expected)


def test_sum_adds_over_iterations_and_accumulation_but_not_over_the_batch() -> None:
    model = Classifier()
    twin = twin_of(model)
    step = poptorch.trainingModel(model, options(2, 3, OutputMode.Sum), sgd(model))
    x, labels = batch(24)
    logits, loss = step(x, labels)
    found = eager_training(twin, sgd(twin), (x, labels), updates=2, micro_batches=3)
    torch.testing.assert_close(logits, torch.stack([output for output, _ in found]).sum(0))
    torch.testing.assert_close(loss, torch.stack([loss for _, loss in found]).sum())


def test_default_mode_is_final_in_training_and_all_in_inference_and_the_users_options_keep_default() -> None:
    settings = options(2)
    model = Classifier()
    training = poptorch.trainingModel(model, settings, sgd(model))
    inference = poptorch.inferenceModel(model, settings)
    assert training.options.output_mode == OutputMode.Final
    assert inference.options.output_mode == OutputMode.All
    assert settings.output_mode == OutputMode.Default
    x, labels = batch(8)
    assert training(x, labels)[0].shape == (4, 3)
    assert inference(x).shape == (8, 3)


@pytest.mark.parametrize(("mode", "more", "shapes"), [
    (OutputMode.All, {}, [(8, 2), (4,), (12,)]), (OutputMode.Final, {}, [(2, 2), (), (3,)]),
    (OutputMode.Sum, {}, [(2, 2), (), (3,)]), (OutputMode.EveryN, {"output_return_period": 2}, [(4, 2), (2,), (6,)]),
])
def test_results_are_joined_along_dimension_0_whether_or_not_it_is_a_batch(mode: Any, more: Any, shapes: Any) -> None:
    found = infer(lambda x: (x, x.sum(), x.new_ones(3)), torch.rand(8, 2), settings=options(4, 1, mode, **more))
    assert [value.shape for value in found] == [torch.Size(shape) for shape in shapes]


# --------------------------------------------------------------------------- nesting
def test_results_keep_containers_keys_constants_and_repetitions() -> None:
    def forward(x: torch.Tensor) -> Any:
        double = x * 2
        return {"b": [double, (x.sum(), None)], "a": collections.OrderedDict(z=double, y="word"), "n": 7}

    x = torch.rand(2, 3)
    found = infer(forward, x)
    assert list(found) == ["b", "a", "n"]
    assert isinstance(found["b"], list)
    assert isinstance(found["b"][1], tuple)
    assert type(found["a"]) is collections.OrderedDict
    assert (found["b"][1][1], found["a"]["y"], found["n"]) == (None, "word", 7)
    assert torch.equal(found["b"][0], x * 2)
    assert torch.equal(found["a"]["z"], x * 2)
    torch.testing.assert_close(found["b"][1][0], x.sum())


def test_a_tensor_of_the_host_that_forward_hands_on_comes_back_with_its_values_and_a_warning() -> None:
    class Handing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.labels = torch.tensor([3.0, 1.0, 4.0])

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x + 1, self.labels

    with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
        _, labels = infer(Handing(), torch.zeros(2))
    assert labels.tolist() == [3, 1, 4]


def test_named_tuples_come_back_as_what_they_are_and_those_of_torch_as_tuples() -> None:
    x = torch.rand(2, 3)
    found = infer(lambda x: (Pair(x.sum(), x * 2), torch.max(x, dim=1)), x)
    assert type(found[0]) is Pair
    assert torch.equal(found[0].double, x * 2)
    assert type(found[1]) is tuple
    assert torch.equal(found[1][0], x.max(dim=1).values)


@pytest.mark.parametrize("forward", [lambda x: None, lambda x: 3, lambda x: (4, "five")])
def test_a_model_may_return_no_tensor(forward: Any) -> None:
    expected = forward(None)
    assert infer(forward, torch.rand(2)) == expected


def test_a_model_may_take_nothing_and_may_return_its_input_or_a_parameter() -> None:
    class Echo(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.arange(3.0))

        def forward(self, x: torch.Tensor | None = None) -> Any:
            return (x, self.weight, self.weight + 1)

    model = Echo()
    found = infer(model)
    assert found[0] is None
    assert torch.equal(found[1], torch.arange(3.0))
    x = torch.rand(2, 2)
    found = infer(model, x)
    assert torch.equal(found[0], x)
    assert torch.equal(found[2], torch.arange(1.0, 4.0))


# --------------------------------------------------------------------------- types
def test_types_that_the_device_lacks_come_back_narrowed() -> None:
    found = infer(
        lambda x, i: (i + 1, x.double(), x > 0, (x > 0).sum(), torch.arange(3), i.to(torch.int8), x.half()),
        torch.tensor([1.0, -2.0]), torch.tensor([3, 4]),
    )
    assert [value.dtype for value in found] == [
        torch.int32, torch.float32, torch.bool, torch.int32, torch.int32, torch.int8, torch.float16,
    ]
    assert found[0].tolist() == [4, 5]
    assert found[3].item() == 1


def test_double_inputs_are_computed_as_float() -> None:
    x = torch.full((2,), 1 + 1e-12, dtype=torch.float64)
    assert torch.equal(infer(lambda x: (x - 1) * 1e12, x), torch.zeros(2))


@pytest.mark.parametrize(("weights", "inputs"), [(torch.float32, torch.float16), (torch.float16, torch.float32)])
@pytest.mark.parametrize("layer", [nn.Linear(4, 3), nn.Conv1d(4, 3, 1)])
def test_layers_follow_the_type_of_their_input(layer: nn.Module, weights: Any, inputs: Any) -> None:
    layer = twin_of(layer).to(weights)
    x = torch.rand(2, 4, 4).to(inputs)
    found = infer(layer, x)
    assert found.dtype == inputs
    torch.testing.assert_close(found.double(), layer.double()(x.double()).detach(), rtol=2e-3, atol=2e-3)


# --------------------------------------------------------------------------- losses
class Losses(nn.Module):
    """Has one weight and computes losses as it is told."""

    def __init__(self, forward: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, -2.0]))
        self.function = forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x * self.weight)


def trained(function: Any) -> torch.Tensor:
    model = Losses(function)
    poptorch.trainingModel(model, options(), sgd(model, 1.0))(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    return model.weight.detach()


def gradient(function: Any) -> torch.Tensor:
    model = Losses(function)
    function(torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * model.weight).backward()
    return model.weight.grad


@pytest.mark.parametrize(("reduction", "reduce"), [("sum", torch.sum), ("mean", torch.mean)])
def test_identity_loss_reduces_and_is_what_is_trained(reduction: str, reduce: Any) -> None:
    start = Losses(None).weight.detach()
    found = trained(lambda y: (y, poptorch.identity_loss(y * y, reduction), y.sum()))
    torch.testing.assert_close(found, start - gradient(lambda y: reduce(y * y)))
    y = torch.rand(3)
    assert torch.equal(poptorch.identity_loss(y, reduction), reduce(y))


def test_the_loss_need_not_be_returned_nor_stand_anywhere_special() -> None:
    start = Losses(None).weight.detach()
    expected = start - gradient(lambda y: F.mse_loss(y, torch.ones(2, 2)))
    torch.testing.assert_close(trained(lambda y: (F.mse_loss(y, torch.ones(2, 2)), y)[1]), expected)
    torch.testing.assert_close(trained(lambda y: {"x": [F.mse_loss(y, torch.ones(2, 2)), y]}), expected)


def test_marked_losses_may_feed_a_final_one() -> None:
    def forward(y: torch.Tensor) -> Any:
        one = poptorch.identity_loss(y, "sum")
        other = poptorch.identity_loss(F.l1_loss(y, torch.ones(2, 2), reduction="none"), "mean")
        return y, poptorch.identity_loss(one + 3 * other, "none")

    start = Losses(None).weight.detach()
    torch.testing.assert_close(
        trained(forward), start - gradient(lambda y: y.sum() + 3 * F.l1_loss(y, torch.ones(2, 2))),
    )


@pytest.mark.parametrize(("function", "message"), [
    (lambda y: y.sum(), "Couldn't find a loss in graph!"),
    (lambda y: (F.mse_loss(y, y.detach() + 1), F.l1_loss(y, y.detach() + 1)), "Multiple independent losses found"),
    (lambda y: poptorch.identity_loss(y, "none"), "must be a scalar"),
])
def test_a_loss_that_cannot_be_told_is_refused(function: Any, message: str) -> None:
    model = Losses(function)
    step = poptorch.trainingModel(model, options(), sgd(model))
    with pytest.raises(poptorch.Error, match=message):
        step(torch.rand(2, 2))
    assert not step.isCompiled()
    assert model(torch.rand(2, 2)) is not None


def test_reduction_of_another_name_is_refused() -> None:
    with pytest.raises(AssertionError, match="Unsupported reduction type!"):
        poptorch.identity_loss(torch.ones(2), "product")


def test_a_model_whose_parameters_are_frozen_or_do_not_reach_the_loss_runs() -> None:
    model = Losses(lambda y: (y, F.mse_loss(y, torch.ones(2, 2))))
    optimizer = sgd(model)
    model.weight.requires_grad_(False)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    output, loss = poptorch.trainingModel(model, options(), optimizer)(x)
    assert torch.equal(output, x * torch.tensor([1.0, -2.0]))
    torch.testing.assert_close(loss, F.mse_loss(output, torch.ones(2, 2)))
    assert torch.equal(model.weight, torch.tensor([1.0, -2.0]))


def test_a_function_without_parameters_can_be_wrapped_for_training() -> None:
    x = torch.tensor([1.0, 3.0])
    found = poptorch.trainingModel(lambda x: (x * 2, poptorch.identity_loss(x, "mean")))(x)
    assert torch.equal(found[0], x * 2)
    assert found[1].item() == 2.0


def test_without_an_optimiser_training_is_sgd_of_a_hundredth() -> None:
    model = Classifier()
    twin = twin_of(model)
    step = poptorch.trainingModel(model)
    x, labels = batch(4)
    step(x, labels)
    eager_training(twin, sgd(twin, 0.01), (x, labels))
    torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()))


def test_a_saved_result_is_a_plain_tensor() -> None:
    result = infer(lambda x: x + 1, torch.zeros(2))
    file = io.BytesIO()
    torch.save({"result": result}, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)["result"]  # which takes nothing but what torch itself can make
    assert loaded.tolist() == [1, 1]
    assert "backward" not in vars(loaded)
    assert copy.deepcopy(result).tolist() == [1, 1]


def test_backward_of_a_result_is_refused() -> None:
    model = Classifier()
    _, loss = poptorch.trainingModel(model, options(), sgd(model))(*batch(4))
    with pytest.raises(poptorch.Error, match="backward\\(\\) cannot be called explicitly"):
        loss.backward()
