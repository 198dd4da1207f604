"""The processes that an `IPUTrainer` trains in: their group, the replicas of each, and rows gathered from all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from torchipu.distributed.group import form
from torchipu.distributed.launcher import Launched, launched
from torchipu.distributed.members import all_gather, members_of
from torchipu.errors import OptionsError
from torchipu.transformers.batches import num_rows, rows_of
from torchipu.transformers.configuration import IPUConfig


def join() -> None:
    """Form the group of the processes that a launcher has started, and tell accelerate of it, which knows fewer."""
    place = launched()
    if dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
        place = place or Launched("torch.distributed", rank, size, rank, size, None)
    if place is None or place.size == 1:
        return
    form(place.rank, place.size)
    said = {
        "RANK": place.rank, "WORLD_SIZE": place.size, "LOCAL_RANK": place.local_rank,
        "LOCAL_WORLD_SIZE": place.local_size or place.size,
    }
    for name, number in said.items():
        os.environ.setdefault(name, str(number))


def with_replicas_of_launcher(ipu_config: IPUConfig) -> IPUConfig:
    """Return an `IPUConfig` with as many replicas as poprun gave this process; without poprun, as it is.

    Args:
        ipu_config: Its ``replication_factor`` may be 1, that of this process, or that of all together.

    Raises:
        OptionsError: It is another one.
    """
    numbers = [os.environ.get(f"POPDIST_NUM_{name}_REPLICAS", "") for name in ("LOCAL", "TOTAL")]
    if not all(number.isdecimal() for number in numbers):
        return ipu_config
    local, total = map(int, numbers)
    if ipu_config.replication_factor not in (1, local, total):
        raise OptionsError(
            f"replication_factor={ipu_config.replication_factor}, and poprun was told {total} replicas, {local} of "
            "them in this process", option="replication_factor", value=ipu_config.replication_factor,
            allowed=f"1, {local}, {total}", remedy="leave it out: poprun --num-replicas says it",
        )
    return ipu_config.update(replication_factor=local)


class InStep:
    """Batches of this process, and fillers once it has none left and others still have.

    All processes take equally many steps so: whoever gathers waits for nobody who has ended.

    Args:
        batches: Those of this process; the first process has at least as many as any other.

    Attributes:
        counts: Rows of the batch of now by process, fillers left out.
    """

    def __init__(self, batches: Iterator[Any]) -> None:
        self.batches = batches
        self.counts: list[int] = []
        self._filler: Any = None

    def __iter__(self) -> Iterator[Any]:
        while True:
            batch = next(self.batches, None)
            self.counts = [int(count) for count in _of_all(torch.tensor([0 if batch is None else num_rows(batch)]))]
            if not any(self.counts):
                return
            if 0 in self.counts and self._filler is None:
                held = [None if batch is None else rows_of(batch, 0, 1)]
                dist.broadcast_object_list(held, 0)
                self._filler = held[0]
            yield self._filler if batch is None else batch

    def gathered(self, values: Any) -> Any:
        """Return what all processes have for the rows of the batch of now, in the order of the processes.

        Args:
            values: Nested tensors with this process's rows along dimension 0, or with them several times over.
        """
        rank = dist.get_rank()
        own = max(self.counts[rank], 1)  # a filler is one row

        def gather(value: torch.Tensor) -> torch.Tensor:
            if value.dim() == 0 or value.shape[0] % own:
                raise OptionsError(
                    f"prediction_step returned a tensor of shape {list(value.shape)} for {own} rows: it cannot be "
                    "gathered over processes", option="prediction_step", value=list(value.shape),
                    allowed=f"a multiple of {own} along dimension 0",
                )
            by_copy = value.detach().unflatten(0, (-1, own))
            padded = by_copy.new_zeros(len(by_copy), max(self.counts), *value.shape[1:])
            padded[:, : self.counts[rank]] = by_copy[:, : self.counts[rank]]
            every = _of_all(padded)
            return torch.cat([part[:, :count] for part, count in zip(every, self.counts, strict=True)], 1).flatten(0, 1)

        return pytree.tree_map_only(torch.Tensor, gather, values)


def shared_order(order: Sequence[int]) -> list[int]:
    """Return the order of rows that the first process has; the others', whatever their random numbers, do not count.

    Args:
        order: Numbers of the rows.

    Raises:
        OptionsError: In all processes: they have data sets of different lengths.
    """
    members = members_of(None)
    numbers = torch.tensor(list(order), dtype=torch.int64)
    lengths = [int(length) for length in _of_all(torch.tensor([len(numbers)]))]
    if len(set(lengths)) > 1:
        raise OptionsError(
            f"processes have data sets of {', '.join(map(str, lengths))} rows, by rank", option="train_dataset",
            value=lengths, remedy="give each process the whole data set: each reads its share of it",
        )
    if members is not None:
        members.finished(dist.broadcast(numbers, 0, async_op=True))
    return numbers.tolist()


def _of_all(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor of each process, one after another, in all of them; they have the same shape."""
    members = members_of(None)
    if members is None:
        return value[None]
    own = value.contiguous().reshape(-1).view(torch.uint8)
    every = own.new_empty(members.size * own.numel())
    members.finished(all_gather(every, own))
    return every.view(value.dtype).view(members.size, *value.shape)
