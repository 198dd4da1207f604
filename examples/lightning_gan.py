"""Train a GAN on digits by manual optimisation: two optimisers of a PyTorch Lightning module on emulated IPUs.

    python examples/lightning_gan.py --devices 2
    python examples/lightning_gan.py --accelerator cpu
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from command_line import make_parser, positive
from digits import load_digits

LATENT = 16
SIDE = 14


class DigitsGAN(L.LightningModule):
    """A generator of digits and its critic, two linear layers each; nothing in it says on what it runs.

    Args:
        learning_rate: Of both.
    """

    def __init__(self, learning_rate: float = 2e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(LATENT, 128), nn.LeakyReLU(0.2), nn.Linear(128, SIDE * SIDE))
        self.critic = nn.Sequential(nn.Linear(SIDE * SIDE, 128), nn.LeakyReLU(0.2), nn.Linear(128, 1))

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        """Map noise `[N, LATENT]` to images `[N, SIDE * SIDE]`."""
        return self.generator(noise)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Update the generator, then the critic on what the generator has become."""
        images, noise = batch
        of_generator, of_critic = self.optimizers()

        with self.toggled_optimizer(of_generator):
            loss = F.softplus(-self.critic(self(noise))).mean()
            of_generator.zero_grad()
            self.manual_backward(loss)
            of_generator.step()
        self.log("generator", loss, prog_bar=True)

        with self.toggled_optimizer(of_critic):
            fake = self(noise).detach()
            loss = (F.softplus(-self.critic(images)) + F.softplus(self.critic(fake))).mean()
            of_critic.zero_grad()
            self.manual_backward(loss)
            of_critic.step()
        self.log("critic", loss, prog_bar=True)

    def configure_optimizers(self) -> Any:
        """Return an Adam for each part."""
        rate = self.hparams["learning_rate"]
        return [
            torch.optim.Adam(part.parameters(), lr=rate, betas=(0.5, 0.999)) for part in (self.generator, self.critic)
        ]


@dataclass(frozen=True)
class Result:
    """What a run reached.

    Attributes:
        distance: Mean distance of a generated image to the nearest digit.
        distance_before: The same without training.
        updates: Updates of both parts together.
    """

    distance: float
    distance_before: float
    updates: int


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--devices", type=int, choices=(1, 2, 4, 8), default=1, help="replicas of the model")
    parser.add_argument("--batch-size", type=number, default=32, help="samples of a replica")
    parser.add_argument("--epochs", type=number, default=10, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=2e-3, help="of both Adams")
    parser.add_argument("--num-samples", type=number, default=1_437, help="a pass over scikit-learn's digits")
    parser.add_argument("--accelerator", choices=("ipu", "cpu"), default="ipu", help="cpu: Lightning's own, to compare")
    return parser.parse_args(arguments)


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    L.seed_everything(0)
    digits = load_digits(None, flags.num_samples)
    images = F.adaptive_avg_pool2d(digits.train_images, SIDE).flatten(1)
    train = DataLoader(
        TensorDataset(images, torch.randn(len(images), LATENT)), batch_size=flags.batch_size, shuffle=True,
    )
    model, noise = DigitsGAN(flags.learning_rate), torch.randn(200, LATENT)

    def distance() -> float:
        with torch.no_grad():
            return float(torch.cdist(model(noise), images).min(1).values.mean())

    before = distance()
    trainer = L.Trainer(
        accelerator=flags.accelerator, devices=flags.devices if flags.accelerator == "ipu" else 1,
        max_epochs=flags.epochs, logger=False, enable_checkpointing=False, enable_model_summary=False,
    )
    trainer.fit(model, train)
    after = distance()
    print(f"distance to the nearest digit: {before:.2f} before, {after:.2f} after {trainer.global_step} updates")
    return Result(after, before, trainer.global_step)


if __name__ == "__main__":
    run()
