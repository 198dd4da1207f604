"""Metrics over all processes: losses, accuracies and counts that each has of its own share of the data."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchipu.distributed.handshake import agree
from torchipu.distributed.members import all_gather, members_of
from torchipu.errors import OptionsError, nearest

REDUCTIONS = ("mean", "sum", "min", "max")


def reduce_metrics(
    metrics: Mapping[str, float | torch.Tensor], reduction: str = "mean", *, weight: float = 1.0,
    process_group: object = None,
) -> dict[str, float]:
    """Reduce metrics over processes; all of them get the same numbers, whatever their speed.

    Args:
        metrics: 0-d values by name; every process gives the same names.
        reduction: ``mean``, ``sum``, ``min`` or ``max``.
        weight: For the mean: how much this process's values count, such as the number of its samples.
        process_group: As the option of this name: None for the default group where there is one, ``"alone"`` for this
            process by itself.

    Returns:
        The reduced values by name, computed in float64 in the order of the ranks.

    Raises:
        OptionsError: There is no such reduction, or a value is no number.
        PeerMismatchError: Processes give other names, or ask for another reduction.
        PeerError: Another process has gone, or does not answer.
    """
    if reduction not in REDUCTIONS:
        raise OptionsError(
            f"unknown reduction {reduction!r}{nearest(reduction, REDUCTIONS)}", option="reduction", value=reduction,
            allowed=", ".join(REDUCTIONS),
        )
    values = torch.tensor([_number(name, value) for name, value in metrics.items()], dtype=torch.float64)
    members = members_of(process_group)
    if members is None:
        return dict(zip(metrics, values.tolist(), strict=True))
    members.begin()
    agree(members, {"what is done": "reducing metrics", "reduction": reduction, "metrics": ", ".join(metrics)})
    own = torch.cat([values, torch.tensor([weight], dtype=torch.float64)])
    every = torch.empty(members.size * len(own), dtype=torch.float64)
    members.finished(all_gather(every, own, members.group))
    rows = every.view(members.size, -1)
    return dict(zip(metrics, _reduced(rows[:, :-1], rows[:, -1:], reduction).tolist(), strict=True))


def _reduced(values: torch.Tensor, weights: torch.Tensor, reduction: str) -> torch.Tensor:
    """Return what becomes of values ``[processes, metrics]`` with weights ``[processes, 1]``."""
    if reduction == "min":
        return values.amin(0)
    if reduction == "max":
        return values.amax(0)
    if reduction == "sum":
        return values.sum(0)
    return (values * weights).sum(0) / weights.sum()


def _number(name: str, value: float | torch.Tensor) -> float:
    if isinstance(value, torch.Tensor) and value.numel() != 1:
        raise OptionsError(
            f"metric {name!r} has shape {list(value.shape)}, not one number", option=name, value=value,
            remedy="reduce it to one number first, by .mean() or .sum()",
        )
    return float(value)
