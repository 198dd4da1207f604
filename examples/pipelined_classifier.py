"""Train and test a classifier of digits that is split over IPUs: pipelined or sharded, replicated, state off chip.

    python examples/pipelined_classifier.py
    python examples/pipelined_classifier.py --strategy sharded --offload-optimiser
    python examples/pipelined_classifier.py --replicas 2 --checkpoint digits.pt
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

from command_line import make_parser, positive
from digits import Digits, load_digits


class Classifier(nn.Module):
    """A CNN in four blocks; which IPU computes which is up to the execution strategy."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 5, padding=2), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2))
        self.trunk = nn.Sequential(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2))
        self.hidden = nn.Sequential(nn.Flatten(), nn.Linear(16 * 7 * 7, 128), nn.ReLU())
        self.head = nn.Linear(128, 10)
        self.loss = nn.CrossEntropyLoss()

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the logits `[N, 10]` of images `[N, 1, 28, 28]`, and the loss when labels `[N]` are given."""
        with poptorch.Block("stem"):
            x = self.stem(images)
        with poptorch.Block("trunk"):
            x = self.trunk(x)
        with poptorch.Block("hidden"):
            x = self.hidden(x)
        with poptorch.Block("head"):
            logits = self.head(x)
            if labels is None:
                return logits
            return logits, self.loss(logits, labels)


@dataclass(frozen=True)
class Result:
    """What a run reached: the mean loss of each epoch, and the share of held-back digits that are recognised."""

    losses: tuple[float, ...]
    test_accuracy: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--strategy", choices=("pipelined", "sharded"), default="pipelined", help="how the IPUs share")
    parser.add_argument("--num-ipus", type=int, choices=(1, 2, 4), default=4, help="IPUs that a replica is split over")
    parser.add_argument("--replicas", type=number, default=1, help="copies of the model, each with data of its own")
    parser.add_argument("--offload-optimiser", action="store_true", help="keep AdamW's state in Streaming Memory")
    parser.add_argument("--batch-size", type=number, default=20, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=5, help="weight updates in one call")
    parser.add_argument("--gradient-accumulation", type=number, default=8, help="micro-batches in a weight update")
    parser.add_argument("--test-batch-size", type=number, default=18, help="samples in a micro-batch of the test")
    parser.add_argument("--test-device-iterations", type=number, default=20, help="micro-batches in one test call")
    parser.add_argument("--epochs", type=number, default=3, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=0.002, help="of AdamW, halved after each epoch")
    parser.add_argument("--data", metavar="DIR", help="folder with MNIST as torchvision keeps it; None: scikit-learn")
    parser.add_argument("--num-samples", type=number, default=16_000, help="a pass over scikit-learn's digits")
    parser.add_argument("--checkpoint", metavar="FILE", help="write model and optimiser there after training")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of the samples")
    return parser.parse_args(arguments)


def execution_strategy(flags: argparse.Namespace) -> poptorch.PipelinedExecution | poptorch.ShardedExecution:
    """Return the strategy that gives the four blocks to one, two or four IPUs, a stage for each IPU."""
    blocks = ["stem", "trunk", "hidden", "head"]
    share = len(blocks) // flags.num_ipus
    stages = [
        poptorch.Stage(*blocks[ipu * share : (ipu + 1) * share]).ipu(ipu) for ipu in range(flags.num_ipus)
    ]
    kind = poptorch.PipelinedExecution if flags.strategy == "pipelined" else poptorch.ShardedExecution
    return kind(*stages)


def training_options(flags: argparse.Namespace) -> poptorch.Options:
    """Return the options of training."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.replicationFactor(flags.replicas)
    options.Training.gradientAccumulation(flags.gradient_accumulation)
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    options.outputMode(poptorch.OutputMode.All)
    options.setExecutionStrategy(execution_strategy(flags))
    options.autoRoundNumIPUs(True)
    options.randomSeed(flags.seed)
    if flags.offload_optimiser:
        options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    return options


def testing_options(flags: argparse.Namespace) -> poptorch.Options:
    """Return the options of the test, which has no gradients to accumulate."""
    options = poptorch.Options()
    options.deviceIterations(flags.test_device_iterations)
    options.setExecutionStrategy(execution_strategy(flags))
    options.autoRoundNumIPUs(True)
    return options


def train(model: Classifier, digits: Digits, flags: argparse.Namespace) -> list[float]:
    """Train and return the mean loss of each epoch."""
    options = training_options(flags)
    loader = poptorch.DataLoader(
        options, TensorDataset(digits.train_images, digits.train_labels), batch_size=flags.batch_size, shuffle=True,
    )
    if len(loader) == 0:
        raise SystemExit(
            f"one call takes {loader.combinedBatchSize} samples and there are {len(digits.train_images)}: lower "
            "--device-iterations or --gradient-accumulation"
        )
    optimiser = poptorch.optim.AdamW(model.parameters(), lr=flags.learning_rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimiser, step_size=1, gamma=0.5)
    training_model = poptorch.trainingModel(model, options, optimiser)
    losses: list[float] = []
    for epoch in range(flags.epochs):
        epoch_losses: list[float] = []
        bar = tqdm(loader, desc=f"Epoch {epoch + 1}/{flags.epochs}")
        for images, labels in bar:
            logits, loss = training_model(images, labels)
            epoch_losses.append(float(loss.mean()))
            accuracy = (logits.argmax(dim=1) == labels).float().mean()
            bar.set_postfix(loss=f"{epoch_losses[-1]:.4f}", accuracy=f"{accuracy:.2%}")
        losses.append(sum(epoch_losses) / len(epoch_losses))
        schedule.step()
        training_model.setOptimizer(optimiser)  # the device keeps its learning rate until it is told
    training_model.detachFromDevice()
    if flags.checkpoint:
        torch.save(
            {"model": model.state_dict(), "optimiser": optimiser.state_dict(), "losses": losses}, Path(flags.checkpoint)
        )
        print(f"Checkpoint: {flags.checkpoint}")
    return losses


def test(model: Classifier, digits: Digits, flags: argparse.Namespace) -> float:
    """Return the share of the held-back digits that the model recognises; those that fill no call are left out."""
    model.eval()
    options = testing_options(flags)
    loader = poptorch.DataLoader(
        options, TensorDataset(digits.test_images, digits.test_labels), batch_size=flags.test_batch_size,
    )
    inference_model = poptorch.inferenceModel(model, options)
    num_right = num_seen = 0
    for images, labels in tqdm(loader, desc="Test"):
        num_right += int((inference_model(images).argmax(dim=1) == labels).sum())
        num_seen += len(labels)
    inference_model.detachFromDevice()
    if num_seen == 0:
        raise SystemExit(f"one call of the test takes {loader.combinedBatchSize} samples: lower --test-batch-size")
    print(f"Test accuracy: {num_right / num_seen:.2%} of {num_seen} digits")
    return num_right / num_seen


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    digits = load_digits(flags.data, flags.num_samples)
    print(f"{digits.name}: {len(digits.train_images)} training and {len(digits.test_images)} held-back images")
    model = Classifier()
    losses = train(model, digits, flags)
    print(f"Mean loss of each epoch: {', '.join(f'{loss:.4f}' for loss in losses)}")
    return Result(tuple(losses), test(model, digits, flags))


if __name__ == "__main__":
    run()
