"""Chains that change signs of halves and bfloats, or choose among them, keep all other bits: those of every value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchipu.optable import emission

EVERY = torch.arange(-(2**15), 2**15, dtype=torch.int32).short()

CHAINS: dict[str, Callable[..., torch.Tensor]] = {
    "neg": lambda x, y, c: -x,
    "abs": lambda x, y, c: x.abs(),
    "copysign": lambda x, y, c: torch.copysign(x, y),
    "where neg": lambda x, y, c: torch.where(c, -x, y),
    "where a number": lambda x, y, c: torch.where(c & (c ^ True), x.abs(), 0.375),
    "a mask": lambda x, y, c: (-x).masked_fill(c, -torch.inf),
    "transposed": lambda x, y, c: -x.reshape(256, 256).t().abs(),
    "every second": lambda x, y, c: -x[::2],
    "relu": lambda x, y, c: x.relu(),
    "relu of what is chosen": lambda x, y, c: torch.where(c, -x, y).relu(),
    "gradient of relu": lambda x, y, c: torch.ops.aten.threshold_backward(x, y, 0),
    "its gradient where all are one": lambda x, y, c: torch.ops.aten.threshold_backward(x[5].expand_as(y), y, 0.0),
    "relu of a piece": lambda x, y, c: x[3:1000].relu(),
    "one sign for all": lambda x, y, c: torch.copysign(x, y[7]),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", CHAINS)
def test_every_value_has_the_bits_of_eager(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken: list[bool] = []
    moved_as_bits = emission.moved_as_bits

    def noted(*args: object) -> object:
        found = moved_as_bits(*args)  # type: ignore[arg-type]
        taken.append(found is not None)
        return found

    monkeypatch.setattr(emission, "moved_as_bits", noted)
    torch._dynamo.reset()
    order = torch.randperm(2**16, generator=torch.Generator().manual_seed(1))
    x, y, c = EVERY.view(dtype), EVERY[order].view(dtype), order % 3 == 0
    wanted = CHAINS[name](x, y, c)
    for threads in (1, 3):
        torch._dynamo.reset()
        found = torch.compile(CHAINS[name], backend="ipu", options={"host_threads": threads})(x, y, c)
        assert found.dtype == dtype
        is_nan = wanted.isnan()
        assert torch.equal(found.isnan(), is_nan)
        assert torch.equal(found.view(torch.int16)[~is_nan], wanted.view(torch.int16)[~is_nan])
    # The number is a float beside bfloats, and so is the chain.
    assert any(taken) or (name == "where a number" and dtype is torch.bfloat16)


def test_what_computes_with_halves_is_not_taken_for_a_move() -> None:
    torch._dynamo.reset()
    x = EVERY.view(torch.float16)[:31000].contiguous()

    def signs_and_sums(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return -x, (x.abs() + 0.5).neg()

    for mine, theirs in zip(torch.compile(signs_and_sums, backend="ipu")(x), signs_and_sums(x), strict=True):
        assert torch.equal(mine.nan_to_num(7), theirs.nan_to_num(7))
