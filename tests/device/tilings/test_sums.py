"""Vertices of interpolation, of paddings that repeat and of windows that overlap, against the ops themselves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.device.tilings.test_moves import served, trained

X = torch.Tensor
F = torch.nn.functional


def resized(mode: str, *size: int, **arguments: bool) -> Callable[[X], X]:
    """Return an interpolation to a size; not decomposed."""
    return lambda x: F.interpolate(x, size, mode=mode, **arguments)


SUMS: list[tuple[str, Callable[[X], X], tuple[int, ...]]] = [
    ("upsample_nearest1d upsample_nearest1d_backward", resized("nearest", 7), (2, 3, 5)),
    ("upsample_nearest2d upsample_nearest2d_backward", resized("nearest", 3, 17), (2, 3, 5, 8)),
    ("_upsample_nearest_exact2d", resized("nearest-exact", 3, 17), (2, 3, 5, 8)),
    ("upsample_bilinear2d_backward", resized("bilinear", 9, 3), (2, 3, 5, 8)),
    ("upsample_bilinear2d_backward", resized("bilinear", 5, 17, align_corners=True), (2, 3, 5, 8)),
    ("upsample_bicubic2d_backward", resized("bicubic", 9, 11), (1, 3, 5, 8)),
    ("upsample_trilinear3d_backward", resized("trilinear", 2, 9, 3), (1, 2, 4, 5, 3)),
    ("_upsample_bilinear2d_aa _upsample_bilinear2d_aa_backward", resized("bilinear", 3, 5, antialias=True), (1, 2, 9, 8)),
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
    print(machine.tiled, machine.whole, machine.without_kernel)
    served(machine, *(f"aten.{name}.default" for name in names.split()))
