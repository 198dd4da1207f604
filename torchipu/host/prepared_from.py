"""What was made of tensors at an earlier call, and whether these have the values that they had."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchipu.host.unseen_writes import Sampled

_VERSION = torch.Tensor._version.__get__  # type: ignore[attr-defined]

Stamp = tuple[list[int], list[int]]
"""Where tensors lie and how often each was written: two equal ones mean the same values, as far as torch counts."""


def stamp_of(values: Sequence[torch.Tensor]) -> Stamp | None:
    """Return the stamp of tensors; None where torch does not count the writes into one."""
    if any(value.is_inference() for value in values):
        return None
    return list(map(torch.Tensor.data_ptr, values)), list(map(_VERSION, values))


class PreparedFrom:
    """The values of which a plan has made what depends on them alone; none at first."""

    def __init__(self) -> None:
        self._stamp: Stamp | None = None
        self._sampled: Sampled | None = None

    def holds(self, values: Sequence[torch.Tensor]) -> bool:
        """Return whether what was made still belongs to these values, as far as can be seen."""
        stamp = stamp_of(values)
        return stamp is not None and stamp == self._stamp and not self._unseen(stamp)

    def unseen(self, values: Sequence[torch.Tensor]) -> list[int]:
        """Return the numbers of values that are not those of which it was made, though torch counted no write."""
        stamp = stamp_of(values)
        return self._unseen(stamp) if stamp is not None and stamp == self._stamp else []

    def _unseen(self, stamp: Stamp) -> list[int]:
        return [] if self._sampled is None else self._sampled.changed(stamp[0])

    def forget(self) -> None:
        """Take nothing for made: a run that fails may have made a part."""
        self._stamp = None

    def note(self, values: Sequence[torch.Tensor], *, is_anew: bool) -> None:
        """Take note of what was made, or is still there, of these values."""
        self._stamp = stamp_of(values)
        if is_anew:
            # Keeps the memory from being freed, and another tensor from being taken for this one by its address.
            self._sampled = Sampled(values)
