"""Handwritten digits for the examples: MNIST from a folder, or the scans that come with scikit-learn."""

from __future__ import annotations

import gzip
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

# The four files of MNIST as torchvision leaves them: (train, test) x (images, labels).
MNIST_STEMS = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
SPLIT_SEED = 20  # chosen once; it decides which scans are held back, never change it to gain accuracy
NUM_HELD_BACK = 360  # a fifth of the 1797 scans
SAMPLES_PER_EPOCH = 24_000


@dataclass(frozen=True)
class Digits:
    """Normalised digits, split in two.

    Attributes:
        name: Where they come from.
        train_images: float32 `[N, 1, 28, 28]`.
        train_labels: int64 `[N]`.
        test_images: float32 `[M, 1, 28, 28]`.
        test_labels: int64 `[M]`.
    """

    name: str
    train_images: torch.Tensor
    train_labels: torch.Tensor
    test_images: torch.Tensor
    test_labels: torch.Tensor


def load_digits(folder: str | Path | None = None, num_samples: int = SAMPLES_PER_EPOCH) -> Digits:
    """Return MNIST when the folder holds it, otherwise the digits of scikit-learn.

    Args:
        folder: What torchvision calls ``root``; ``MNIST/raw`` below it, ``raw`` below it and the folder itself are
            searched. None takes the digits of scikit-learn.
        num_samples: Training samples to make from the digits of scikit-learn; MNIST is taken as it is.

    Raises:
        FileNotFoundError: A folder is given that does not exist.
        ValueError: A file of MNIST is damaged.
    """
    if folder is not None and not Path(folder).is_dir():
        raise FileNotFoundError(f"--data {folder}: there is no such folder")
    files = None if folder is None else find_mnist(Path(folder))
    if files is None:
        return scikit_learn_digits(num_samples)
    train_images, train_labels, test_images, test_labels = (read_idx(file) for file in files)
    return normalised("MNIST", train_images, train_labels, test_images, test_labels)


def find_mnist(folder: Path) -> list[Path] | None:
    """Return the four files of MNIST, raw or ``.gz``, or None when one is missing."""
    for place in (folder / "MNIST" / "raw", folder / "raw", folder):
        found = [next((p for p in (place / stem, place / f"{stem}.gz") if p.is_file()), None) for stem in MNIST_STEMS]
        complete = [path for path in found if path is not None]
        if len(complete) == len(MNIST_STEMS):
            return complete
    return None


def read_idx(path: Path) -> torch.Tensor:
    """Read a file of unsigned bytes in the idx format: 0, 0, 8, rank, the sizes (big-endian), the bytes.

    Raises:
        ValueError: The file is not in this format, or is cut short.
    """
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        content = file.read()
    rank = content[3] if content[:3] == b"\0\0\x08" and len(content) > 3 else 0
    sizes = tuple(np.frombuffer(content, ">u4", count=rank, offset=4).tolist()) if len(content) >= 4 + 4 * rank else ()
    if not sizes or len(content) != 4 + 4 * rank + math.prod(sizes):
        raise ValueError(f"{path} is no idx file of unsigned bytes, or is cut short")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * rank).reshape(sizes).copy())


def scikit_learn_digits(num_samples: int) -> Digits:
    """Return the 1797 scans of scikit-learn at 28 x 28; the training part is repeated, shifted and turned a little."""
    from sklearn.datasets import load_digits as load_scans

    scans = load_scans()
    images = torch.from_numpy(scans.images).float()[:, None]
    images = F.interpolate(images, size=(28, 28), mode="bilinear", align_corners=False)[:, 0]
    labels = torch.from_numpy(scans.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SPLIT_SEED))
    held_back, kept = order[:NUM_HELD_BACK], order[NUM_HELD_BACK:]
    repeated = kept.repeat(math.ceil(num_samples / len(kept)))[:num_samples]
    moved = shift_and_turn(images[repeated][:, None], first_unmoved=len(kept))[:, 0]
    return normalised("scikit-learn digits", moved, labels[repeated], images[held_back], labels[held_back])


def shift_and_turn(images: torch.Tensor, first_unmoved: int, seed: int = SPLIT_SEED) -> torch.Tensor:
    """Shift by at most 2 pixels and rotate by at most 10 degrees, at random from a seed.

    Args:
        images: `[N, 1, H, W]`.
        first_unmoved: So many images at the front stay as they are.
        seed: Seed of the shifts and rotations.
    """
    count, width = len(images), images.shape[-1]
    generator = torch.Generator().manual_seed(seed)
    angle = (torch.rand(count, generator=generator) * 2 - 1) * math.radians(10)
    shift = (torch.rand(count, 2, generator=generator) * 2 - 1) * 2 * 2 / width  # a width is 2 in grid units
    angle[:first_unmoved] = 0
    shift[:first_unmoved] = 0
    cos, sin = angle.cos(), angle.sin()
    transform = torch.stack((cos, -sin, shift[:, 0], sin, cos, shift[:, 1]), dim=1).view(-1, 2, 3)
    moved = torch.empty_like(images)
    for begin in range(0, count, 4096):  # the sampling grid of a whole epoch would take 400 MB
        part = slice(begin, begin + 4096)
        grid = F.affine_grid(transform[part], list(images[part].shape), align_corners=False)
        moved[part] = F.grid_sample(images[part], grid, mode="bilinear", align_corners=False)
    return moved


def normalised(
    name: str, train_images: torch.Tensor, train_labels: torch.Tensor, test_images: torch.Tensor,
    test_labels: torch.Tensor,
) -> Digits:
    """Scale all images by the mean and deviation of the training part; images come as `[N, 28, 28]`."""
    train = train_images.float()
    mean, deviation = train.mean(), train.std()
    return Digits(
        name, ((train - mean) / deviation)[:, None].contiguous(), train_labels.long(),
        ((test_images.float() - mean) / deviation)[:, None].contiguous(), test_labels.long(),
    )
