"""Train a transformer whose pipeline lies on several processes, none of which has memory for the whole model.

    python examples/pipeline_over_processes.py
    torchrun --nproc-per-node 2 examples/pipeline_over_processes.py --checkpoint digits
    torchrun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint HOST:PORT examples/pipeline_over_processes.py

Without torchrun it starts two processes by itself. Each has half of the IPUs: the blocks of the others are on the meta
device there. What a process sends to the next one are activations, what it gets back are their gradients.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn

import torchipu
from command_line import make_parser, positive
from digits import Digits, load_digits

WIDTH = 48


class Embedding(nn.Module):
    """Turns the rows of an image `[N, 1, 28, 28]` into tokens `[N, 28, WIDTH]`."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Linear(28, WIDTH)
        self.places = nn.Parameter(torch.zeros(28, WIDTH))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the tokens."""
        return self.rows(images[:, 0]) + self.places


class Head(nn.Module):
    """Turns tokens into logits `[N, 10]`."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.classes = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.classes(self.norm(tokens).mean(dim=1))


class Classifier(nn.Module):
    """A transformer in blocks, one for each IPU.

    Args:
        num_ipus: IPUs.
        own: Those of this process: the blocks of the others have no memory here.
    """

    def __init__(self, num_ipus: int, own: range) -> None:
        super().__init__()
        blocks = []
        for ipu in range(num_ipus):
            torch.manual_seed(ipu)  # a block begins the same on whatever process it is
            with torch.device("cpu" if ipu in own else "meta"):
                layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
                parts = [*([Embedding()] if ipu == 0 else []), layer, *([Head()] if ipu == num_ipus - 1 else [])]
            blocks.append(torchipu.BeginBlock(nn.Sequential(*parts), f"block{ipu}", ipu_id=ipu))
        self.blocks = nn.Sequential(*blocks)

    def forward(
        self, images: torch.Tensor, labels: torch.Tensor | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of images, and the loss when labels `[N]` are given."""
        logits = self.blocks(images)
        return logits if labels is None else (logits, nn.functional.cross_entropy(logits, labels))


@dataclass(frozen=True)
class Result:
    """What a run reached: the mean loss of each epoch, and the share of held-back digits that are recognised."""

    losses: tuple[float, ...]
    test_accuracy: float


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--processes", type=number, default=2, help="to start where torchrun does not")
    parser.add_argument("--ipus-per-process", type=number, default=2, help="IPUs of each process")
    parser.add_argument("--batch-size", type=number, default=16, help="samples in a micro-batch")
    parser.add_argument("--gradient-accumulation", type=number, default=8, help="micro-batches in a weight update")
    parser.add_argument("--device-iterations", type=number, default=5, help="weight updates in one call")
    parser.add_argument("--epochs", type=number, default=3, help="passes over the training part")
    parser.add_argument("--num-samples", type=number, default=9_600, help="a pass over scikit-learn's digits")
    parser.add_argument("--learning-rate", type=real, default=0.003, help="of AdamW")
    parser.add_argument("--checkpoint", metavar="DIR", help="folder in which every process writes its part at the end")
    return parser.parse_args(arguments)


def train(model: Classifier, digits: Digits, flags: argparse.Namespace) -> list[float]:
    """Train and return the mean loss of each epoch."""
    options = torchipu.Options(
        pipeline_group=dist.group.WORLD, ipus_per_process=flags.ipus_per_process, output_mode="all", host_threads=1,
        gradient_accumulation=flags.gradient_accumulation, device_iterations=flags.device_iterations,
    )
    step = torchipu.TrainStep(model, torch.optim.AdamW(model.parameters(), lr=flags.learning_rate), options)
    size = flags.batch_size * flags.gradient_accumulation * flags.device_iterations
    if len(digits.train_images) < size:
        raise SystemExit(f"one call takes {size} samples: raise --num-samples")
    losses = []
    for _ in range(flags.epochs):
        # All processes give the same samples; each reads what its part of the model does.
        images, labels = digits.train_images.split(size), digits.train_labels.split(size)
        calls = [step(x, y)[1].mean() for x, y in zip(images, labels, strict=True) if len(x) == size]
        losses.append(float(torch.stack(calls).mean()))
    if flags.checkpoint:
        dcp.save(step.part_state(), checkpoint_id=flags.checkpoint)
    return losses


def test(model: Classifier, digits: Digits, flags: argparse.Namespace) -> float:
    """Return the share of the held-back digits that the model recognises."""
    step = torchipu.InferenceStep(model.eval(), torchipu.Options(
        pipeline_group=dist.group.WORLD, ipus_per_process=flags.ipus_per_process, device_iterations=20, host_threads=1,
    ))
    found = step(digits.test_images).argmax(dim=1)
    return float((found == digits.test_labels).float().mean())


def run(arguments: Sequence[str] | None = None) -> Result:
    """Run this process's part of the example, with the arguments of a command line."""
    flags = parse_arguments(arguments)
    dist.init_process_group("gloo")
    rank, each = dist.get_rank(), flags.ipus_per_process
    model = Classifier(each * dist.get_world_size(), range(rank * each, (rank + 1) * each))
    here = sum(p.numel() for p in model.parameters() if not p.is_meta)
    print(f"process {rank}: {here} of {sum(p.numel() for p in model.parameters())} weights", flush=True)
    digits = load_digits(None, flags.num_samples)
    result = Result(tuple(train(model, digits, flags)), test(model, digits, flags))
    if rank == 0:
        print(f"Mean loss of each epoch: {', '.join(f'{loss:.4f}' for loss in result.losses)}")
        print(f"Test accuracy: {result.test_accuracy:.2%} of {len(digits.test_labels)} digits")
    dist.destroy_process_group()
    return result


if __name__ == "__main__":
    if dist.is_torchelastic_launched():
        run()
    else:
        torchrun = ["torch.distributed.run", "--standalone", f"--nproc-per-node={parse_arguments().processes}"]
        sys.exit(subprocess.run(
            [sys.executable, "-m", *torchrun, *sys.argv], check=False,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        ).returncode)
