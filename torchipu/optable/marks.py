"""Marks that ops carry from one pass to a later one, or from the user's program to the device's."""

from __future__ import annotations

OVERLAP = "overlap"
"""Kind of the op that marks a transfer which runs beside the computation."""
NO_OVERLAP = "no_overlap"
"""The ``mode`` of such an op that marks nothing."""
MARK = "recomputed_from"
"""Attribute of an op that computes again: the name of what the original gives."""
CHECKPOINT_REGION = "checkpoint_region"
"""Attribute of ops under ``torch.utils.checkpoint``: which call of it."""
BFLOATS = "bfloats"
"""Attribute of products and convolutions whose operands torch has as bfloat16, for which the graph has floats."""
