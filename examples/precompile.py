"""Compile on one machine, run on another: write a compiled program to a file, and take it from there.

    python examples/precompile.py                                 # both, with a file in a temporary folder
    python examples/precompile.py compile --file digits.poptorch  # needs no IPU: the target is an offline one
    python examples/precompile.py run --file digits.poptorch      # needs neither the model's code nor to compile

With ``run --rebuild`` the model is built anew, and only its program is taken from the file.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import poptorch
import torch
from torch.utils.data import TensorDataset

from command_line import make_parser, positive
from digits import load_digits
from small_classifier import SmallClassifier


@dataclass(frozen=True)
class Result:
    """What a run did.

    Attributes:
        losses: Of each call, the mean over its updates; empty if nothing ran.
        file_bytes: Size of the file.
    """

    losses: tuple[float, ...]
    file_bytes: int


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("action", choices=("both", "compile", "run"), nargs="?", default="both", help="what to do")
    parser.add_argument("--file", help="the compiled program; None: in a temporary folder")
    parser.add_argument("--rebuild", action="store_true", help="with run: build the model, and load only the program")
    parser.add_argument("--program-only", action="store_true", help="with compile: leave the model out of the file")
    parser.add_argument("--batch-size", type=number, default=32, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=10, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=2, help="passes over the training part")
    parser.add_argument("--learning-rate", type=real, default=0.002, help="of Adam; the file holds that of compilation")
    parser.add_argument("--num-samples", type=number, default=3_200, help="a pass over the digits")
    parser.add_argument("--seed", type=int, default=0, help="of the weights and the samples")
    flags = parser.parse_args(arguments)
    if flags.action != "both" and flags.file is None:
        parser.error(f"{flags.action} needs --file")
    return flags


def make_options(flags: argparse.Namespace) -> poptorch.Options:
    """Return the options."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.outputMode(poptorch.OutputMode.All)
    options.randomSeed(flags.seed)
    return options


def make_training_model(options: poptorch.Options, flags: argparse.Namespace) -> poptorch.PoplarExecutor:
    """Return the model, wrapped and not compiled."""
    torch.manual_seed(flags.seed)
    model = SmallClassifier()
    return poptorch.trainingModel(model, options, poptorch.optim.Adam(model.parameters(), lr=flags.learning_rate))


def compile_to(path: Path, flags: argparse.Namespace) -> None:
    """Compile for an IPU that need not be there, and write the program to a file."""
    call_size = flags.batch_size * flags.device_iterations
    options = make_options(flags).useOfflineIpuTarget(ipu_version=2)
    training_model = make_training_model(options, flags)
    began = time.perf_counter()
    training_model.compileAndExport(
        path, torch.zeros(call_size, 1, 28, 28), torch.zeros(call_size, dtype=torch.long),
        export_model=not flags.program_only,
    )
    print(f"Compiled in {time.perf_counter() - began:.2f} s; {path} has {path.stat().st_size:,} bytes")


def load_from(path: Path, flags: argparse.Namespace) -> poptorch.PoplarExecutor:
    """Return the model with its program from a file."""
    if not flags.rebuild:
        return poptorch.load(path)
    training_model = make_training_model(make_options(flags), flags)
    training_model.loadExecutable(path)
    return training_model


def train_from(path: Path, flags: argparse.Namespace) -> list[float]:
    """Train with a program from a file and return the loss of each call."""
    began = time.perf_counter()
    training_model = load_from(path, flags)
    print(f"Loaded in {time.perf_counter() - began:.2f} s")
    digits = load_digits(None, flags.num_samples)
    options = make_options(flags)  # those of the model are frozen, and the loader wants no more than its sizes
    loader = poptorch.DataLoader(
        options, TensorDataset(digits.train_images, digits.train_labels), batch_size=flags.batch_size, shuffle=True,
    )
    losses = []
    for epoch in range(flags.epochs):
        for images, labels in loader:
            logits, loss = training_model(images, labels)
            losses.append(float(loss.mean()))
        print(f"Epoch {epoch + 1}: loss {losses[-1]:.4f}, accuracy {(logits.argmax(1) == labels).float().mean():.2%}")
    training_model.detachFromDevice()
    return losses


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(flags.file or Path(folder) / "digits.poptorch")
        if flags.action != "run":
            compile_to(path, flags)
        losses = train_from(path, flags) if flags.action != "compile" else []
        return Result(tuple(losses), path.stat().st_size)


if __name__ == "__main__":
    run()
