"""Which elements a loader reads, in which order: shares of the processes, and batches of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import Dataset, Sampler

from torchipu.poptorch.arguments import structure
from torchipu.poptorch.poptorch_core import createPoptorchError


class ShareSampler(Sampler[int]):
    """The elements of one of several processes.

    Without shuffling the shares are fixed blocks. With it all elements are shuffled anew for each epoch, alike in
    all processes; elements that an epoch leaves out are among those of the next.

    Args:
        num_elements: Of the data set.
        step: Elements of this process in a step.
        process: Number of this process.
        num_processes: Number of processes.
        drop_last: Whether to leave out elements that fill no step of all processes.
        seed: To shuffle with; None not to.
    """

    def __init__(
        self, num_elements: int, step: int, process: int, num_processes: int, *, drop_last: bool, seed: int | None
    ) -> None:
        self._num_elements = num_elements
        self._process = process
        self._num_processes = num_processes
        self._drop_last = drop_last
        self._share = step * (num_elements // (step * num_processes))
        if drop_last and self._share == 0:
            raise createPoptorchError(
                f"The dataset has {num_elements} elements, and {num_processes} processes take {step * num_processes} "
                "in a step: there is none for any process. Make the batches smaller, or set drop_last=False"
            )
        self._generator = None if seed is None else torch.Generator().manual_seed(seed)
        self._left_over: torch.Tensor | None = None

    def __len__(self) -> int:
        """Return the elements of this process in an epoch."""
        begin, end = self._range()
        return end - begin

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the elements of an epoch."""
        begin, end = self._range()
        if self._generator is None:
            yield from range(begin, end)
            return
        yield from self._shuffled(self._generator)[begin:end].tolist()

    def _range(self) -> tuple[int, int]:
        """Return where the share of this process begins and ends."""
        if self._drop_last:
            return self._process * self._share, (self._process + 1) * self._share
        least, more = divmod(self._num_elements, self._num_processes)
        begin = self._process * least + min(self._process, more)
        return begin, begin + least + (self._process < more)

    def _shuffled(self, generator: torch.Generator) -> torch.Tensor:
        """Return all elements in a new order, those of now before those that are left out."""
        order = torch.randperm(self._num_elements, generator=generator)
        if not self._drop_last:
            return order
        used = self._share * self._num_processes
        if self._left_over is not None:
            # Those that were left out come first, and are then shuffled with the others of this epoch.
            waited = torch.isin(order, self._left_over)
            order = torch.cat([order[waited], order[~waited]])
            order[:used] = order[:used][torch.randperm(used, generator=generator)]
        self._left_over = order[used:]
        return order


class Batches(Dataset[Any]):
    """A data set by batches: an index is the list of elements of one, collated.

    Args:
        dataset: The elements.
        collate: Makes a batch of a list of elements.
    """

    def __init__(self, dataset: Any, collate: Callable[[list[Any]], Any]) -> None:
        self.dataset = dataset
        self.collate = collate

    def __len__(self) -> int:
        """Return the number of elements."""
        return len(self.dataset)

    def __getitem__(self, indices: Sequence[int]) -> Any:
        """Return the batch of these elements."""
        if hasattr(self.dataset, "__getitems__"):
            return self.collate(self.dataset.__getitems__(list(indices)))
        return self.collate([self.dataset[index] for index in indices])

    def __getattr__(self, name: str) -> Any:
        """Let attributes of the data set be read."""
        # Not those of Python's and torch's protocols: torch would fetch elements by __getitems__ of the data set.
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.dataset, name)


class GroupSampler(Sampler[list[Any]]):
    """Groups consecutive batches of a batch sampler.

    Args:
        batch_sampler: Yields the elements of each batch.
        num_batches: Batches of a group.
        drop_last: Whether to leave out batches that fill no group.
    """

    def __init__(self, batch_sampler: Iterable[Any], num_batches: int, drop_last: bool) -> None:
        self.batch_sampler = batch_sampler
        self.num_batches = num_batches
        self.drop_last = drop_last

    def __len__(self) -> int:
        """Return the number of groups."""
        length = len(self.batch_sampler)  # type: ignore[arg-type]
        return length // self.num_batches if self.drop_last else -(-length // self.num_batches)

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield lists of batches."""
        group: list[Any] = []
        for batch in self.batch_sampler:
            group.append(batch)
            if len(group) == self.num_batches:
                yield group
                group = []
        if group and not self.drop_last:
            yield group


def concatenate(batches: list[Any]) -> Any:
    """Join batches along their first dimension, whatever holds their tensors.

    Args:
        batches: Batches made alike.
    """
    first = batches[0]
    if isinstance(first, torch.Tensor):
        return structure.take_the_place(first, torch.cat(batches))
    if isinstance(first, dict):
        return type(first)((key, concatenate([batch[key] for batch in batches])) for key in first)
    if isinstance(first, (tuple, list)):
        parts = [concatenate(list(parts)) for parts in zip(*batches, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else type(first)(parts)
    if structure.parser_of(first) is not None:
        members = zip(*(structure.tensors_in(batch) for batch in batches), strict=True)
        # A number of each batch becomes a row of the whole.
        joined = [torch.cat([one.reshape(1) if one.dim() == 0 else one for one in same]) for same in members]
        return structure.with_tensors(first, iter(joined))
    raise createPoptorchError(
        f"Batches of {type(first).__name__} cannot be joined: use tensors in tuples or dicts, or tell which tensors it "
        "holds with poptorch.registerCustomArgParser"
    )
