"""Rows that are joined into others by index, read where they lie: columns of wider rows, and several parts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

COUNT, ROWS = 40, 7
TYPES = (torch.float32, torch.float16, torch.int64, torch.int32)
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as they fill": lambda wide: wide.contiguous()[:, :, :],
    "columns": lambda wide: wide.flatten(1)[:, 5:29].unflatten(1, (3, 8)),
    "parts": lambda wide: wide[:, :, 3:11],
    "turned": lambda wide: wide.transpose(1, 2)[:, 2:9],
    "one for all": lambda wide: wide[:1, :, :5].expand(COUNT, -1, -1),
}
JOINS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "added": lambda base, index, source: base.index_add(0, index, source),
    "added twofold": lambda base, index, source: base.index_add(0, index, source, alpha=2),
    "put and added": lambda base, index, source: base.index_put((index,), source, accumulate=True),
    "put": lambda base, index, source: base.index_copy(0, index[:ROWS].argsort(stable=True), source[:ROWS]),
    "the largest": lambda base, index, source: base.index_reduce(0, index, source, "amax"),
    "the smallest alone": lambda base, index, source: base.index_reduce(0, index, source, "amin", include_self=False),
}


@pytest.mark.whole
@pytest.mark.parametrize("join", JOINS)
def test_rows_are_joined_as_in_eager_however_they_lie(join: str) -> None:
    torch.manual_seed(0)
    wides = [torch.randint(-9, 9, (COUNT, 4, 12)).to(dtype) for dtype in TYPES]  # sums are exact in any order
    index, cases = torch.randint(0, ROWS, (COUNT,)), [(wide, name) for wide in wides for name in VIEWS]
    bases = [torch.randint(-9, 9, (ROWS, *VIEWS[name](wide).shape[1:])).to(wide.dtype) for wide, name in cases]

    def all_of(wides: list[torch.Tensor], bases: list[torch.Tensor], index: torch.Tensor) -> list[torch.Tensor]:
        viewed = [view(wide) for wide in wides for view in VIEWS.values()]
        return [JOINS[join](base, index, source) for base, source in zip(bases, viewed, strict=True)]

    torch._dynamo.reset()
    found = torch.compile(all_of, backend="ipu", fullgraph=True)(wides, bases, index)
    for (wide, name), ours, eager in zip(cases, found, all_of(wides, bases, index), strict=True):
        where = f"{name} {wide.dtype}"
        torch.testing.assert_close(ours, eager, rtol=0, atol=0, msg=lambda text, w=where: f"{w}: {text}")
