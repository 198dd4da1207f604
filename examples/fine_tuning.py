"""Fine-tune a model with a part of it frozen: pre-train on some digits, then teach a new head all ten.

    python examples/fine_tuning.py
    python examples/fine_tuning.py --freeze none          # everything is trained on
    python examples/fine_tuning.py --pretrained FILE      # begin with weights that an earlier run has written
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from command_line import make_parser, positive
from digits import Digits, load_digits

NUM_FAMILIAR = 6
"""Digits 0 to 5 are in the pre-training, 6 to 9 come with the fine-tuning."""


class Classifier(nn.Module):
    """A CNN whose features, in two steps, serve any head."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.edges = nn.Sequential(nn.Conv2d(1, 8, 5, stride=2), nn.BatchNorm2d(8), nn.ReLU())
        self.shapes = nn.Sequential(nn.Conv2d(8, 24, 3, stride=2), nn.BatchNorm2d(24), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(24 * 5 * 5, num_classes)
        self.loss = nn.CrossEntropyLoss()

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the logits `[N, classes]` of images `[N, 1, 28, 28]`, and the loss when labels `[N]` are given."""
        logits = self.head(self.shapes(self.edges(images)))
        if labels is None:
            return logits
        return logits, self.loss(logits, labels)


FROZEN = {"none": (), "edges": ("edges",), "features": ("edges", "shapes")}
"""Parts that keep what they have learned, by the value of ``--freeze``."""


@dataclass(frozen=True)
class Result:
    """What a run reached.

    Attributes:
        pretrained_accuracy: Share of the held-back familiar digits that the pre-trained model recognises; None where
            its weights came from a file.
        accuracy: Share of all held-back digits that the fine-tuned model recognises.
        changed: Names of parameters and buffers that fine-tuning has changed.
        num_trained: Numbers in the parameters that were trained.
    """

    pretrained_accuracy: float | None
    accuracy: float
    changed: frozenset[str]
    num_trained: int


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--freeze", choices=tuple(FROZEN), default="features", help="what is not trained on")
    parser.add_argument("--pretrained", metavar="FILE", help="weights to begin with; None: pre-train now")
    parser.add_argument("--save", metavar="FILE", help="where the pre-trained weights go")
    parser.add_argument("--batch-size", type=number, default=32, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=10, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=2, help="passes of the pre-training")
    parser.add_argument("--tuning-epochs", type=number, default=2, help="passes of the fine-tuning")
    parser.add_argument("--learning-rate", type=real, default=0.002, help="of Adam")
    parser.add_argument("--num-samples", type=number, default=4_800, help="a pass over all digits")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the samples")
    return parser.parse_args(arguments)


def make_options(flags: argparse.Namespace) -> poptorch.Options:
    """Return the options of training."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.outputMode(poptorch.OutputMode.Sum)
    options.randomSeed(flags.seed)
    return options


def train(
    model: Classifier, images: torch.Tensor, labels: torch.Tensor, epochs: int, flags: argparse.Namespace
) -> None:
    """Train what is not frozen."""
    options = make_options(flags)
    loader = poptorch.DataLoader(options, TensorDataset(images, labels), batch_size=flags.batch_size, shuffle=True)
    if len(loader) == 0:
        raise SystemExit(
            f"one call takes {loader.combinedBatchSize} samples and there are {len(images)}: raise --num-samples"
        )
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = poptorch.optim.Adam(trained, lr=flags.learning_rate)
    training_model = poptorch.trainingModel(model, options, optimiser)
    began, num_images = time.perf_counter(), 0
    for epoch in range(epochs):
        losses = []
        for batch in loader:
            _, loss = training_model(*batch)
            losses.append(float(loss) / flags.device_iterations)
            num_images += len(batch[0])
        print(f"  epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}")
    print(f"  {num_images / (time.perf_counter() - began):,.0f} images/s, compilation included")
    # Weights come back when the model is looked at; now it is a plain module again, and can be changed and wrapped.
    training_model.destroy()


def accuracy(model: Classifier, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of images that the model recognises."""
    was_training = model.training
    inference_model = poptorch.inferenceModel(model.eval())
    right = inference_model(images).argmax(dim=1) == labels
    model.train(was_training)
    return float(right.float().mean())


def pretrain(digits: Digits, flags: argparse.Namespace) -> tuple[Classifier, float | None]:
    """Return a model that knows the familiar digits, and how well; from a file where one is given."""
    model = Classifier(NUM_FAMILIAR)
    if flags.pretrained:
        model.load_state_dict(torch.load(Path(flags.pretrained), weights_only=True))
        return model, None
    familiar = digits.train_labels < NUM_FAMILIAR
    print(f"Pre-training on the digits below {NUM_FAMILIAR}")
    train(model, digits.train_images[familiar], digits.train_labels[familiar], flags.epochs, flags)
    if flags.save:
        torch.save(model.state_dict(), Path(flags.save))
    held_back = digits.test_labels < NUM_FAMILIAR
    return model, accuracy(model, digits.test_images[held_back], digits.test_labels[held_back])


def freeze(model: Classifier, parts: Sequence[str]) -> None:
    """Let parts keep what they have: neither their weights nor the statistics of their normalisations change."""
    for name in parts:
        part = model.get_submodule(name)
        part.requires_grad_(False)
        part.eval()


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    digits = load_digits(None, flags.num_samples)
    model, pretrained_accuracy = pretrain(digits, flags)
    if pretrained_accuracy is not None:
        print(f"  test accuracy on these digits: {pretrained_accuracy:.2%}")

    model.head = nn.Linear(model.head.in_features, 10)
    model.train()
    freeze(model, FROZEN[flags.freeze])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    num_trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    num_all = sum(parameter.numel() for parameter in model.parameters())
    print(f"Fine-tuning on all digits: {num_trained:,} of {num_all:,} parameters are trained")
    train(model, digits.train_images, digits.train_labels, flags.tuning_epochs, flags)
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    reached = accuracy(model, digits.test_images, digits.test_labels)
    print(f"  changed: {', '.join(sorted(changed))}")
    print(f"  test accuracy on all digits: {reached:.2%}")
    return Result(pretrained_accuracy, reached, frozenset(changed), num_trained)


if __name__ == "__main__":
    run()
