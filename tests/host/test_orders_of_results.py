"""Results that the caller expects in another order of dimensions than that in which their operand lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

LAST, ROWS = torch.channels_last, torch.contiguous_format
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "padded by reflection": lambda x: F.pad(x, (2, 1, 1, 2), mode="reflect"),
    "padded": lambda x: F.pad(x, (2, 1, 0, 3), value=1.5),
    "the nearest": lambda x: F.interpolate(x, scale_factor=2, mode="nearest"),
    "between": lambda x: F.interpolate(x, size=(5, 13), mode="bilinear"),
    "maxima": lambda x: F.max_pool2d(x, 3, 2, 1),
    "means": lambda x: F.avg_pool2d(x, 2),
    "adaptive means": lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    "groups": lambda x: F.group_norm(x, 4),
    "images": lambda x: F.instance_norm(x),
    "softmax": lambda x: x.softmax(1),
    "sums": lambda x: x.cumsum(2),
    "rolled": lambda x: x.roll(1, 2),
    "flipped": lambda x: x.flip(3),
    "joined": lambda x: torch.cat([x, x[:, :3]], 1),
    "sorted": lambda x: x.sort(3).values,
    "added": lambda x: x + x.exp(),
    "shuffled": lambda x: F.pixel_shuffle(x, 2),
    "chosen": lambda x: torch.where(x > 0, x, x.sum(1, keepdim=True)),
}


@pytest.mark.suffices(name=["padded by reflection", "between", "maxima", "groups", "added"])
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("lies", "expected"), [(ROWS, LAST), (LAST, ROWS), (LAST, LAST)])
def test_results_lie_as_expected_and_equal_float64(
    name: str, lies: torch.memory_format, expected: torch.memory_format,
) -> None:
    function = FUNCTIONS[name]

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        made = function(x)
        return made.contiguous(memory_format=expected), (made * 2).contiguous(memory_format=expected)

    x = torch.randn(2, 8, 7, 9, generator=torch.Generator().manual_seed(1)).contiguous(memory_format=lies)
    torch._dynamo.reset()
    if name == "shuffled":
        x = x[..., :8].contiguous(memory_format=lies)
    found, wanted = torch.compile(both, backend="ipu", fullgraph=True)(x), both(x.double())
    for ours, exact in zip(found, wanted, strict=True):
        assert ours.is_contiguous(memory_format=expected)
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
