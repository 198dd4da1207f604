"""The logarithm of the gamma function and its slope against double precision, to half of the last place and a bit."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.elem_planner import run_op

FUNCTIONS = {"lgamma": torch.lgamma, "digamma": torch.digamma}
LAST_PLACE = 2.0**-23


def drawn() -> dict[str, torch.Tensor]:
    """Return arguments by where they lie; the zeros of both functions are among their neighbourhoods."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda count: torch.rand(count, generator=generator)  # noqa: E731
    return {
        "small": draw(2001) * 3, "middling": draw(2001) * 20, "large": torch.exp(draw(1001) * 80),
        "about 1": 1 + (draw(1001) - 0.5) * 1e-4, "about 2": 2 + (draw(1001) - 0.5) * 1e-4,
        "about the least": 1.4616321 + (draw(501) - 0.5) * 1e-3, "negative": -draw(2001) * 30,
        "about 0": torch.exp(-draw(501) * 80) * torch.where(draw(501) < 0.5, -1.0, 1.0),
        "bounds": torch.tensor([0.5, 1, 1.5, 2, 3, 7.9999995, 8, 8.000001, 11.999999, 12, 13, 1 - 2**-24, 2 + 2**-22]),
    }


@pytest.mark.parametrize("place", drawn())
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_are_those_of_double_precision(name: str, place: str) -> None:
    x = drawn()[place]
    x = x[~((x <= 0) & (x == x.round()))]
    ((ours,), _), exact = run_op(f"aten.{name}.default", x), FUNCTIONS[name](x.double())
    unit = LAST_PLACE * 2 ** torch.floor(torch.log2(exact.abs())).clamp(min=-126)
    error = (ours.double() - exact).abs() / unit
    assert error[exact != 0].max() < 0.51
    assert (ours[exact == 0] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_poles_and_infinities_are_those_of_eager_pytorch(name: str, dtype: torch.dtype) -> None:
    x = torch.tensor([0.0, -0.0, -1, -2, -7, -1000, math.inf, -math.inf, math.nan, 1, 2, 60000], dtype=dtype)
    ours, eager = run_op(f"aten.{name}.default", x)
    torch.testing.assert_close(ours[0], eager[0], equal_nan=True)
    if dtype is torch.float32:
        huge = torch.tensor([3.4e38, 1e37, -8388609.0, -3.4e38])
        ours, eager = run_op(f"aten.{name}.default", huge)
        torch.testing.assert_close(ours[0], eager[0], equal_nan=True)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_is_the_same_whatever_lies_beside_it(name: str) -> None:
    x = torch.cat([part[:37] for part in drawn().values()])
    (together,), _ = run_op(f"aten.{name}.default", x)
    alone = torch.cat([run_op(f"aten.{name}.default", x[i : i + 1])[0][0] for i in range(0, len(x), 7)])
    assert torch.equal(together[::7], alone)
