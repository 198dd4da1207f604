"""Look into a model while it trains: gradients, weights and activations that are no outputs, by their names.

    python examples/observing_tensors.py                          # gradients vanish behind sigmoids
    python examples/observing_tensors.py --activation relu        # and less so behind ReLUs
    python examples/observing_tensors.py --list                   # names of all tensors that can be looked at
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
from digits import load_digits

ACTIVATIONS = {"sigmoid": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU}


class DeepNetwork(nn.Module):
    """A stack of equal layers; none of what happens inside is returned."""

    def __init__(self, num_layers: int, width: int, activation: str) -> None:
        super().__init__()
        self.reduce = nn.AvgPool2d(2)
        self.layers = nn.ModuleList(
            nn.Linear(14 * 14 if layer == 0 else width, width) for layer in range(num_layers)
        )
        self.activation = ACTIVATIONS[activation]()
        self.head = nn.Linear(width, 10)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss of images `[N, 1, 28, 28]` with labels `[N]`."""
        x = self.reduce(images).flatten(1)
        for layer in self.layers:
            x = self.activation(layer(x))
        return self.loss(self.head(x), labels)


@dataclass(frozen=True)
class Observed:
    """What was seen.

    Attributes:
        losses: Of each call, the mean over its micro-batches.
        gradient_norms: For each layer, the norm of its weight's gradient in each call.
        activations: What the last layer before the head gave in the last call, `[N, width]`.
        updated: The weight of the first layer after the last call.
    """

    losses: tuple[float, ...]
    gradient_norms: dict[str, tuple[float, ...]]
    activations: torch.Tensor
    updated: torch.Tensor


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="sigmoid", help="behind each layer")
    parser.add_argument("--num-layers", type=number, default=5, help="before the head")
    parser.add_argument("--width", type=number, default=64, help="of a layer")
    parser.add_argument("--list", action="store_true", help="print the names of all tensors, and end")
    parser.add_argument("--batch-size", type=number, default=32, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=10, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=3, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=0.02, help="of SGD with a momentum of 0.9")
    parser.add_argument("--num-samples", type=number, default=3_200, help="a pass over the digits")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the samples")
    return parser.parse_args(arguments)


def base_options(flags: argparse.Namespace) -> poptorch.Options:
    """Return the options without anything observed."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.outputMode(poptorch.OutputMode.All)
    options.randomSeed(flags.seed)
    return options


def find_activation(names: Sequence[str], kind: str, place: int) -> str:
    """Return the name of what one of the activations gives, from the names of all tensors.

    Only weights and gradients have names that can be told beforehand. Those of other tensors come from the module and
    the operator that made them, and are looked for.
    """
    found = [
        name for name in names
        if name.startswith("activation/") and kind in name.lower() and "Gradient___" not in name
    ]
    return found[place]


def tensor_names(model: nn.Module, flags: argparse.Namespace, batch: Sequence[torch.Tensor]) -> list[str]:
    """Return the names of all tensors: a model that is compiled, and not run, tells them."""
    training_model = poptorch.trainingModel(model, base_options(flags), make_optimiser(model, flags))
    training_model.compile(*batch)
    names = training_model.getTensorNames()
    training_model.destroy()  # so that the model can be wrapped again
    return names


def make_optimiser(model: nn.Module, flags: argparse.Namespace) -> poptorch.optim.SGD:
    """Return the optimiser."""
    return poptorch.optim.SGD(model.parameters(), lr=flags.learning_rate, momentum=0.9)


def run(arguments: Sequence[str] | None = None) -> Observed | None:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    digits = load_digits(None, flags.num_samples)
    call_size = flags.batch_size * flags.device_iterations
    if flags.num_samples < call_size:
        raise SystemExit(f"one call takes {call_size} samples and there are {flags.num_samples}: raise --num-samples")
    model = DeepNetwork(flags.num_layers, flags.width, flags.activation)
    names = tensor_names(model, flags, (digits.train_images[:call_size], digits.train_labels[:call_size]))
    if flags.list:
        print("\n".join(names))
        return None

    weights = [f"layers.{layer}.weight" for layer in range(flags.num_layers)] + ["head.weight"]
    options = base_options(flags)
    for weight in weights:  # once a call: of every tenth update
        options.anchorTensor(
            weight, f"Gradient___{weight}", poptorch.OutputMode.EveryN, output_return_period=flags.device_iterations,
        )
    options.anchorTensor("updated", "UpdatedVar___layers.0.weight", poptorch.OutputMode.Final)
    options.anchorTensor("activations", find_activation(names, flags.activation, -1), poptorch.OutputMode.Final)
    loader = poptorch.DataLoader(
        options, TensorDataset(digits.train_images, digits.train_labels), batch_size=flags.batch_size, shuffle=True,
    )
    training_model = poptorch.trainingModel(model, options, make_optimiser(model, flags))
    losses: list[float] = []
    norms: dict[str, list[float]] = {weight: [] for weight in weights}
    for _ in range(flags.epochs):
        for images, labels in loader:
            losses.append(float(training_model(images, labels).mean()))
            for weight in weights:
                norms[weight].append(float(training_model.getAnchoredTensor(weight).norm()))
    activations = training_model.getAnchoredTensor("activations")
    updated = training_model.getAnchoredTensor("updated")
    training_model.detachFromDevice()
    print_norms(norms)
    print(f"Loss of the first call {losses[0]:.4f}, of the last {losses[-1]:.4f}")
    print(
        f"Activations before the head: mean {activations.mean():.3f}, deviation between samples "
        f"{activations.std(dim=0).mean():.3f}"
    )
    return Observed(tuple(losses), {name: tuple(values) for name, values in norms.items()}, activations, updated)


def print_norms(norms: dict[str, list[float]]) -> None:
    """Print the norms of the first, the middle and the last call, with a bar on a logarithmic scale for the last."""
    print(f"{'gradient of':<18}{'first call':>12}{'middle':>12}{'last call':>12}")
    for name, values in norms.items():
        shown = (values[0], values[len(values) // 2], values[-1])
        decades = max(0.0, 6 + float(torch.tensor(max(values[-1], 1e-12)).log10()))  # of those above a millionth
        bar = "#" * round(5 * decades)
        print(f"{name:<18}{shown[0]:>12.2e}{shown[1]:>12.2e}{shown[2]:>12.2e}  {bar}")


if __name__ == "__main__":
    run()
