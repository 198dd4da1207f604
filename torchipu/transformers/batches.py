"""Batches of one shape: a collator that pads to a length, and batches that do not fill a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchipu.errors import OptionsError

IGNORED_LABEL = -100
"""The label that losses of transformers leave out."""


@dataclass
class FixedLengthCollator:
    """Pads what another collator returns to one length: a program takes tensors of one shape.

    Attributes:
        collator: Makes a batch, a dictionary of tensors, of rows.
        length: Of dimension 1 of every tensor that has as many columns as ``input_ids``.
        pad_token_id: What ``input_ids`` are padded with.
        values: What other tensors are padded with, by name; 0 for those that are not there, and -100 for labels.
    """

    collator: Callable[[Sequence[Any]], Mapping[str, Any]]
    length: int
    pad_token_id: int = 0
    values: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, rows: Sequence[Any]) -> dict[str, Any]:
        """Return a batch of the length.

        Raises:
            OptionsError: A row is longer.
        """
        batch = dict(self.collator(rows))
        columns = batch["input_ids"].shape[1]
        if columns > self.length:
            raise OptionsError(
                f"FixedLengthCollator: a row of {columns} tokens does not fit a length of {self.length}",
                option="length", value=self.length, allowed=f"{columns} or more",
                remedy="truncate rows, as in tokenizer(..., truncation=True, max_length=...), or raise the length",
            )
        known = {"input_ids": self.pad_token_id, "labels": IGNORED_LABEL, **self.values}
        for name, value in batch.items():
            if isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[1] == columns:
                padding = [0, 0] * (value.dim() - 2) + [0, self.length - columns]
                batch[name] = torch.nn.functional.pad(value, padding, value=known.get(name, 0))
        return batch


def num_rows(batch: Mapping[str, Any]) -> int:
    """Return the rows of a batch."""
    return max((value.shape[0] for value in batch.values() if _has_rows(value)), default=1)


def rows_of(batch: Mapping[str, Any], begin: int, end: int) -> dict[str, Any]:
    """Return some rows of a batch."""
    return {name: value[begin:end] if _has_rows(value) else value for name, value in batch.items()}


def filled(batch: Mapping[str, Any], wanted: int) -> dict[str, Any]:
    """Return a batch with as many rows as wanted, the last one repeated."""
    def fill(value: Any) -> Any:
        missing = wanted - value.shape[0]
        return value if missing <= 0 else torch.cat([value, value[-1:].repeat(missing, *[1] * (value.dim() - 1))])

    return {name: fill(value) if _has_rows(value) else value for name, value in batch.items()}


def joined(parts: Sequence[Any]) -> Any:
    """Return nested results of several calls as those of one."""
    if len(parts) == 1:
        return parts[0]
    return pytree.tree_map(lambda *members: torch.cat(members), *parts)


def in_type(batch: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return a batch whose real numbers are in the type of the weights, as a model of halves wants them."""
    return {
        name: value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in batch.items()
    }


def _has_rows(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dim() > 0
