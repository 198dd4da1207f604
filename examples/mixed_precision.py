"""Train in half precision: half weights, parts kept in float, loss scaling and stochastic rounding.

    python examples/mixed_precision.py
    python examples/mixed_precision.py --precisions half --loss-scaling 1 --no-stochastic-rounding

float    everything in float32
half     model, data and optimiser states in float16
mixed    the same with parts that need the range or the precision in float32: normalisations, the last layer, the
         loss and the optimiser's second moments
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from command_line import make_parser, positive
from digits import Digits, load_digits

PRECISIONS = ("float", "half", "mixed")


class Classifier(nn.Module):
    """A CNN that takes images in the type of its first layer and brings activations to the type of each part."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 5, stride=2)
        self.norm1 = nn.GroupNorm(3, 12)
        self.conv2 = nn.Conv2d(12, 24, 3, stride=2)
        self.norm2 = nn.GroupNorm(4, 24)
        self.head = nn.Linear(24 * 5 * 5, 10)
        self.loss = nn.CrossEntropyLoss()

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the logits `[N, 10]` of images `[N, 1, 28, 28]`, and the loss when labels `[N]` are given."""
        x = images
        for convolution, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2)):
            x = convolution(x.to(convolution.weight.dtype))
            x = torch.relu(norm(x.to(norm.weight.dtype)))
        logits = self.head(x.flatten(1).to(self.head.weight.dtype))
        if labels is None:
            return logits
        return logits, self.loss(logits, labels)


@dataclass(frozen=True)
class Result:
    """What training in a precision reached.

    Attributes:
        losses: Of each call.
        test_accuracy: Share of the held-back digits that are recognised.
        parameter_bytes: Of all parameters together.
    """

    losses: tuple[float, ...]
    test_accuracy: float
    parameter_bytes: int


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS), help="to be compared")
    parser.add_argument("--loss-scaling", type=real, default=256.0, help="factor of the loss where anything is half")
    parser.add_argument(
        "--stochastic-rounding", action=argparse.BooleanOptionalAction, default=True, help="round halves by chance"
    )
    parser.add_argument("--half-partials", action="store_true", help="let sums of products be half as well")
    parser.add_argument("--batch-size", type=number, default=32, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=10, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=2, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=0.002, help="of AdamW")
    parser.add_argument("--num-samples", type=number, default=6_400, help="a pass over the digits")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, the samples and the rounding")
    return parser.parse_args(arguments)


def make_model(precision: str, seed: int) -> Classifier:
    """Return the model with its parts in the types of a precision."""
    torch.manual_seed(seed)
    model = Classifier()
    if precision != "float":
        model.half()
    if precision == "mixed":
        for part in (model.norm1, model.norm2, model.head):
            part.float()
    return model


def make_optimiser(model: Classifier, precision: str, flags: argparse.Namespace) -> poptorch.optim.AdamW:
    """Return AdamW with its accumulators and moments in the types of a precision."""
    if precision == "float":
        return poptorch.optim.AdamW(model.parameters(), lr=flags.learning_rate)
    second = torch.float32  # squares of gradients leave the range of half
    first = torch.float16 if precision == "half" else torch.float32
    return poptorch.optim.AdamW(
        model.parameters(), lr=flags.learning_rate, loss_scaling=flags.loss_scaling, accum_type=torch.float16,
        first_order_momentum_accum_type=first, second_order_momentum_accum_type=second,
        eps=1e-8 if precision == "mixed" else 1e-6,
    )


def make_options(precision: str, flags: argparse.Namespace) -> poptorch.Options:
    """Return the options of training."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.outputMode(poptorch.OutputMode.All)
    options.randomSeed(flags.seed)
    if precision != "float":
        options.Precision.enableStochasticRounding(flags.stochastic_rounding)
        options.Precision.setPartialsType(torch.half if flags.half_partials else torch.float)
    return options


def train_and_test(precision: str, digits: Digits, flags: argparse.Namespace) -> Result:
    """Train in one precision and test what came of it."""
    model = make_model(precision, flags.seed)
    options = make_options(precision, flags)
    data_type = torch.float32 if precision == "float" else torch.float16
    dataset = TensorDataset(digits.train_images.to(data_type), digits.train_labels)
    loader = poptorch.DataLoader(options, dataset, batch_size=flags.batch_size, shuffle=True)
    training_model = poptorch.trainingModel(model, options, make_optimiser(model, precision, flags))
    losses = []
    for _ in range(flags.epochs):
        for images, labels in loader:
            _, loss = training_model(images, labels)
            losses.append(float(loss.float().mean()))
    training_model.detachFromDevice()
    if not losses:
        raise SystemExit(f"one call takes {loader.combinedBatchSize} samples: raise --num-samples")
    inference_model = poptorch.inferenceModel(model.eval())
    right = inference_model(digits.test_images.to(data_type)).argmax(dim=1) == digits.test_labels
    parameter_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    return Result(tuple(losses), float(right.float().mean()), parameter_bytes)


def run(arguments: Sequence[str] | None = None) -> dict[str, Result]:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    digits = load_digits(None, flags.num_samples)
    found: dict[str, Result] = {}
    print(f"{'precision':<11}{'weights':>11}{'first loss':>12}{'last loss':>11}{'test accuracy':>15}")
    for precision in flags.precisions:
        result = found[precision] = train_and_test(precision, digits, flags)
        print(
            f"{precision:<11}{result.parameter_bytes:>9,} B{result.losses[0]:>12.4f}{result.losses[-1]:>11.4f}"
            f"{result.test_accuracy:>15.2%}"
        )
    return found


if __name__ == "__main__":
    run()
