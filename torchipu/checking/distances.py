"""How far two values are apart, and how far rounding alone may bring them."""

from __future__ import annotations

import numpy as np

TIMES = 4.0
"""An error may be so many times that of the same ops in the types of the program: sums have other orders."""
FLOOR = 2.0**-20
"""Of the norm of a value, eight units in the last place of float32: op by op some come out right by chance."""


def bound(exact: np.ndarray, *typed: np.ndarray) -> float:
    """Return how far a value of the host may be from the exact one.

    Args:
        exact: In float64.
        *typed: The same, computed in the types of the program op by op; more than once, with operands moved by a unit
            in the last place, where rounding carries far.
    """
    return max(*(TIMES * distance(one, exact) for one in typed), FLOOR * norm(exact))


def distance(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the norm of a difference; equal infinities and NaNs are none."""
    one, other = (value.astype(np.float64).reshape(-1) for value in (found, exact))
    same = (one == other) | (np.isnan(one) & np.isnan(other))
    difference = np.where(same, 0.0, one - np.where(same, one, other))
    return float(np.linalg.norm(difference)) if np.isfinite(difference).all() else float("inf")


def norm(value: np.ndarray) -> float:
    """Return the norm of what is finite."""
    held = value.astype(np.float64)
    return float(np.linalg.norm(held[np.isfinite(held)]))
