"""Programs that use several parts of the compat layer at once, beside the same training in eager and in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.poptorch.models import Classifier, batch, eager_training, options, sgd, twin_of
from torchipu import poptorch


def assert_trained_alike(model: nn.Module, twin: nn.Module, tolerance: float = 1e-5) -> None:
    for (name, value), expected in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        torch.testing.assert_close(value.double(), expected.double(), rtol=tolerance, atol=tolerance, msg=name)


class LanguageModel(nn.Module):
    """Words ``[N, L]`` through three stages; the last lies on the IPU of the first, whose weight it shares."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.body, self.head = nn.Embedding(11, 6), nn.Linear(6, 6), nn.Linear(6, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: torch.Tensor, labels: torch.Tensor) -> Any:
        with poptorch.Block("words", ipu_id=0):
            hidden = self.words(words)
        with poptorch.Block("body", ipu_id=1):
            hidden = self.body(hidden).tanh()
        with poptorch.Block("head", ipu_id=0):
            logits = self.head(hidden)
            return logits, F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def test_a_weight_of_two_stages_of_a_pipeline_is_one() -> None:
    model = LanguageModel()
    twin = twin_of(model).double()
    words, labels = torch.randint(11, (24, 3)), torch.randint(11, (24, 3))
    step = poptorch.trainingModel(model, options(iterations=2, accumulation=6), sgd(model))
    optimizer = sgd(twin)
    for _ in range(2):
        step(words, labels)
        eager_training(twin, optimizer, (words, labels), updates=2, micro_batches=6)
    assert_trained_alike(model, twin)
    assert model.head.weight is model.words.weight


class InStages(nn.Module):
    """Three layers on an IPU each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
        poptorch.BeginBlock(self.layers[2], ipu_id=1)
        poptorch.BeginBlock(self.layers[4], ipu_id=2)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.layers(x)
        return logits, F.cross_entropy(logits, labels)


@pytest.mark.parametrize("strategy", [
    poptorch.ShardedExecution, lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), lambda: None,
])
def test_every_strategy_trains_the_same_model(strategy: Callable[[], Any]) -> None:
    model, inputs = InStages(), batch(20)
    twin = twin_of(model).double()
    settings, chosen = options(accumulation=5), strategy()
    settings.autoRoundNumIPUs(True)
    if chosen is not None:
        settings.setExecutionStrategy(chosen)
    step = poptorch.trainingModel(model, settings, poptorch.optim.Adam(model.parameters(), lr=0.01))
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.01)
    for _ in range(3):
        step(*inputs)
        eager_training(twin, optimizer, (inputs[0].double(), inputs[1]), micro_batches=5)
    assert_trained_alike(model, twin)


@pytest.mark.parametrize("make", [
    lambda model: poptorch.optim.AdamW(model.parameters(), lr=0.01),
    lambda model: poptorch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, use_combined_accum=False),
    lambda model: poptorch.optim.LAMB(model.parameters(), lr=0.01),
    lambda model: poptorch.optim.RMSprop(model.parameters(), lr=0.01),
])
def test_training_goes_on_from_a_file_as_if_it_had_not_stopped(
    make: Callable[[nn.Module], Any], tmp_path: Path,
) -> None:
    batches = [batch(size) for size in (4, 4, 4, 4)]
    batches = [(x + number, labels) for number, (x, labels) in enumerate(batches)]

    def begun(saved: Path | None = None) -> tuple[nn.Module, Any, Any]:
        model = Classifier()
        optimizer = make(model)
        if saved is not None:
            found = torch.load(saved, weights_only=False)
            model.load_state_dict(found["model"])
            optimizer.load_state_dict(found["optimizer"])
        return model, optimizer, poptorch.trainingModel(model, options(), optimizer)

    whole, _, step = begun()
    for inputs in batches:
        step(*inputs)
    first, optimizer, step = begun()
    for inputs in batches[:2]:
        step(*inputs)
    torch.save({"model": first.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    step.destroy()
    second, _, step = begun(tmp_path / "state.pt")
    for inputs in batches[2:]:
        step(*inputs)
    for name, value in second.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name


class Normalised(nn.Module):
    """With running statistics, which training writes and inference reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> Any:
        logits = self.norm(self.body(x))
        return logits if labels is None else (logits, F.cross_entropy(logits, labels))


def test_training_and_validation_take_turns_on_one_device() -> None:
    model, inputs = Normalised(), batch(8)
    twin = twin_of(model)
    train = poptorch.trainingModel(model, options(), sgd(model))
    validate, optimizer = poptorch.inferenceModel(model, options()), sgd(twin)
    for _ in range(3):
        train(*inputs)
        train.detachFromDevice()
        eager_training(twin.train(), optimizer, inputs)
        model.eval()
        torch.testing.assert_close(validate(inputs[0]), twin.eval()(inputs[0]).detach(), rtol=1e-5, atol=1e-5)
        validate.detachFromDevice()
        model.train()
        train.attachToDevice()


class WithAuxiliaryLoss(nn.Module):
    """A loss of two terms, and both of them by name."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(6, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        hidden = self.body(x).relu()
        terms = {"main": F.smooth_l1_loss(self.head(hidden).flatten(), labels.to(x.dtype)), "size": hidden.abs().mean()}
        return terms, poptorch.identity_loss(terms["main"] + 0.1 * terms["size"], reduction="none")


def test_terms_of_a_loss_come_back_for_every_micro_batch() -> None:
    model, inputs = WithAuxiliaryLoss(), batch(8)
    twin = twin_of(model).double()
    settings = options(accumulation=2, mode=poptorch.OutputMode.All)
    terms, loss = poptorch.trainingModel(model, settings, sgd(model))(*inputs)
    optimizer = sgd(twin)
    for number, (x, labels) in enumerate(zip(*(value.chunk(2) for value in inputs), strict=True)):
        wanted, of_twin = twin(x.double(), labels)
        (of_twin / 2).backward()
        for name, value in {**terms, "loss": loss}.items():
            assert value.shape == (2,)
            torch.testing.assert_close(
                value[number].double(), {**wanted, "loss": of_twin}[name].detach(), rtol=1e-5, atol=1e-6,
            )
    optimizer.step()
    assert_trained_alike(model, twin)
