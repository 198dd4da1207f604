"""Vertices of interpolation, of paddings that repeat and of windows that overlap, against the ops themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.device.tilings.test_moves import served, trained

X = torch.Tensor
F = torch.nn.functional


SUMS: list[tuple[str, Callable[[X], X], tuple[int, ...]]] = [
    ("_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward",
     lambda x: F.interpolate(x, (3, 5), mode="bilinear", antialias=True), (1, 2, 9, 8)),
    ("reflection_pad2d_backward", lambda x: F.pad(x, (2, 3, 1, 0), mode="reflect"), (2, 3, 5, 7)),
    ("replication_pad1d_backward", lambda x: F.pad(x, (2, 3), mode="replicate"), (2, 3, 7)),
    ("unfold_backward", lambda x: x.unfold(1, 4, 2) * 2, (3, 11, 5)),
    ("unfold_backward", lambda x: x.unfold(0, 2, 3) * 2, (11, 5)),
    ("im2col col2im", lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=1, stride=1), (2, 3, 9, 8)),
    ("col2im", lambda x: F.fold(x, (9, 8), (2, 3), stride=(2, 3), padding=(0, 1)), (2, 12, 12)),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("names", "function", "shape"), SUMS)
def test_sums_of_neighbours(
    names: str, function: Callable[[X], X], shape: tuple[int, ...], dtype: torch.dtype,
) -> None:
    machine = trained(function, *shape, dtype=dtype)
    served(machine, *(f"aten.{name}.default" for name in names.split()))
