"""Bring an operator of one's own along: grouped gather, computed on the device and on the host.

    python examples/custom_operator.py
    python examples/custom_operator.py --on-host          # the operator runs on the host in the middle of the program
    python examples/custom_operator.py --gradient torch   # torch derives the gradient from the forward

A PopTorch program loads such an operator from a library that was built for the device:

    ctypes.cdll.LoadLibrary("build/grouped_gather.so")

Here, a Python function is registered in its place; the model and its call of ``poptorch.custom_op`` stay as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset

from command_line import make_parser, positive

NAME, DOMAIN, VERSION = "GroupedGather", "torchipu.examples", 1
NUM_GROUPS, NUM_ROWS, WIDTH = 4, 12, 16


# ------------------------------------------------------------------ what the operator computes
def gather(inputs: list[torch.Tensor], attributes: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the rows that indices name, each from the table of its own group, times a factor.

    Args:
        inputs: A table for each group, `[G, R, W]`, and indices `[N, G]`.
        attributes: ``scale``, the factor.

    Returns:
        Rows `[N, G, W]`.
    """
    tables, indices = inputs
    group = torch.arange(tables.shape[0], device=tables.device)
    return [tables[group, indices] * attributes["scale"]]


def gather_gradient(
    gradients: list[torch.Tensor], inputs: list[torch.Tensor], outputs: list[torch.Tensor],
    attributes: Mapping[str, Any],
) -> list[torch.Tensor | None]:
    """Return the gradient of the tables: that of each row added to where the row came from; none of the indices."""
    tables, indices = inputs
    group = torch.arange(tables.shape[0], device=tables.device).expand_as(indices)
    zeros = torch.zeros_like(tables)
    return [zeros.index_put((group, indices), gradients[0] * attributes["scale"], accumulate=True), None]


def register(flags: argparse.Namespace) -> None:
    """Register the operator; on a machine with IPUs, a library would be loaded here."""
    gradient = gather_gradient if flags.gradient == "own" or flags.on_host else None
    poptorch.registerCustomOp(NAME, DOMAIN, VERSION, gather, gradient, on_host=flags.on_host)


# ------------------------------------------------------------------ the model
class Recommender(nn.Module):
    """Scores a row of categorical features: an embedding of each from a table of its own, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.Parameter(torch.randn(NUM_GROUPS, NUM_ROWS, WIDTH) / 4)
        self.score = nn.Linear(NUM_GROUPS * WIDTH, 1)

    def forward(self, features: torch.Tensor, ratings: torch.Tensor | None = None) -> Any:
        """Return scores `[N]` of features `[N, G]`, and the loss where ratings `[N]` are given."""
        example = torch.zeros(*features.shape, WIDTH, dtype=self.tables.dtype)
        rows, = poptorch.custom_op(
            [self.tables, features], NAME, DOMAIN, VERSION, example_outputs=[example], attributes={"scale": 2.0},
        )
        scores = self.score(rows.flatten(1)).squeeze(1)
        if ratings is None:
            return scores
        return scores, nn.functional.mse_loss(scores, ratings)


@dataclass(frozen=True)
class Result:
    """What a run reached: the loss of each call, and the greatest difference of inference from plain PyTorch."""

    losses: tuple[float, ...]
    difference: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--gradient", choices=("own", "torch"), default="own", help="whose; on the host our own")
    parser.add_argument("--on-host", action="store_true", help="compute the operator on the host")
    parser.add_argument("--batch-size", type=number, default=32, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=8, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=3, help="passes over the samples")
    parser.add_argument("--learning-rate", type=real, default=0.01, help="of Adam")
    parser.add_argument("--num-samples", type=number, default=2_048, help="made up: ratings are sums over features")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the samples")
    return parser.parse_args(arguments)


def make_samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features `[N, G]` and ratings `[N]`, each the sum of a hidden value of every feature."""
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(NUM_GROUPS, NUM_ROWS, generator=generator)
    features = torch.randint(NUM_ROWS, (count, NUM_GROUPS), generator=generator)
    return features, hidden[torch.arange(NUM_GROUPS), features].sum(1)


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    register(flags)
    torch.manual_seed(flags.seed)
    features, ratings = make_samples(flags.num_samples, flags.seed)
    model = Recommender()
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.outputMode(poptorch.OutputMode.All)
    options.randomSeed(flags.seed)
    loader = poptorch.DataLoader(options, TensorDataset(features, ratings), batch_size=flags.batch_size, shuffle=True)
    if len(loader) == 0:
        raise SystemExit(f"one call takes {loader.combinedBatchSize} samples: raise --num-samples")
    optimiser = poptorch.optim.Adam(model.parameters(), lr=flags.learning_rate)
    training_model = poptorch.trainingModel(model, options, optimiser)
    losses = []
    for epoch in range(flags.epochs):
        for batch in loader:
            _, loss = training_model(*batch)
            losses.append(float(loss.mean()))
        print(f"Epoch {epoch + 1}: loss {losses[-1]:.4f}")
    training_model.detachFromDevice()

    scores = poptorch.inferenceModel(model)(features[:64])
    tables, indices = model.tables.detach(), features[:64]
    rows = 2.0 * torch.stack([tables[group][indices[:, group]] for group in range(NUM_GROUPS)], dim=1)
    difference = float((scores - model.score(rows.flatten(1)).squeeze(1)).abs().max().detach())
    print(f"Greatest difference from plain PyTorch: {difference:.1e}")
    return Result(tuple(losses), difference)


if __name__ == "__main__":
    run()
