"""Train a small CNN, split over four emulated IPUs as a pipeline, on handwritten digits.

    python examples/mnist_pipelined.py
    python examples/mnist_pipelined.py --strategy sharded --epochs 1 --profile
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from tqdm import tqdm

import torchipu
from command_line import make_parser, positive
from digits import Digits, load_digits
from torchipu.report import format_full, format_summary
from torchipu.report.json import write_json


class ConvLayer(nn.Module):
    """A convolution, max-pooling and ReLU."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, pool_size: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)
        self.pool = nn.MaxPool2d(pool_size)
        self.relu = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[N, C, H, W]` to `[N, C', H', W']`."""
        return self.relu(self.pool(self.conv(x)))


class PipelinedNetwork(nn.Module):
    """The CNN of the demo: four blocks, one on each IPU; the loss is computed in the last block."""

    def __init__(self) -> None:
        super().__init__()
        self.layer1 = ConvLayer(1, 10, 5, 2)
        self.layer2 = ConvLayer(10, 20, 5, 2)
        self.layer3 = nn.Linear(320, 256)
        self.layer3_act = nn.ReLU()
        self.layer4 = nn.Linear(256, 10)
        self.loss = nn.CrossEntropyLoss()

    def forward(
        self, x: torch.Tensor, labels: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the logits `[N, 10]` of images `[N, 1, 28, 28]`, and the loss when labels `[N]` are given."""
        with torchipu.Block("B1", ipu_id=0):
            x = self.layer1(x)
        with torchipu.Block("B2", ipu_id=1):
            x = self.layer2(x)
        with torchipu.Block("B3", ipu_id=2):
            x = self.layer3_act(self.layer3(x.flatten(1)))
        with torchipu.Block("B4", ipu_id=3):
            logits = self.layer4(x)
            if labels is None:
                return logits
            return logits, self.loss(logits, labels)


@dataclass(frozen=True)
class Result:
    """What a run of the demo reached.

    Attributes:
        losses: Mean loss of each epoch.
        test_accuracy: Share of the held-back digits that are recognised.
        train_images_per_s: Of all epochs together, compilation left out.
    """

    losses: tuple[float, ...]
    test_accuracy: float
    train_images_per_s: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--batch-size", type=number, default=40, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=10, help="weight updates in one call")
    parser.add_argument("--gradient-accumulation", type=number, default=10, help="micro-batches in a weight update")
    parser.add_argument("--test-batch-size", type=number, default=8, help="samples in a micro-batch of the test")
    parser.add_argument("--test-device-iterations", type=number, default=100, help="micro-batches in one test call")
    parser.add_argument("--epochs", type=number, default=3, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=0.001, help="of AdamW")
    parser.add_argument("--strategy", choices=("pipelined", "sharded"), default="pipelined", help="how the IPUs share")
    parser.add_argument("--offload-optimiser", action="store_true", help="keep AdamW's state in Streaming Memory")
    parser.add_argument("--data", metavar="DIR", help="folder with MNIST as torchvision keeps it; None: scikit-learn")
    parser.add_argument("--num-samples", type=number, default=24_000, help="a pass over scikit-learn's digits")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the order of the samples")
    parser.add_argument("--profile", action="store_true", help="print and write the whole profile")
    parser.add_argument("--profile-dir", metavar="DIR", default="profile", help="where --profile and --debug write")
    parser.add_argument("--debug", action="store_true", help="verify between passes, write each stage of the compiler")
    return parser.parse_args(arguments)


def make_options(flags: argparse.Namespace) -> torchipu.Options:
    """Return the options of the training step."""
    return torchipu.Options(
        gradient_accumulation=flags.gradient_accumulation,
        device_iterations=flags.device_iterations,
        execution=flags.strategy,
        output_mode="all",
        offload_optimiser_state=flags.offload_optimiser,
        verify=flags.debug,
        dump=str(Path(flags.profile_dir) / "ir") if flags.debug else None,
    )


def compile_step(step: torchipu.TrainStep | torchipu.InferenceStep, *inputs: torch.Tensor) -> None:
    """Compile ahead of the first call and show how far it is."""
    with tqdm(total=100, desc="Graph compilation", bar_format="{desc}: {percentage:3.0f}%|{bar}| [{elapsed}]") as bar:

        def advance(done: int, total: int) -> None:
            bar.update(100 * done // total - bar.n)

        step.compile(*inputs, progress=advance)
        bar.update(100 - bar.n)


def calls(num_samples: int, call_size: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Yield the samples of each call, in a new random order; what does not fill a call is left for another epoch."""
    order = torch.randperm(num_samples, generator=generator)
    return iter(order[: num_samples // call_size * call_size].split(call_size))


def train(model: PipelinedNetwork, digits: Digits, flags: argparse.Namespace) -> tuple[list[float], float]:
    """Train, and return the mean loss of each epoch and the images a second."""
    call_size = flags.batch_size * flags.gradient_accumulation * flags.device_iterations
    num_samples = len(digits.train_images)
    if num_samples < call_size:
        raise SystemExit(
            f"one call takes {call_size} samples (batch size x gradient accumulation x device iterations), and "
            f"there are {num_samples}: lower --device-iterations, or raise --num-samples"
        )
    optimiser = torch.optim.AdamW(model.parameters(), lr=flags.learning_rate)
    step = torchipu.TrainStep(model, optimiser, options=make_options(flags))
    compile_step(step, digits.train_images[:call_size], digits.train_labels[:call_size])

    generator = torch.Generator().manual_seed(flags.seed)
    losses: list[float] = []
    began, num_images = time.perf_counter(), 0
    for epoch in range(flags.epochs):
        epoch_losses: list[float] = []
        num_right = num_seen = 0
        bar = tqdm(
            calls(num_samples, call_size, generator), desc=f"Epoch {epoch + 1}/{flags.epochs}",
            total=num_samples // call_size,
        )
        for chosen in bar:
            labels = digits.train_labels[chosen]
            logits, loss = step(digits.train_images[chosen], labels)
            epoch_losses.append(float(loss.mean()))
            num_right += int((logits.argmax(1) == labels).sum())
            num_seen += len(labels)
            bar.set_postfix(loss=f"{epoch_losses[-1]:.4f}", accuracy=f"{num_right / num_seen:.2%}")
        losses.append(sum(epoch_losses) / len(epoch_losses))
        num_images += num_seen
    images_per_s = num_images / (time.perf_counter() - began)
    print_training_summary(step, flags)
    return losses, images_per_s


def test(model: PipelinedNetwork, digits: Digits, flags: argparse.Namespace) -> float:
    """Return the share of the held-back digits that the model recognises."""
    call_size = flags.test_batch_size * flags.test_device_iterations
    model.eval()
    options = torchipu.Options(device_iterations=flags.test_device_iterations, execution=flags.strategy)
    step = torchipu.InferenceStep(model, options)
    num_right = 0
    for begin in tqdm(range(0, len(digits.test_images), call_size), desc="Test"):
        images, labels = digits.test_images[begin : begin + call_size], digits.test_labels[begin : begin + call_size]
        # A program has fixed shapes: the last call is filled up with blank images, whose answers are not counted.
        full = torch.zeros(call_size, *images.shape[1:])
        full[: len(images)] = images
        num_right += int((step(full)[: len(labels)].argmax(1) == labels).sum())
    return num_right / len(digits.test_labels)


def print_training_summary(step: torchipu.TrainStep, flags: argparse.Namespace) -> None:
    """Say what the emulated machine did: figures of its model, not of this computer."""
    profile = step.profile
    print("\nThe emulated run")
    print(format_summary(profile))
    if flags.profile:
        folder = Path(flags.profile_dir)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "profile.txt").write_text(format_full(profile) + "\n", encoding="utf-8")
        write_json(profile, folder / "profile.json")
        print(f"\n{format_full(profile)}\n\nThe profile is in {folder}: profile.txt and profile.json")


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the demo with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    digits = load_digits(flags.data, flags.num_samples)
    print(f"{digits.name}: {len(digits.train_images)} training and {len(digits.test_images)} held-back images")
    model = PipelinedNetwork()
    losses, images_per_s = train(model, digits, flags)
    accuracy = test(model, digits, flags)
    print(f"Training: {images_per_s:,.0f} images/s on this computer")
    print(f"Test accuracy: {accuracy:.2%} of {len(digits.test_images)} held-back digits")
    return Result(tuple(losses), accuracy, images_per_s)


def command_of_the_report(python: str, arguments: Sequence[str]) -> str:
    """Return the command that runs an epoch again and shows it as pictures: memory, pipeline, every operation.

    Args:
        python: The interpreter.
        arguments: Name of the script, and its arguments.
    """
    short = Path(python)
    if short.is_relative_to(Path.cwd()):
        short = short.relative_to(Path.cwd())
    return shlex.join([str(short), "-m", "torchipu", "report", "--open", *arguments, "--epochs", "1"])


if __name__ == "__main__":
    run()
    print(f"\nTo see it as a picture: {command_of_the_report(sys.executable, sys.argv)}")
