"""Ops without a record."""

from __future__ import annotations

EFFECT_TOKEN = "effect_token"
"""Operand of ops with effects, such as a check that raises: an empty tensor that such ops hand to each other."""
