"""Train, save with torch.distributed.checkpoint, and go on later in another number of processes.

    python examples/distributed_checkpoint.py --folder checkpoints
    torchrun --nproc-per-node 2 examples/distributed_checkpoint.py --folder checkpoints
    python examples/distributed_checkpoint.py --folder checkpoints

Each run goes on where the one before it has ended. The replicas are shared out among the processes, and so is every
batch; each process writes a part of the checkpoint, and reads what it needs of all parts.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import torchipu
from command_line import make_parser, positive
from digits import load_digits
from small_classifier import SmallClassifier


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--folder", type=Path, default=Path("checkpoints"), help="one folder for each checkpoint in it")
    parser.add_argument("--updates", type=number, default=20, help="weight updates of this run")
    parser.add_argument("--replicas", type=number, default=2, help="of all processes together")
    parser.add_argument("--batch-size", type=number, default=32, help="samples of a weight update")
    parser.add_argument("--lr", type=real, default=1e-3, help="learning rate")
    return parser.parse_args(arguments)


def newest(folder: Path) -> Path | None:
    """Return the checkpoint of the most updates that was written to its end, or None."""
    # torch writes .metadata when all parts are there.
    found = [path.parent for path in folder.glob("update-*/.metadata")]
    return max(found, key=lambda path: int(path.name.removeprefix("update-")), default=None)


def state_of(model: torch.nn.Module, optimiser: torch.optim.Optimizer, num_updates: int) -> dict[str, Any]:
    """Return what a checkpoint holds: weights and moments by name, and how far training has come."""
    weights, moments = get_state_dict(model, optimiser)
    return {
        "model": weights, "optimiser": moments, "num_updates": num_updates,
        "random": torch.get_rng_state(),  # what seeds the dropouts of each update is drawn from it
    }


def load(folder: Path, model: torch.nn.Module, optimiser: torch.optim.Optimizer) -> int:
    """Go on from a checkpoint; return its number of updates."""
    state = state_of(model, optimiser, 0)
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(model, optimiser, model_state_dict=state["model"], optim_state_dict=state["optimiser"])
    torch.set_rng_state(state["random"])
    return int(state["num_updates"])


def run(arguments: Sequence[str] | None = None) -> list[float]:
    """Train for a while; return the losses of this process.

    Args:
        arguments: Of the command line.
    """
    flags = parse_arguments(arguments)
    rank, processes = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if flags.replicas % processes or flags.batch_size % flags.replicas:
        raise SystemExit(
            f"{flags.replicas} replicas: they must be a multiple of {processes} processes, and the {flags.batch_size} "
            "samples one of them"
        )
    if processes > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = SmallClassifier()
    optimiser = torch.optim.AdamW(model.parameters(), lr=flags.lr)
    step = torchipu.TrainStep(
        model, optimiser, options=torchipu.Options(replicas=flags.replicas // processes)
    )
    checkpoint = newest(flags.folder)
    begin = 0 if checkpoint is None else load(checkpoint, model, optimiser)
    digits = load_digits(None, 2048)
    losses = []
    for update in range(begin, begin + flags.updates):
        rows = (torch.arange(flags.batch_size) + update * flags.batch_size) % len(digits.train_labels)
        rows = rows.chunk(processes)[rank]
        _, loss = step(digits.train_images[rows], digits.train_labels[rows])
        losses.append(float(loss.mean()))
    end = flags.folder / f"update-{begin + flags.updates}"
    dcp.save(state_of(model, optimiser, begin + flags.updates), checkpoint_id=end)
    if rank == 0:
        print(f"Updates {begin} to {begin + flags.updates}, loss {losses[-1]:.3f}. Checkpoint: {end}")
    if processes > 1:
        torch.distributed.destroy_process_group()
    return losses


if __name__ == "__main__":
    run()
