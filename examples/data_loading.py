"""Feed a model fast enough: the same images loaded synchronously, by workers, asynchronously and rebatched.

    python examples/data_loading.py
    python examples/data_loading.py --num-workers 1 --milliseconds-per-image 0.5

Each way is timed alone, which is what the loader can give, and in front of the model, which is what arrives there.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import poptorch
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from command_line import make_parser, positive
from digits import load_digits
from small_classifier import SmallClassifier


class PreparedDigits(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Digits whose images take some time to prepare, as those that are read and decoded do.

    Args:
        images: `[N, 1, 28, 28]`.
        labels: `[N]`.
        seconds: Time that an image takes; the work is noise that is smoothed and added.
    """

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, seconds: float) -> None:
        self.images, self.labels, self.seconds = images, labels, seconds

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return an image `[1, 28, 28]` and its label."""
        until = time.perf_counter() + self.seconds
        image = self.images[index]
        while time.perf_counter() < until:
            noise = torch.randn(1, 28, 28)
            # Without a pooling, whose threads would wait for each other at every image.
            image = self.images[index] + 0.005 * (noise + noise.roll(1, dims=1))
        return image, self.labels[index]


class StreamedDigits(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """The same as a stream; each worker reads a part of its own, so that none comes twice.

    Args:
        dataset: What is streamed.
    """

    def __init__(self, dataset: PreparedDigits) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the images of this worker."""
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return (self.dataset[index] for index in range(first, len(self.dataset), step))


@dataclass(frozen=True)
class Throughput:
    """Images a second.

    Attributes:
        loaded: By the loader alone.
        trained: By the loader in front of the model.
        num_images: In an epoch: what fills no call may be left out.
    """

    loaded: float
    trained: float
    num_images: int


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = make_parser(__doc__)
    number, real = positive(int), positive(float)
    parser.add_argument("--batch-size", type=number, default=16, help="samples in a micro-batch")
    parser.add_argument("--device-iterations", type=number, default=16, help="weight updates in one call")
    parser.add_argument("--num-workers", type=number, default=1, help="processes that load, where there are any")
    parser.add_argument("--worker-batch-size", type=number, default=64, help="samples that a rebatched worker collects")
    parser.add_argument("--buffer-size", type=number, default=3, help="batches that wait in the ring buffer")
    parser.add_argument(
        "--sharing-strategy", choices=poptorch.SharingStrategy.__members__, default="ForkServer",
        help="how the asynchronous process is made",
    )
    parser.add_argument("--milliseconds-per-image", type=real, default=0.2, help="to prepare one image")
    parser.add_argument("--epochs", type=number, default=2, help="passes that are timed; another comes first")
    parser.add_argument("--num-samples", type=number, default=4096, help="images of a pass")
    parser.add_argument("--seed", type=int, default=0, help="of the weights")
    return parser.parse_args(arguments)


def make_options(flags: argparse.Namespace) -> poptorch.Options:
    """Return the options that loaders and model share."""
    options = poptorch.Options()
    options.deviceIterations(flags.device_iterations)
    options.outputMode(poptorch.OutputMode.Final)
    options.randomSeed(flags.seed)
    return options


def make_loaders(dataset: PreparedDigits, flags: argparse.Namespace) -> dict[str, poptorch.DataLoader]:
    """Return the loaders that are compared, by name."""
    options = make_options(flags)
    ahead = {
        "buffer_size": flags.buffer_size, "early_preload": True, "load_indefinitely": True,
        "sharing_strategy": poptorch.SharingStrategy[flags.sharing_strategy],
    }
    workers = {"num_workers": flags.num_workers, "persistent_workers": True}
    return {
        "synchronous": poptorch.DataLoader(options, dataset, flags.batch_size, shuffle=True),
        "synchronous, workers": poptorch.DataLoader(options, dataset, flags.batch_size, shuffle=True, **workers),
        "asynchronous": poptorch.DataLoader(
            options, dataset, flags.batch_size, shuffle=True, mode=poptorch.DataLoaderMode.Async,
            async_options={**ahead, "miss_sleep_time_in_ms": 0},
        ),
        "rebatched stream, workers": poptorch.DataLoader(
            options, StreamedDigits(dataset), flags.batch_size, mode=poptorch.DataLoaderMode.AsyncRebatched,
            rebatched_worker_size=min(flags.worker_batch_size, flags.batch_size * flags.device_iterations),
            worker_init_fn=seed_worker, async_options=ahead, **workers,
        ),
    }


def seed_worker(worker: int) -> None:
    """Give each worker noise of its own; the stream shares its images among the workers by itself."""
    torch.manual_seed(worker)


def images_per_s(loader: poptorch.DataLoader, model: poptorch.PoplarExecutor | None, epochs: int) -> tuple[float, int]:
    """Return the images a second over some epochs, and the images of one; the first epoch is not timed."""
    began, num_images = time.perf_counter(), 0
    for epoch in range(epochs + 1):
        if epoch == 1:
            began, num_images = time.perf_counter(), 0
        for images, labels in loader:
            if model is not None:
                model(images, labels)
            num_images += len(images)
    return num_images / (time.perf_counter() - began), num_images // epochs


def run(arguments: Sequence[str] | None = None) -> dict[str, Throughput]:
    """Run the example with the arguments of a command line."""
    flags = parse_arguments(arguments)
    torch.manual_seed(flags.seed)
    digits = load_digits(None, flags.num_samples)
    dataset = PreparedDigits(digits.train_images, digits.train_labels, flags.milliseconds_per_image / 1000)
    module = SmallClassifier()
    model = poptorch.trainingModel(module, make_options(flags), poptorch.optim.SGD(module.parameters(), lr=0.01))
    call_size = flags.batch_size * flags.device_iterations
    if len(dataset) < call_size:
        raise SystemExit(f"one call takes {call_size} samples and there are {len(dataset)}: raise --num-samples")
    batch = digits.train_images[:call_size], digits.train_labels[:call_size]
    model.compile(*batch)
    model(*batch)
    calls = 8
    began = time.perf_counter()
    for _ in range(calls):
        model(*batch)
    alone = calls * call_size / (time.perf_counter() - began)
    latency = model.getLatency()[2]
    print(f"The model alone, always the same batch: {alone:,.0f} images/s; a call takes {latency * 1000:.1f} ms")

    found: dict[str, Throughput] = {}
    print(f"{'loader':<28}{'alone':>10}{'with model':>12}{'images':>9}")
    for name, loader in make_loaders(dataset, flags).items():
        loaded, _ = images_per_s(loader, None, flags.epochs)
        trained, num_images = images_per_s(loader, model, flags.epochs)
        loader.terminate()
        found[name] = Throughput(loaded, trained, num_images)
        print(f"{name:<28}{loaded:>10,.0f}{trained:>12,.0f}{num_images:>9}")
    best = max(found, key=lambda name: found[name].trained)
    limit = "the loader" if found[best].loaded < 0.9 * alone else "the model"
    print(f"Fastest: {best}, {math.floor(100 * found[best].trained / alone)}% of the model alone; {limit} is the limit")
    return found


if __name__ == "__main__":
    run()
