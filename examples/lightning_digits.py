"""Train a PyTorch Lightning module on emulated IPUs: one or several replicas, in one piece or as a pipeline.

    python examples/lightning_digits.py --devices 8
    python examples/lightning_digits.py --pipelined --accumulate 4
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import poptorch
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from command_line import make_parser, positive
from digits import load_digits


class DigitsClassifier(L.LightningModule):
    """A small CNN; nothing in it says on what it runs, but for the block that a pipeline begins with.

    Args:
        learning_rate: Of Adam.
        pipelined: Whether the linear layers are on an IPU of their own.
    """

    def __init__(self, learning_rate: float = 1e-3, pipelined: bool = False) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.features = nn.Sequential(
            nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(320, 64), nn.ReLU(), nn.Linear(64, 10))
        if pipelined:
            poptorch.BeginBlock(self.head, "head", ipu_id=1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Map images `[N, 1, 28, 28]` to logits `[N, 10]`."""
        return self.head(self.features(images))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss of a batch, which is logged at every step."""
        images, labels = batch
        loss = F.cross_entropy(self(images), labels)
        self.log("train_loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log loss and accuracy."""
        images, labels = batch
        logits = self(images)
        self.log("val_loss", F.cross_entropy(logits, labels))
        self.log("val_acc", (logits.argmax(1) == labels).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.hparams["learning_rate"])


@dataclass(frozen=True)
class Result:
    """What a run reached.

    Attributes:
        accuracy: Share of the held-back digits that are recognised.
        updates: Weight updates.
        replicas: Copies of the model that trained together.
        ipus: IPUs of each copy.
    """

    accuracy: float
    updates: int
    replicas: int
    ipus: int


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--devices", type=int, choices=(1, 2, 4, 8), default=1, help="replicas of the model")
    parser.add_argument("--pipelined", action="store_true", help="two IPUs for each replica")
    parser.add_argument("--accumulate", type=number, default=1, help="batches in a weight update; a pipeline needs 3")
    parser.add_argument("--device-iterations", type=number, default=1, help="weight updates in one call")
    parser.add_argument("--batch-size", type=number, default=16, help="samples in a micro-batch")
    parser.add_argument("--epochs", type=number, default=3, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=2e-3, help="of Adam")
    parser.add_argument("--precision", choices=("32-true", "16-mixed", "16-true"), default="32-true", help="of IPUs")
    parser.add_argument("--num-samples", type=number, default=6_000, help="a pass over scikit-learn's digits")
    parser.add_argument("--accelerator", choices=("ipu", "cpu"), default="ipu", help="cpu: Lightning's own, to compare")
    return parser.parse_args(arguments)


def strategy_of(flags: argparse.Namespace) -> Any:
    """Return the strategy; one that nobody names would do where a call makes one update."""
    if flags.accelerator == "cpu":
        return "auto"
    from lightning.pytorch.strategies import IPUStrategy  # type: ignore[attr-defined]

    return IPUStrategy(device_iterations=flags.device_iterations)


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    L.seed_everything(0)
    digits = load_digits(None, flags.num_samples)
    train = DataLoader(
        TensorDataset(digits.train_images, digits.train_labels), batch_size=flags.batch_size, shuffle=True,
    )
    held_back = DataLoader(TensorDataset(digits.test_images, digits.test_labels), batch_size=40)
    trainer = L.Trainer(
        accelerator=flags.accelerator, devices=flags.devices if flags.accelerator == "ipu" else 1,
        strategy=strategy_of(flags), max_epochs=flags.epochs, accumulate_grad_batches=flags.accumulate,
        precision=flags.precision, logger=False, enable_checkpointing=False, enable_model_summary=False,
    )
    model = DigitsClassifier(flags.learning_rate, flags.pipelined)
    trainer.fit(model, train, held_back)
    accuracy = trainer.validate(model, held_back, verbose=False)[0]["val_acc"]
    print(f"{accuracy:.2%} of {len(digits.test_labels)} held-back digits after {trainer.global_step} updates")
    replicas, ipus = 1, 1
    if flags.accelerator == "ipu":
        programs = trainer.strategy.poptorch_models["validate"].programs
        placed = {op.placement.ipu for op in programs[0].compiled.graph.ops if op.placement is not None}
        replicas, ipus = trainer.strategy.replication_factor, len(placed)
        print(f"{replicas} replicas of {ipus} IPUs, all emulated")
    return Result(accuracy, trainer.global_step, replicas, ipus)


if __name__ == "__main__":
    run()
