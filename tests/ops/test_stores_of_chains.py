"""What a chain stores: one value in several types, into a part of a larger result, and over what it still reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import torchipu

HALF, FLOAT = torch.float16, torch.float32


def held_to_eager(function: Callable[..., object], *inputs: Tensor) -> None:
    """Compare results and inputs after a call, to the last bit: the numbers are small and whole."""
    torch._dynamo.reset()
    mine, theirs = ([value.clone() for value in inputs] for _ in range(2))
    found, wanted = torch.compile(function, backend="ipu", fullgraph=True)(*mine), function(*theirs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def whole(*shape: int, dtype: torch.dtype = FLOAT, seed: int = 0) -> Tensor:
    return torch.randint(-9, 10, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", [HALF, torch.int32, torch.int8, torch.bool])
def test_a_value_is_stored_in_each_type_that_is_asked_for(dtype: torch.dtype) -> None:
    def several(x: Tensor) -> tuple[Tensor, ...]:
        y = ~x if dtype is torch.bool else x.clamp(min=0)
        return y, y.float(), y.half(), y.to(torch.int64), y + y

    held_to_eager(several, whole(5, 33, dtype=dtype))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(("given", "asked"), [
    (HALF, FLOAT), (FLOAT, HALF), (torch.int64, FLOAT), (torch.int8, torch.int16), (torch.bool, torch.int16),
    (torch.int16, torch.bool), (torch.int32, torch.int64),
])
def test_a_repeated_number_fills_its_part_of_a_result(given: torch.dtype, asked: torch.dtype, dim: int) -> None:
    def joined(x: Tensor, number: Tensor) -> Tensor:
        return torch.cat([x + x, number.expand(7, 9).to(asked), (number * number).expand(7, 9).to(asked)], dim)

    held_to_eager(joined, whole(7, 9, dtype=asked), torch.tensor([1]).to(given))


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
@pytest.mark.parametrize("lying", [lambda x: x, lambda x: x.t().contiguous().t()])
def test_what_is_written_over_an_operand_has_been_read_before(
    dtype: torch.dtype, lying: Callable[[Tensor], Tensor],
) -> None:
    def first_then_read(a: Tensor, w: Tensor) -> Tensor:
        doubled = a * 2
        total = doubled + w
        w.copy_(doubled)
        return total

    def read_twice(a: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        doubled = a * 2
        total, other = doubled - w, w * doubled.abs()
        w.copy_(doubled)
        return total, other + w

    def exchanged(a: Tensor, w: Tensor) -> Tensor:
        one, other = w + 1, a + 2
        a.copy_(one)
        w.copy_(other)
        return one * other

    for function in (first_then_read, read_twice, exchanged):
        held_to_eager(function, lying(whole(64, 65, dtype=dtype)), lying(whole(64, 65, dtype=dtype, seed=1)))


class Stores(nn.Module):
    """A product of halves `[7, 9]` that is returned, read as float, put beside others, and turned."""

    def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, ...]:
        product = a * b
        return product, product.float(), torch.cat([product, a + b, a - b * b], 1), (a * b * a).t().contiguous()


@pytest.mark.parametrize("options", [{}, {"stochastic_rounding": True, "seed": 4}], ids=["nearest", "stochastic"])
def test_a_rounded_value_is_the_same_half_wherever_it_is_stored(options: dict[str, object]) -> None:
    a, b = (torch.randn(7, 9, generator=torch.Generator().manual_seed(seed)).half() for seed in (1, 2))
    product, as_float, joined, turned = torchipu.InferenceStep(
        Stores(), torchipu.Options(**options),  # type: ignore[arg-type]
    )(a, b)
    assert torch.equal(as_float, product.float())
    assert torch.equal(joined[:, :9], product)
    x, y = a.double(), b.double()
    exact = x * y, torch.cat([x * y, x + y, x - y * y], 1), (x * y * x).t()
    for found, wanted in zip((product, joined, turned), exact, strict=True):
        # Two roundings at most, each to a half beside what is rounded; of a - b * b the product may be the larger.
        largest = wanted.abs().clamp(min=float(y.square().max()))
        assert ((found.double() - wanted).abs() <= 2 * largest * 2.0**-10).all()
