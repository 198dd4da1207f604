"""Kinds of values that options have beside bools, numbers and words, and how a value becomes one of its kind."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

from torchipu.target import Target, lookup_target


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorLocation:
    """Where tensors of one kind are kept.

    Attributes:
        on_chip: In tile memory; else in Streaming Memory, brought in where a function of the program needs them.
        min_elements_off_chip: Elements from which on a tensor may leave the chip.
        replicated_sharding: Each replica keeps a share of what an update changes: of optimiser states, accumulators; of
            weights, which forwards and backwards then gather before they use them.
        min_elements_sharding: Elements from which on a tensor is shared out.
        io_tiles_to_load: Loads from Streaming Memory go through the IO tiles, beside computation.
        io_tiles_to_store: So do stores.

    Source: the defaults of PopTorch's TensorLocationSettings.
    """

    on_chip: bool = True
    min_elements_off_chip: int = 2
    replicated_sharding: bool = False
    min_elements_sharding: int = 8192
    io_tiles_to_load: bool = False
    io_tiles_to_store: bool = False


class ProcessGroupLike:
    """What the core takes for a process group: torch.distributed's, which it does not import, or one like it."""

    @staticmethod
    def is_one(value: object) -> bool:
        """Whether a value answers what a process group is asked."""
        return all(callable(getattr(value, name, None)) for name in ("rank", "size"))


ARTICLES = {bool: "a bool", int: "an int", float: "a float", str: "a str", tuple: "a list of {} names",
             TensorLocation: "a torchipu.TensorLocation", ProcessGroupLike: "a process group of torch.distributed",
             Target: "a machine: a name, a name with fields to replace ('mk2,num_tiles=736'), a path that ends in "
                     ".toml, or a torchipu.target.Target",
             dict: "a dict of numbers above 0 and at most 1 by IPU"}


def normal(value: object, kind: type) -> Any:
    """Return a value as ``kind`` where that loses nothing, else None; a bool is no number here."""
    if isinstance(value, bool):
        return value if kind is bool else None
    if kind is int and isinstance(value, Integral):
        return int(value)
    if kind is float and isinstance(value, Real):
        return float(value)
    if kind is TensorLocation and isinstance(value, Mapping) and set(value) <= {f.name for f in fields(TensorLocation)}:
        value = TensorLocation(**value)
    if kind is TensorLocation and isinstance(value, TensorLocation):
        flags = (value.on_chip, value.replicated_sharding, value.io_tiles_to_load, value.io_tiles_to_store)
        sizes = (value.min_elements_off_chip, value.min_elements_sharding)
        is_valid = all(isinstance(flag, bool) for flag in flags) and all(
            normal(size, int) is not None and size >= 0 for size in sizes
        )
        return value if is_valid else None
    if kind is Target and isinstance(value, (str, os.PathLike, Target)):
        return lookup_target(value).name  # says all of the machine, whatever becomes of the file
    if kind is ProcessGroupLike and not isinstance(value, str) and ProcessGroupLike.is_one(value):
        return value
    if kind is str and isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    if kind is dict and isinstance(value, Mapping):
        parts = {normal(ipu, int): normal(part, float) for ipu, part in value.items()}
        is_valid = all(ipu is not None and ipu >= 0 and part and 0 < part <= 1 for ipu, part in parts.items())
        return parts if is_valid else None
    if kind is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    return None
