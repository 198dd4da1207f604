"""Figures of a step as scalars of TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, Protocol

from torchipu.live.shown import compiled_step
from torchipu.report.figures import Figures


class Writer(Protocol):
    """What takes scalars: ``torch.utils.tensorboard.SummaryWriter``, or another with its method."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> Any:
        """Take a scalar."""


def write_scalars(step: Any, writer: Writer, global_step: int | None = None, prefix: str = "ipu") -> None:
    """Write the figures of a step's profile as scalars.

    Args:
        step: A `TrainStep`, an `InferenceStep`, or an executor of PopTorch's.
        writer: Takes them.
        global_step: Of the training, for the axis.
        prefix: Of the tags.

    Raises:
        OptionsError: Nothing was compiled yet.
    """
    for name, value in scalars_of(compiled_step(step).profile):
        writer.add_scalar(f"{prefix}/{name}", value, global_step)


def scalars_of(profile: Figures) -> Iterator[tuple[str, float]]:
    """Yield the figures of a profile that are numbers, by name."""
    yield "cycles_per_update", float(profile.cycles_per_update)
    yield "microseconds_per_update", profile.microseconds_per_update
    yield "samples_per_second", profile.samples_per_second
    yield "pipeline_fill", profile.pipeline_fill
    yield "supersteps_per_update", float(profile.supersteps_per_update)
    yield "fullest_tile_bytes", float(profile.fullest_tile.total_bytes)
    yield "fullest_tile_share", profile.fullest_tile.total_bytes / profile.tile_memory_bytes
    for memory, busy in zip(profile.memory_by_ipu, profile.efficiency_by_ipu, strict=True):
        yield f"ipu{memory.ipu}/fullest_tile_bytes", float(memory.total_bytes)
        yield f"ipu{memory.ipu}/efficiency", busy
    for ipu, spent in enumerate(profile.cycles_by_category_by_ipu):
        for category, cycles in spent.items():
            yield f"ipu{ipu}/{category.replace('-', '_')}_cycles", float(cycles)


def tensorboard_writer(directory: str | os.PathLike[str]) -> Writer:
    """Return a writer of TensorBoard's into a directory.

    Args:
        directory: As of ``tensorboard --logdir``.

    Raises:
        ImportError: TensorBoard is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ImportError('TensorBoard is not installed: pip install "torchipu[tensorboard]"') from error
    return SummaryWriter(os.fspath(directory))
