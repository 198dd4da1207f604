"""Gradients of several processes combined by Adasum: the sum of those at right angles, the mean of those alike.

Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

LEAST_SQUARE = 1e-8
"""Squared length below which a gradient has no direction: it is then taken whole."""


def combined(gradients: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the Adasum of as many gradients as a power of two, pair by pair, then pairs of these.

    Args:
        gradients: Of floats of one shape and type, by rank. Their dot products are of float64.

    Raises:
        ValueError: Their number is no power of two.
    """
    if len(gradients) & (len(gradients) - 1):
        raise ValueError(
            f"Running Adasum with non-power of 2 ranks is not supported yet: there are {len(gradients)}. Use "
            "hvd.Average, or start 2, 4, 8, ... processes"
        )
    level = list(gradients)
    while len(level) > 1:
        level = [_of_two(level[place], level[place + 1]) for place in range(0, len(level), 2)]
    return level[0]


def _of_two(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Return the sum of two gradients, from each of which half of its projection onto the other is taken."""
    a, b = first.double().flatten(), second.double().flatten()
    dot, shares = torch.dot(a, b), []
    for vector in (a, b):
        square = torch.dot(vector, vector)
        shares.append(1 - dot / (2 * square) if square >= LEAST_SQUARE else torch.ones_like(square))
    return (shares[0] * a + shares[1] * b).to(first.dtype).reshape(first.shape)
