"""Transposes of rows as wide as an element of another type, at addresses that such an element would not have."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bool])
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_short_rows_are_turned_wherever_they_lie(dtype: torch.dtype, width: int, offset: int) -> None:
    torch._dynamo.reset()
    torch.manual_seed(offset)
    rows, columns = 33, 21
    flat = torch.randint(0, 2 if dtype is torch.bool else 500, (offset + rows * columns * width,)).to(dtype)
    x = flat[offset:].view(rows, columns, width)

    def turned(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous()

    made = torch.compile(turned, backend="ipu", fullgraph=True, dynamic=False)(x)
    assert torch.equal(made, x.transpose(0, 1))
    assert made.is_contiguous()
