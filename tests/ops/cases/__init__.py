"""Calls for every record of the op table that stands for an ATen overload, by overload."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch

from tests.ops import elementwise_cases
from tests.ops.cases import draws, images, indexing, losses, products, reductions, views
from tests.ops.cases.drawing import Call, Draw

FAMILIES = (views, reductions, products, images, indexing, losses, draws)


@functools.cache
def calls(dtype: torch.dtype = torch.float32, batch: int = 3) -> Mapping[str, Sequence[Call]]:
    """Return the calls of each overload.

    Args:
        dtype: Element type of values.
        batch: Size of the outermost dimension of most operands; 0 makes them empty.
    """
    found: dict[str, list[Call]] = defaultdict(list)
    for family in FAMILIES:
        for one in family.cases(Draw(dtype, batch)):
            found[one.target].append(one)
    for target in elementwise_cases.TARGETS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(11)
            shapes = ((batch, 33), (33,), (batch, 1))
            for args, kwargs in elementwise_cases.calls(target, dtype, shapes):
                found[target].append(Call(target, tuple(args), kwargs))
    return found
