"""The magnitudes of results as a report: JSON for programs, a table for people, and the loss scale that suits them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from torchipu.host.statistics import TensorStatistics, advise_loss_scale, format_statistics
from torchipu.report.json import write_whole

FORMAT = "torchipu.numerics"
VERSION = 1


def format_numerics(statistics: Sequence[TensorStatistics], loss_scale: float | None = None) -> str:
    """Return a table with a line for each tensor and, for training, advice on the loss scale below it.

    Args:
        statistics: Of a call.
        loss_scale: That of the call; None for inference.
    """
    table = format_statistics(statistics)
    return table if loss_scale is None else f"{table}\n\n{advise_loss_scale(statistics, loss_scale)}"


def numerics_json(statistics: Sequence[TensorStatistics], loss_scale: float | None = None) -> str:
    """Return the same as JSON: ``tensors``, and for training ``loss_scale``, ``suggested_loss_scale`` and ``advice``.

    Shares of a tensor are of its elements that are not zero; ``exponents`` counts them by magnitude, number e from
    2^(e - 127) on.

    Args:
        statistics: Of a call.
        loss_scale: That of the call; None for inference.
    """
    found: dict[str, object] = {"format": FORMAT, "version": VERSION}
    if loss_scale is not None:
        advice = advise_loss_scale(statistics, loss_scale)
        found |= {"loss_scale": loss_scale, "suggested_loss_scale": advice.suggested, "advice": str(advice)}
    found["tensors"] = [
        {
            **asdict(one), "elements": one.elements, "zeros": one.zeros, "infinities": one.infinities,
            "underflow": one.underflow(), "subnormal": one.subnormal(), "overflow": one.overflow(),
        }
        for one in statistics
    ]
    return json.dumps(found)


def write_numerics(
    statistics: Sequence[TensorStatistics], loss_scale: float | None, directory: str | os.PathLike[str],
) -> None:
    """Write ``numerics.json`` and ``numerics.txt``, each either complete or as it was.

    Args:
        statistics: Of a call.
        loss_scale: That of the call; None for inference.
        directory: Where to.

    Raises:
        OSError: The directory cannot be written.
    """
    write_whole(numerics_json(statistics, loss_scale) + "\n", Path(directory) / "numerics.json")
    write_whole(format_numerics(statistics, loss_scale) + "\n", Path(directory) / "numerics.txt")
