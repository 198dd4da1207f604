"""One training program for one process, for instances under a launcher, and for processes without a launcher.

The batch of an update is the same however it is shared out: among replicas of one process, among instances that
``poprun`` starts, or among processes that meet at a file.

    python examples/several_instances.py --replicas 4
    poprun --num-instances 2 --num-replicas 4 python examples/several_instances.py
    python examples/several_instances.py --replicas 2 --process 0 --processes 2 --meet-at meeting &
    python examples/several_instances.py --replicas 2 --process 1 --processes 2 --meet-at meeting
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import horovod.torch as hvd
import popdist
import popdist.poptorch
import poptorch
import torch
from torch.utils.data import TensorDataset

from command_line import make_parser, positive
from digits import load_digits
from small_classifier import SmallClassifier


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__.partition("\n")[0])
    number = positive(int)
    parser.add_argument("--global-batch-size", type=number, default=64, help="samples of an update, in all processes")
    parser.add_argument("--replicas", type=number, default=1, help="of this process, where no launcher says it")
    parser.add_argument("--processes", type=number, default=1, help="how many there are, where no launcher says it")
    parser.add_argument("--process", type=int, default=0, help="which of them this is")
    parser.add_argument("--meet-at", help="a file where processes without a launcher meet; else MASTER_ADDR says it")
    parser.add_argument("--checkpoint", help="a file that one process writes the weights to after each epoch")
    parser.add_argument("--learning-rate", type=positive(float), default=0.1)
    parser.add_argument("--epochs", type=number, default=3)
    parser.add_argument("--num-samples", type=number, default=4096, help="images of an epoch, of all processes")
    parser.add_argument("--seed", type=int, default=0, help="of weights and order; the same in all processes")
    return parser.parse_args(arguments)


def make_options(flags: argparse.Namespace) -> poptorch.Options:
    """Return options that know of the other processes, however these were started."""
    if popdist.isPopdistEnvSet():
        popdist.init()
        options: poptorch.Options = popdist.poptorch.Options()
    else:
        options = poptorch.Options().replicationFactor(flags.replicas)
        options.Distributed.configureProcessId(flags.process, flags.processes)
        if flags.meet_at:
            options.Distributed.setFileStore(flags.meet_at)
    options.randomSeed(flags.seed)
    return options.outputMode(poptorch.OutputMode.All)


def batch_size_of_a_replica(flags: argparse.Namespace, options: poptorch.Options) -> int:
    """Return the samples of an update that fall to one replica.

    Raises:
        ValueError: The replicas of all processes do not share them evenly.
    """
    replicas = options.replication_factor * options.Distributed.numProcesses
    if flags.global_batch_size % replicas:
        raise ValueError(f"--global-batch-size {flags.global_batch_size} is no multiple of {replicas} replicas")
    return flags.global_batch_size // replicas


def run(arguments: Sequence[str] | None = None) -> tuple[list[float], float]:
    """Train and test; return the mean loss of each epoch and the accuracy, over all processes."""
    flags = parse_arguments(arguments)
    options = make_options(flags)
    digits = load_digits(None, flags.num_samples)
    torch.manual_seed(flags.seed)  # all processes begin with the same weights
    model = SmallClassifier()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=flags.learning_rate)
    training = poptorch.trainingModel(model, options, optimizer)
    # Each process reads its own share; the order is shuffled alike in all of them.
    loader = poptorch.DataLoader(
        options, TensorDataset(digits.train_images, digits.train_labels), batch_size_of_a_replica(flags, options),
        shuffle=True,
    )
    training.compile(*next(iter(loader)))  # where processes without a launcher find each other
    hvd.init()
    losses = []
    for epoch in range(flags.epochs):
        found = torch.cat([training(images, labels)[1].reshape(-1) for images, labels in loader])
        losses.append(float(hvd.allreduce(found.mean())))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1}: loss {losses[-1]:.4f} in {hvd.size()} processes", flush=True)
            if flags.checkpoint:
                torch.save(model.state_dict(), flags.checkpoint)
    training.destroy()
    return losses, test(model, digits.test_images, digits.test_labels)


def test(model: SmallClassifier, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of test images that are recognised; every process looks at its own share of them."""
    inference = poptorch.inferenceModel(model.eval(), poptorch.Options())
    own = slice(hvd.rank(), None, hvd.size())
    logits, _ = inference(images[own].contiguous(), labels[own].contiguous())
    counts = torch.tensor([float((logits.argmax(1) == labels[own]).sum()), float(len(labels[own]))])
    right, total = hvd.allreduce(counts, op=hvd.Sum).tolist()
    if hvd.rank() == 0:
        print(f"accuracy {right / total:.3f} of {total:.0f} images")
    return right / total


if __name__ == "__main__":
    run()
