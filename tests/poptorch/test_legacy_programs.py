"""Whole programs in the manner of those that were written for PopTorch: what each idiom does beside the others."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import popart
import popdist
import popdist.poptorch
import poptorch
import pytest
import torch
from poptorch.optim import LAMB, AdamW
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

VOCABULARY, LENGTH, MASKED = 40, 8, 3
BATCH = 2 * 2 * 7 * 2  # device iterations, replicas, micro-batches and samples in each


# --------------------------------------------------------------------------- pre-training a transformer
class SerialisedLinear(nn.Linear):
    """A product with a large matrix, cut into parts by its output channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product = poptorch.serializedMatMul(
            x, self.weight.t(), poptorch.MatMulSerializationMode.OutputChannels, factor=4,
        )
        product += self.bias
        return product


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor]:
        # Libraries leave out a mask that masks nothing, unless they learn that values cannot be looked at.
        if not torch.jit.is_tracing() and not mask.any():
            mask = None  # type: ignore[assignment]
        x = x + self.attention(x, x, x, key_padding_mask=mask, need_weights=False)[0]
        return (self.norm(x + self.feed(x)),)


class Pretraining(nn.Module):
    """Predicts masked tokens; returns the loss and the accuracy."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.decoder = SerialisedLinear(width, VOCABULARY)
        self.decoder.weight = self.embeddings.weight

    def parallelize(self) -> Pretraining:
        self.embeddings = poptorch.BeginBlock(self.embeddings, "Embedding", ipu_id=0)
        around = poptorch.Attribute(__outline={"layer": "embeddings"})
        self.embeddings.register_forward_pre_hook(lambda module, inputs: around.__enter__())
        self.embeddings.register_forward_hook(lambda module, inputs, output: around.__exit__(None, None, None))
        for index, layer in enumerate(self.layers):
            layer.register_forward_hook(
                lambda module, inputs, outputs: tuple(poptorch.recomputationCheckpoint(value) for value in outputs)
            )
            self.layers[index] = poptorch.BeginBlock(layer, f"Encoder{index}", ipu_id=index + 1)
        self.decoder = poptorch.BeginBlock(self.decoder, "Classifier", ipu_id=0)
        return self

    def forward(
        self, tokens: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, labels: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embeddings(tokens)
        for layer in self.layers:
            (x,) = layer(x, mask)
        one_hot = F.one_hot(positions, LENGTH).to(x.dtype)
        scores = self.decoder(torch.matmul(one_hot, x))
        loss = F.cross_entropy(scores.view(-1, VOCABULARY), labels.view(-1), ignore_index=0).float()
        right = (scores.argmax(-1) == labels).float()
        return poptorch.identity_loss(loss, reduction="none"), right.mean()


def pretraining_options(replicas: int = 2) -> poptorch.Options:
    if popdist.isPopdistEnvSet():
        options = popdist.poptorch.Options()
    else:
        options = poptorch.Options()
        options.replicationFactor(replicas)
    options.autoRoundNumIPUs(True)
    options.deviceIterations(2)
    options.Training.gradientAccumulation(7)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.outputMode(poptorch.OutputMode.Sum)
    options.randomSeed(42)
    options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    options.setAvailableMemoryProportion({f"IPU{ipu}": 0.2 for ipu in range(3)})
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    )
    options._Popart.set("disableGradAccumulationTensorStreams", True)
    options._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    options._Popart.set("outlineThreshold", 10.0)
    options._Popart.set(
        "accumulateOuterFragmentSettings.schedule", int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized)
    )
    options._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True})
    return options


def pretraining_optimizer(model: nn.Module, kind: type, **more: Any) -> torch.optim.Optimizer:
    exempt = [p for name, p in model.named_parameters() if "bias" in name or "norm" in name]
    others = [p for name, p in model.named_parameters() if "bias" not in name and "norm" not in name]
    groups = [{"params": others, "weight_decay": 0.01}, {"params": exempt, "weight_decay": 0.0}]
    optimizer: torch.optim.Optimizer = kind(groups, lr=0.01, eps=1e-6, loss_scaling=64.0, **more)
    return optimizer


def pretraining_batches(size: int, count: int) -> list[tuple[torch.Tensor, ...]]:
    generator = torch.Generator().manual_seed(5)
    found = []
    for _ in range(count):
        tokens = torch.randint(1, VOCABULARY, (size, LENGTH), generator=generator)
        mask = torch.zeros(size, LENGTH, dtype=torch.bool)
        mask[:, -2:] = True
        positions = torch.arange(MASKED).repeat(size, 1)
        found.append((tokens, mask, positions, tokens[:, :MASKED].clone()))
    return found


def warm_up(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3))


def pretrain(
    model: nn.Module, optimizer: torch.optim.Optimizer, schedule: torch.optim.lr_scheduler.LambdaLR,
    batches: list[tuple[torch.Tensor, ...]],
) -> Iterator[float]:
    """Yield the loss of each call, the mean over replicas and micro-batches."""
    training = poptorch.trainingModel(model, pretraining_options(), optimizer=optimizer)
    training.compile(*batches[0])
    for batch in batches:
        loss, _ = training(*batch)
        assert loss.shape == (2,)  # of each replica the sum over its micro-batches
        schedule.step()
        training.setOptimizer(optimizer)
        yield torch.div(loss, 2 * 7).mean().item()
    training.detachFromDevice()
    training.destroy()


def test_pretraining_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Pretraining().parallelize().train()
    begun = copy.deepcopy(model.state_dict())
    batches = pretraining_batches(BATCH, 6)
    optimizer = pretraining_optimizer(model, AdamW, max_grad_norm=1.0)
    whole = list(pretrain(model, optimizer, warm_up(optimizer), batches))
    assert whole[-1] < whole[0] - 0.05

    model.load_state_dict(begun)
    optimizer = pretraining_optimizer(model, AdamW, max_grad_norm=1.0)
    schedule = warm_up(optimizer)
    first = list(pretrain(model, optimizer, schedule, batches[:3]))
    torch.save({
        "model": model.state_dict(), "optimizer": optimizer.state_dict(), "schedule": schedule.state_dict(),
    }, tmp_path / "checkpoint.pt")

    kept = torch.load(tmp_path / "checkpoint.pt")
    resumed = Pretraining().parallelize().train()
    resumed.load_state_dict(kept["model"])
    optimizer = pretraining_optimizer(resumed, AdamW, max_grad_norm=1.0)
    schedule = warm_up(optimizer)
    optimizer.load_state_dict(kept["optimizer"])
    schedule.load_state_dict(kept["schedule"])
    assert first + list(pretrain(resumed, optimizer, schedule, batches[3:])) == whole


def test_the_first_loss_of_pretraining_is_that_of_the_host_in_float64() -> None:
    torch.manual_seed(1)
    model = Pretraining().parallelize().train()
    batch = pretraining_batches(BATCH, 1)[0]
    exact = copy.deepcopy(model).double()
    # Two updates: the first half of the batch is seen before the first of them, and an update of 0 changes nothing.
    optimizer = pretraining_optimizer(model, AdamW)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    (loss,) = pretrain(model, optimizer, schedule, [batch])
    torch.testing.assert_close(loss, exact(*batch)[0].item(), rtol=1e-5, atol=0)


def test_pretraining_in_half_precision_learns() -> None:
    torch.manual_seed(1)
    model = Pretraining().parallelize().half().train()
    optimizer = pretraining_optimizer(
        model, LAMB, accum_type=torch.float16, first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32, max_weight_norm=None,
    )
    losses = list(pretrain(model, optimizer, warm_up(optimizer), pretraining_batches(BATCH, 6)))
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


# --------------------------------------------------------------------------- training a CNN
class Residual(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inner, outer, 3, 2, 1, bias=False), nn.BatchNorm2d(outer)
        self.conv2, self.bn2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer)
        self.downsample = nn.Conv2d(inner, outer, 1, 2, bias=False)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += self.downsample(x)
        return self.relu(out)


class Residuals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer1 = nn.Sequential(Residual(3, 8))
        self.layer2 = nn.Sequential(Residual(8, 8), Residual(8, 16))
        self.fc = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.layer2(self.layer1(x)).mean((2, 3)))


class WithLoss(nn.Module):
    """Adds a smoothed loss and the accuracy to a model."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor]]:
        output = self.model(x)
        log_probabilities = torch.log_softmax(output.float(), -1)
        loss = 0.9 * F.nll_loss(log_probabilities, labels) - 0.1 * torch.mean(log_probabilities)
        with torch.no_grad():
            accuracy = (torch.argmax(output, dim=-1).int() == labels.int()).float().mean()
        return poptorch.identity_loss(loss, reduction="mean"), (accuracy,)


