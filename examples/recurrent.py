"""Read digits row by row with a recurrent network: LSTM, GRU or RNN.

    python examples/recurrent.py
    python examples/recurrent.py --cell gru --width 48
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset
from tqdm import tqdm

from command_line import make_parser, positive
from digits import Digits, load_digits

CELLS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


class RowReader(nn.Module):
    """A recurrent layer that is given a row of the image at each step; its last state decides."""

    def __init__(self, cell: str, width: int) -> None:
        super().__init__()
        self.recurrent = CELLS[cell](input_size=28, hidden_size=width, batch_first=True)
        self.head = nn.Linear(width, 10)
        self.loss = nn.NLLLoss()

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities `[N, 10]` of images `[N, 1, 28, 28]`, and the loss when labels `[N]` are given."""
        states, _ = self.recurrent(images.squeeze(1))
        log_probabilities = torch.log_softmax(self.head(states[:, -1]), dim=1)
        if labels is None:
            return log_probabilities
        return log_probabilities, self.loss(log_probabilities, labels)


@dataclass(frozen=True)
class Result:
    """What a run reached: the loss of each call, and the share of held-back digits that are recognised."""

    losses: tuple[float, ...]
    test_accuracy: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--cell", choices=tuple(CELLS), default="lstm", help="kind of the recurrent layer")
    parser.add_argument("--width", type=number, default=64, help="of the state")
    parser.add_argument("--batch-size", type=number, default=32, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=10, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=3, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=0.005, help="of RMSprop at first; it follows a cosine")
    parser.add_argument("--num-samples", type=number, default=6_400, help="a pass over the digits")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the samples")
    return parser.parse_args(arguments)


def train(model: RowReader, digits: Digits, flags: argparse.Namespace) -> list[float]:
    """Train and return the loss of each call."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.randomSeed(flags.seed)
    loader = poptorch.DataLoader(
        options, TensorDataset(digits.train_images, digits.train_labels), batch_size=flags.batch_size, shuffle=True,
    )
    if len(loader) == 0:
        raise SystemExit(f"one call takes {loader.combinedBatchSize} samples: raise --num-samples")
    optimiser = poptorch.optim.RMSprop(model.parameters(), lr=flags.learning_rate, alpha=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=flags.epochs * len(loader))
    training_model = poptorch.trainingModel(model, options, optimizer=optimiser)
    losses: list[float] = []
    for epoch in range(flags.epochs):
        bar = tqdm(loader, desc=f"Epoch {epoch + 1}/{flags.epochs}")
        for images, labels in bar:
            _, loss = training_model(images, labels)  # of the last micro-batch: OutputMode.Final is training's default
            losses.append(float(loss))
            schedule.step()
            training_model.setOptimizer(optimiser)
            bar.set_postfix(loss=f"{losses[-1]:.4f}")
    training_model.detachFromDevice()
    return losses


def test(model: RowReader, digits: Digits) -> float:
    """Return the share of the held-back digits that the model recognises."""
    inference_model = poptorch.inferenceModel(model.eval())
    return float((inference_model(digits.test_images).argmax(dim=1) == digits.test_labels).float().mean())


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    digits = load_digits(None, flags.num_samples)
    model = RowReader(flags.cell, flags.width)
    losses = train(model, digits, flags)
    accuracy = test(model, digits)
    print(f"{flags.cell}: loss {losses[0]:.4f} at first, {losses[-1]:.4f} at last; test accuracy {accuracy:.2%}")
    return Result(tuple(losses), accuracy)


if __name__ == "__main__":
    run()
