"""Batches as Lightning hands them over, as flat tensors of one or several micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.errors import OptionsError
from torchipu.lightning.expressions import Surroundings
from torchipu.lightning.step_capture import StepCall

CONSTANTS = (str, bytes, bool, type(None))


@dataclass(slots=True)
class Batch:
    """One batch of Lightning's.

    Attributes:
        call: How the step is called with it.
        tensors: Its tensors; those of its micro-batches lie behind each other.
        shapes: Shape of each in a micro-batch.
        pieces: Micro-batches in it.
        at: The numbers that the loop has when it comes to this batch.
        weight: Factor on its loss, beside that of others in an update.
    """

    call: StepCall
    tensors: list[torch.Tensor]
    shapes: tuple[torch.Size, ...]
    pieces: int
    at: Surroundings
    weight: int = 1

    @property
    def key(self) -> tuple[object, ...]:
        """What of it is fixed in a program."""
        call = self.call
        return (
            call.hook, call.spec, tuple(type(leaf) for leaf in call.leaves), call.rest[1:], len(call.rest), self.shapes,
            tuple([tensor.dtype for tensor in self.tensors]), self.pieces, self.weight,
        )

    def example(self) -> list[torch.Tensor]:
        """Return the tensors of its first micro-batch."""
        if self.pieces == 1:
            return self.tensors
        return [
            tensor[: max(1, len(tensor) // self.pieces)].reshape(shape)
            for tensor, shape in zip(self.tensors, self.shapes, strict=True)
        ]


def batch_of(hook: str, raw: Any, rest: Sequence[int], pieces: int, at: Surroundings) -> Batch:
    """Take a batch apart.

    Args:
        hook: Name of the step.
        raw: The batch.
        rest: What the step is given behind it.
        pieces: Micro-batches that lie behind each other in its tensors.
        at: Numbers of the loop.

    Raises:
        OptionsError: It holds something else than tensors, numbers and texts, or cannot be cut.
    """
    leaves, spec = pytree.tree_flatten(raw)
    tensors: list[torch.Tensor] = []
    shapes: list[torch.Size] = []
    kept: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            shapes.append(_cut(leaf, pieces))
            tensors.append(leaf)
            kept.append(None)
        elif isinstance(leaf, (int, float)) and not isinstance(leaf, bool):
            kind = torch.int64 if isinstance(leaf, int) else torch.float32
            tensors.append(torch.full((pieces,) if pieces > 1 else (), leaf, dtype=kind))
            shapes.append(torch.Size())
            kept.append(None)
        elif isinstance(leaf, CONSTANTS):
            kept.append(leaf)
        else:
            raise OptionsError(
                f"a batch holds a {type(leaf).__name__}, which {hook} would see as it is in the first batch only",
                option="batch", value=type(leaf),
                allowed="tensors, numbers, texts, and lists, tuples and dicts of them",
                remedy="register the class with torch.utils._pytree.register_pytree_node, or return tensors from "
                "collate_fn",
            )
    return Batch(StepCall(hook, spec, tuple(kept), tuple(rest)), tensors, tuple(shapes), pieces, at)


def _cut(tensor: torch.Tensor, pieces: int) -> torch.Size:
    if pieces == 1:
        return tensor.shape
    if tensor.dim() == 0 or len(tensor) % pieces:
        rows = len(tensor) if tensor.dim() else "a 0-d tensor"
        raise OptionsError(
            f"a batch of {rows} cannot be cut into {pieces} micro-batches", option="batch", value=rows,
            remedy="let the batch size of the loader be a multiple of replicas x gradient accumulation x device "
            "iterations",
        )
    return torch.Size((len(tensor) // pieces, *tensor.shape[1:]))


def joined(batches: Sequence[Batch]) -> list[torch.Tensor]:
    """Return the tensors of several batches, micro-batch behind micro-batch."""
    if len(batches) == 1:
        return batches[0].tensors
    columns = zip(*(batch.tensors for batch in batches), strict=True)
    return [torch.cat(column) if column[0].dim() else torch.stack(column) for column in columns]


class Results:
    """The outputs of one batch, taken from those of a whole call when they are asked for.

    Args:
        outputs: Of the call: ``[micro-batches, ...]`` each.
        first: Of the micro-batches of this batch.
        count: How many it has.
        reductions: What replicas do with 0-d outputs, by place.
    """

    def __init__(
        self, outputs: Sequence[torch.Tensor], first: int, count: int, reductions: dict[int, str],
    ) -> None:
        self.outputs, self.first, self.count, self.reductions = outputs, first, count, reductions

    def __getitem__(self, place: int) -> torch.Tensor:
        value = self.outputs[place]
        if self.count == 1:
            return value[self.first]
        value = value[self.first : self.first + self.count]
        if value.dim() > 1:
            return value.flatten(0, 1)
        return _over_replicas(value, self.reductions.get(place))

    def of_first(self, place: int) -> torch.Tensor:
        """Return an output of the first micro-batch, where all have the same."""
        return self.outputs[place][self.first]

    def __len__(self) -> int:
        return len(self.outputs)


def _over_replicas(value: torch.Tensor, word: str | None) -> torch.Tensor:
    """Return what a 0-d result of each micro-batch is for all of them: a count is added up, a float averaged."""
    if word is None:
        word = "mean" if value.is_floating_point() else "sum"
    if word in ("max", "amax"):
        return value.amax()
    if word in ("min", "amin"):
        return value.amin()
    if word == "sum" or value.dtype is torch.bool:
        return value.sum()
    return value.mean() if value.is_floating_point() else value.float().mean()

