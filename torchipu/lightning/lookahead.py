"""Looks ahead in the batches of a loop: those that come next are drawn early, and handed out in their turn."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Any


class Peekable(Iterator[Any]):
    """An iterator whose next items can be looked at.

    Args:
        source: The iterator of a fetcher of Lightning's; its other attributes are passed on.
    """

    def __init__(self, source: Any) -> None:
        self._source = source
        self._drawn: deque[Any] = deque()

    def __next__(self) -> Any:
        return self._drawn.popleft() if self._drawn else next(self._source)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def peek(self, count: int) -> list[Any]:
        """Return the next items; fewer of them where the source ends."""
        while len(self._drawn) < count:
            try:
                self._drawn.append(next(self._source))
            except StopIteration:
                break
        return list(self._drawn)[:count]


def upcoming(fetcher: Any, count: int) -> list[tuple[Any, int, int]]:
    """Return the batches that a fetcher gives next, each with its index and that of its loader.

    Args:
        fetcher: Of a loop of Lightning's.
        count: How many are wanted.
    """
    if count <= 0:
        return []
    early = list(getattr(fetcher, "batches", ()))
    if not isinstance(fetcher.iterator, Peekable):
        fetcher.iterator = Peekable(fetcher.iterator)
    return [*early, *fetcher.iterator.peek(count - len(early))][:count]


def batches_to_come(trainer: Any, batch_idx: int, accumulate: int, iterations: int) -> int:
    """Return how many batches a training call takes, the current one among them.

    It ends with a weight update: after ``iterations`` of them, or before a validation, a checkpoint or the last step.

    Args:
        trainer: The Trainer.
        batch_idx: Index of the current batch.
        accumulate: Batches in a weight update.
        iterations: Weight updates in a call.
    """
    first = accumulate - batch_idx % accumulate
    if trainer.max_steps != -1:
        iterations = min(iterations, max(1, trainer.max_steps - trainer.global_step))
    for callback in trainer.checkpoint_callbacks:
        every = getattr(callback, "_every_n_train_steps", 0)
        if every:
            iterations = min(iterations, every - trainer.global_step % every)
    wanted = first + accumulate * (iterations - 1)
    total = trainer.num_training_batches
    if total != math.inf:
        wanted = min(wanted, int(total) - batch_idx)
    check = trainer.val_check_batch
    if trainer.enable_validation and isinstance(check, (int, float)) and check not in (0, math.inf):
        until = int(check) - batch_idx % int(check)
        updates = [end for end in range(first, wanted, accumulate) if end <= until]
        if until < wanted and updates:
            wanted = updates[-1]
    return max(1, wanted)


def into_updates(batches: list[Any], batch_idx: int, accumulate: int) -> list[list[Any]]:
    """Divide neighbouring batches into those of each weight update.

    Args:
        batches: From the current one on.
        batch_idx: Index of the first.
        accumulate: Batches in a weight update.
    """
    first = accumulate - batch_idx % accumulate
    starts = [0, *range(first, len(batches), accumulate)]
    return [batches[start:end] for start, end in zip(starts, [*starts[1:], len(batches)], strict=True)]
