"""How far rounding takes a long sum that is made of short ones."""

from __future__ import annotations

import torch

UNIT = 2.0**-24  # the most that rounding to the nearest float32 changes, relative


def error_bound(summands: int, block: int) -> float:
    """Return a bound on the root mean square of the error of a sum of products of standard normal numbers.

    After k additions a sum of such products is about sqrt(k), and the next addition rounds it by at most UNIT of that.
    Roundings are independent of one another as good as always, so that their squares add up (Higham and Mary, A New
    Approach to Probabilistic Rounding Error Analysis, 2019): n^2 / 2 over a chain of n summands. A sum of m chains has
    m times those of a chain of n / m, and of joining them n / m * m^2 / 2.

    Args:
        summands: n.
        block: The most summands of a chain.
    """
    chains = -(-summands // block)
    each = summands / chains
    return UNIT * float(chains * each**2 / 2 + each * chains**2 / 2) ** 0.5


def error_of(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the root mean square of the error of results."""
    return float((result.double() - exact).square().mean().sqrt())