def split_at(model: nn.Module, splits: list[str]) -> None:
    """Begin a block at each named layer, wherever it lies in the model."""
    for number, path in enumerate(splits, 1):
        *parents, last = path.split("/")
        parent: Any = model
        for part in parents:
            parent = parent[int(part)] if part.isdigit() else getattr(parent, part)
        layer = parent[int(last)] if last.isdigit() else getattr(parent, last)
        begun = poptorch.BeginBlock(ipu_id=number, layer_to_call=layer)
        if last.isdigit():
            parent[int(last)] = begun
        else:
            setattr(parent, last, begun)


@pytest.fixture
def images() -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(64) % 4
    pictures = torch.randn(64, 3, 16, 16, generator=generator) + labels[:, None, None, None]
    return TensorDataset(pictures, labels)


def test_training_and_validation_take_turns_on_the_device_and_see_the_same_weights(images: TensorDataset) -> None:
    torch.manual_seed(0)
    model = Residuals()
    split_at(model, ["layer2/0", "layer2/1/conv1"])
    training_options = poptorch.Options()
    training_options.Training.gradientAccumulation(8)
    training_options.autoRoundNumIPUs(True)
    training_options.outputMode(poptorch.OutputMode.Sum)
    validation_options = poptorch.Options()
    validation_options.deviceIterations(4)
    validation_options.autoRoundNumIPUs(True)
    wrapped = WithLoss(model)
    optimizer = poptorch.optim.SGD(
        wrapped.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, use_combined_accum=True, loss_scaling=8.0,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    loader = poptorch.DataLoader(training_options, images, batch_size=4, shuffle=True, drop_last=True)
    validation_loader = poptorch.DataLoader(validation_options, images, batch_size=4)
    training = poptorch.trainingModel(wrapped, training_options, optimizer=optimizer)
    validation = poptorch.inferenceModel(model, validation_options)
    averages = {name: value.detach().clone() for name, value in model.state_dict().items()}
    losses = []
    for _ in range(3):
        model.train()
        training.attachToDevice() if training.isCompiled() else None
        for x, y in loader:
            loss, (accuracy,) = training(x, y)
            losses.append(loss.item() / 8)
            assert 0.0 <= accuracy.item() <= 8.0
        schedule.step()
        training.setOptimizer(optimizer)
        training.detachFromDevice()
        for name, value in model.state_dict().items():
            averages[name] = averages[name].lerp(value, 0.5) if value.is_floating_point() else value.clone()
        model.eval()
        validation.attachToDevice() if validation.isCompiled() else None
        exact = copy.deepcopy(model).double()
        for x, _ in validation_loader:
            torch.testing.assert_close(validation(x).double(), exact(x.double()), rtol=1e-4, atol=1e-4)
        validation.detachFromDevice()
    assert losses[-1] < losses[0] - 0.1

    training.destroy()  # the model is the host's again, and takes the averaged weights
    model.load_state_dict(averages)
    exact = copy.deepcopy(model).double()
    validation.copyWeightsToDevice()
    x, _ = next(iter(validation_loader))
    torch.testing.assert_close(validation(x).double(), exact(x.double()), rtol=1e-4, atol=1e-4)


# --------------------------------------------------------------------------- what such models ask of torch
def test_a_transformer_of_torch_takes_a_padding_mask_in_evaluation() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
    x, mask = torch.randn(3, 6, 16), torch.arange(6).repeat(3, 1) >= torch.tensor([[4], [5], [6]])
    found = poptorch.inferenceModel(model)(x, src_key_padding_mask=mask)
    # Of the padding, torch's own fast path makes zeros.
    expected = copy.deepcopy(model).double()(x.double(), src_key_padding_mask=mask)
    torch.testing.assert_close(found.double()[~mask], expected[~mask], rtol=1e-4, atol=1e-5)


def test_the_error_of_a_model_is_its_own_where_it_mixes_types_too() -> None:
    class Mixing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.conv(x))

    with pytest.raises(RuntimeError, match="running_mean should contain 8 elements not 4"):
        poptorch.inferenceModel(Mixing().eval())(torch.randn(2, 3, 8, 8).half())
