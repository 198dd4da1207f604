"""Arithmetic of sizes."""

from __future__ import annotations


def ceil_div(numerator: int, denominator: int) -> int:
    """Return the quotient rounded up."""
    return -(-numerator // denominator)
