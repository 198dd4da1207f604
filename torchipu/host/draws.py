"""The seed of a plan's random bits, drawn from torch's default generator run by run."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Draws:
    """What draws seeds for one plan, whose runs follow one another.

    Args:
        rows: Counters of its streams, ``[streams, 4]``.
        seed: Sets the key of all of them.
    """

    def __init__(self, rows: torch.Tensor, seed: Callable[[int], None]) -> None:
        self.rows, self._seed = rows, seed
        self._before = torch.empty(0, dtype=torch.uint8)

    def begin(self) -> None:
        """Draw a seed for the run that begins."""
        self._before = torch.get_rng_state()
        self._seed(int(torch.randint(2**62, ()).item()))

    def undo(self) -> None:
        """Let torch's generator be as it was before the run, which has failed or was interrupted."""
        torch.set_rng_state(self._before)
