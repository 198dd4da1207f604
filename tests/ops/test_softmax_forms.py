"""The softmax family as users call it, against eager float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.ops.judge import check

aten = torch.ops.aten
F = torch.nn.functional
FORMS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "softmin": F.softmin,
    "safe softmax": lambda x, dim: aten._safe_softmax(x, dim),
    "in float": lambda x, dim: x.softmax(dim, dtype=torch.float32),
    "logarithm in float": lambda x, dim: x.log_softmax(dim, dtype=torch.float32),
}
SHAPES = [((5, 7), 1), ((5, 7), 0), ((2, 33, 9), 1), ((3, 2, 65), -1), ((1, 1), 0), ((4, 1, 6), 1), ((17, 130), 0)]


@pytest.mark.parametrize(("shape", "dim"), SHAPES)
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_along_any_dimension(form: str, shape: tuple[int, ...], dim: int) -> None:
    torch.manual_seed(len(shape))
    # float64 in the judge is cut to float32 by the forms that name it: no more digits than ours.
    check(lambda x: FORMS[form](x, dim), (3 * torch.randn(shape)).requires_grad_())


@pytest.mark.parametrize("form", FORMS)
def test_halves_and_other_layouts(form: str) -> None:
    x = 3 * torch.randn(6, 40, 3)
    check(lambda x: FORMS[form](x, 1), x.half().requires_grad_())
    check(lambda x: FORMS[form](x, 1), x.transpose(0, 2).requires_grad_())
    check(lambda x: FORMS[form](x, 2), x[:, ::3, 1:2].expand(6, 14, 5).requires_grad_())


@pytest.mark.parametrize("shape", [(4, 3, 0, 1), (4, 0, 3), (0, 2, 3), (2, 3, 0)])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_rows_that_are_empty(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Halves have steps of their own that write nothing."""
    for form in FORMS.values():
        for dim in range(len(shape)):
            check(lambda x, form=form, dim=dim: form(x, dim), torch.randn(shape).to(dtype).requires_grad_())


@pytest.mark.parametrize("form", FORMS)
def test_nothing_and_a_single_number(form: str) -> None:
    check(lambda x: FORMS[form](x, 0), torch.tensor(2.0, requires_grad=True))
    for shape in ((0, 4), (4, 0)):
        for dim in (0, 1):
            check(lambda x, dim=dim: FORMS[form](x, dim), torch.randn(shape, requires_grad=True))


@pytest.mark.parametrize("form", FORMS)
def test_nan_and_infinity(form: str) -> None:
    x = torch.randn(7, 30)
    x[0, 2], x[1, 3], x[2, 4:], x[3], x[4] = math.nan, math.inf, -math.inf, -math.inf, 1e30
    x[5, :2] = torch.tensor([math.nan, math.inf])
    x[6, 5] = -1e30
    for dim in (0, 1):
        check(lambda x, dim=dim: FORMS[form](x, dim), x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_integers_are_taken_as_the_float_type_named(dtype: torch.dtype) -> None:
    x = torch.randint(0, 5, (4, 9)).to(dtype)
    check(lambda x: x.softmax(1, dtype=torch.float32), x)
    check(lambda x: x.log_softmax(0, dtype=torch.float32), x)


def test_masked_scores() -> None:
    x, mask = torch.randn(3, 8, requires_grad=True), torch.rand(3, 8) > 0.4
    check(lambda x, m: x.masked_fill(m, -math.inf).softmax(-1), x, mask)
    check(lambda x, m: aten._safe_softmax(x.masked_fill(m, -math.inf), 0), x, mask.logical_or(torch.ones(8).bool()))
