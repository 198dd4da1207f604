"""Which rows of a data set each of several processes reads, so that all of them together read each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterableDataset, Sampler


@dataclass(frozen=True)
class Share:
    """The rows of one process: blocks of neighbouring rows are dealt out to the processes in turn.

    Attributes:
        rank: Number of this process.
        size: Number of processes.
        block: Rows of a block.
        step: Rows that one call of all processes takes, a multiple of ``size`` blocks.
        drop_last: Whether rows that fill no such call are left out.
    """

    rank: int
    size: int
    block: int
    step: int
    drop_last: bool

    def of(self, num_rows: int) -> list[int]:
        """Return the places of this process's rows among so many."""
        used = num_rows - num_rows % self.step if self.drop_last else num_rows
        return [place for place in range(used) if self.has(place)]

    def has(self, place: int) -> bool:
        """Return whether the row at a place is of this process."""
        return place // self.block % self.size == self.rank


class ShareSampler(Sampler[int]):
    """The share of this process of an order of rows.

    Args:
        order: All rows.
        share: Which of them.
        agreed: Returns the order that all processes take.
    """

    def __init__(self, order: Any, share: Share, agreed: Callable[[Sequence[int]], list[int]]) -> None:
        self.order, self.share, self.agreed = order, share, agreed

    def __len__(self) -> int:
        """Return the rows of this process in an epoch."""
        return len(self.share.of(len(self.order)))

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the rows of an epoch."""
        numbers = self.agreed(list(self.order))
        return iter([numbers[place] for place in self.share.of(len(numbers))])

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration have the order of an epoch.

        Args:
            epoch: Its number.
        """
        if hasattr(self.order, "set_epoch"):
            self.order.set_epoch(epoch)


class SharedIterable(IterableDataset[Any]):
    """The share of this process of rows that have no numbers: each process reads all of them, and keeps its own.

    Args:
        dataset: Yields the same rows in all processes.
        share: Which of them.
    """

    def __init__(self, dataset: Any, share: Share) -> None:
        self.dataset, self.share = dataset, share

    def __iter__(self) -> Iterator[Any]:
        """Yield the rows of this process."""
        kept: list[Any] = []
        for place, row in enumerate(self.dataset):
            if self.share.has(place):
                kept.append(row)
            # Those of a call that not all processes can make are not trained with.
            if not self.share.drop_last or (place + 1) % self.share.step == 0:
                yield from kept
                kept.clear()

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration have the order of an epoch, where the data set knows epochs.

        Args:
            epoch: Its number.
        """
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
