"""Waits for batches of torch's loaders, measured once somebody wants to know where the host's time goes."""

from __future__ import annotations

import functools
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from torchipu.host.waits import WAITS

_MARK = "_torchipu_measures"


def measure_loaders() -> None:
    """Let the iterators of ``torch.utils.data.DataLoader`` note how long ``next`` takes; a second call does nothing."""
    following = _BaseDataLoaderIter.__next__
    if getattr(following, _MARK, False):
        return

    @functools.wraps(following)
    def measured(self: Any) -> Any:
        with WAITS.waiting():
            return following(self)

    setattr(measured, _MARK, True)
    _BaseDataLoaderIter.__next__ = measured  # type: ignore[method-assign]
