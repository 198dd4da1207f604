"""Kernels of a normalisation by the batch's statistics whose channels lie in blocks; see ``blocked_layout``.

All sums are made in the order of the kernels of ``norm`` that take rows, so that either layout gives the same bits.
``batch_statistics`` and ``batch_grad_statistics`` read the partial sums, ``end_blocked`` normalises.
"""

from .kernel import Kernel, Nothing
from .norm import BatchInts, NormScalars

BATCH_MOMENTS_BLOCKED = Kernel(
    "batch_moments_blocked", {"partials": "of `batch_moments`", "x": "[samples][blocks][positions][lanes]"},
    BatchInts, Nothing, items="blocks * splits",
)
BATCH_FACTORS_BLOCKED = Kernel(
    "batch_factors_blocked",
    {
        "first": "[2][blocks][lanes], 0 and what is added first", "affine": "[2][blocks][lanes], scales and shifts",
        "mean": "[channels]", "rstd": "[channels]", "weight": "[channels]", "bias": "[channels]",
    },
    BatchInts, Nothing,
)
"""What ``end_blocked`` reads, 0 behind the last channel."""
BATCH_GRAD_SUMS_BLOCKED = Kernel(
    "batch_grad_sums_blocked",
    {
        "partials": "of `batch_grad_sums`", "dy": "as x", "x": "[samples][blocks][positions][lanes]",
        "mean": "[channels]",
    },
    BatchInts, Nothing, items="blocks * splits",
)
BATCH_GRAD_APPLY_BLOCKED = Kernel(
    "batch_grad_apply_blocked",
    {
        "dx": "as x", "dy": "as x", "x": "[samples][blocks][positions][lanes]", "mean": "[channels]",
        "spread": "[channels], rstd or variance", "weight": "[channels]", "dweight": "[channels]",
        "dbias": "[channels]",
    },
    BatchInts, NormScalars, items="samples * blocks",
)
"""As ``batch_grad_apply``."""
