"""What was made of tensors at an earlier call, and whether these have the values that they had."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchipu._kernels.abi import Samples
from torchipu.host.unseen_writes import Sampled

Stamp = tuple[tuple[int, int], ...]
"""Where tensors lie and how often each was written: two equal ones mean the same values, as far as torch counts."""


def stamp_of(values: Sequence[torch.Tensor]) -> Stamp | None:
    """Return the stamp of tensors; None where torch does not count the writes into one."""
    if any(value.is_inference() for value in values):
        return None
    return tuple([(value.data_ptr(), value._version) for value in values])


class PreparedFrom:
    """The values of which a plan has made what depends on them alone; none at first.

    Attributes:
        stamp: Theirs; None where nothing is made.
        samples: Some elements of them.
    """

    def __init__(self) -> None:
        self.stamp: Stamp | None = None
        self.samples = Samples(())
        self._sampled: Sampled | None = None

    def holds(self, values: Sequence[torch.Tensor]) -> bool:
        """Return whether what was made still belongs to these values, as far as can be seen."""
        stamp = stamp_of(values)
        return stamp is not None and stamp == self.stamp and not self.samples.changed()

    def unseen(self, values: Sequence[torch.Tensor]) -> list[int]:
        """Return the numbers of values that are not those of which it was made, though torch counted no write."""
        stamp = stamp_of(values)
        return self.samples.changed() if stamp is not None and stamp == self.stamp else []

    def forget(self) -> None:
        """Take nothing for made: a run that fails may have made a part."""
        self.stamp = None

    def note(self, values: Sequence[torch.Tensor], *, is_anew: bool) -> None:
        """Take note of what was made, or is still there, of these values."""
        self.stamp = stamp_of(values)
        if is_anew:
            # Keeps the memory from being freed, and another tensor from being taken for this one by its address.
            self._sampled = Sampled(values)
            self.samples = self._sampled.samples
