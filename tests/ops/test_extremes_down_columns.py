"""Extremes with their places, down columns and along short rows, products of integers and what moves bfloats."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

SHAPES = [(1, 16), (2, 17), (15, 63), (33, 64), (5, 65), (600, 200), (3, 7, 40), (2, 5, 3), (70, 9), (16, 32), (40, 33)]
TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]
FUNCTIONS: dict[str, Callable[[torch.Tensor, int], tuple[torch.Tensor, ...]]] = {
    "max": lambda x, dim: tuple(x.max(dim)), "min": lambda x, dim: tuple(x.min(dim, keepdim=True)),
    "argmax": lambda x, dim: (x.argmax(dim),), "argmin": lambda x, dim: (x.argmin(dim),),
}


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return values of which many are equal, and for floats some that are no numbers or no finite ones."""
    seeded = torch.Generator().manual_seed(sum(shape))
    whole = torch.randint(0, 9, shape, generator=seeded)
    if not dtype.is_floating_point:
        return whole.to(dtype)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, -0.0])
    takes = torch.rand(shape, generator=seeded) < 0.05
    return torch.where(takes, special[torch.randint(0, 4, shape, generator=seeded)], whole.float() - 4).to(dtype)


def first_place(x: torch.Tensor, dim: int, *, smallest: bool) -> torch.Tensor:
    """Return the place of the first NaN, or else of the first of equal extremes, found otherwise than by argmax."""
    wide = x.double() * (-1 if smallest else 1)
    wanted = torch.where(wide.isnan().any(dim, keepdim=True), wide.isnan(), wide == wide.amax(dim, keepdim=True))
    numbers = torch.arange(x.shape[dim]).view(-1, *[1] * (x.dim() - 1 - dim % x.dim()))
    return torch.where(wanted, numbers, x.shape[dim]).amin(dim, keepdim=True)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extremes_and_their_places(name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = drawn(shape, dtype)
    apart = torch.cat([x, x], -1)[..., : shape[-1]]
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    for given in (x, apart, turned):
        for dim in range(len(shape)):
            torch._dynamo.reset()
            ours = torch.compile(FUNCTIONS[name], backend="ipu")(given, dim)
            places = first_place(x, dim, smallest="min" in name)
            expected = (x.gather(dim, places), places)[-len(ours) :]
            for mine, its in zip(ours, expected, strict=True):
                its = its if name == "min" else its.squeeze(dim)
                assert mine.dtype == its.dtype
                torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_threads_change_nothing(dim: int) -> None:
    x, before, found = drawn((40, 50, 60), torch.float32), torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            found.append(torch.compile(lambda x: tuple(x.max(dim)), backend="ipu")(x))
    finally:
        torch.set_num_threads(before)
    for values, places in found:
        assert torch.equal(values.nan_to_num(7.0), found[0][0].nan_to_num(7.0))
        assert torch.equal(places, found[0][1])


@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_go_where_extremes_were(dim: int) -> None:
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(3))
    torch._dynamo.reset()
    given, judged = (value.requires_grad_() for value in (x.clone(), x.double()))
    torch.compile(lambda x: x.max(dim)[0].sin().sum(), backend="ipu")(given).backward()
    judged.max(dim)[0].sin().sum().backward()
    torch.testing.assert_close(given.grad.double(), judged.grad)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("shape", [(3, 1), (5, 16), (20, 300), (4, 7, 33)], ids=str)
def test_products_of_integers(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randint(-3 if dtype.is_signed else 0, 4, shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    for dim in range(len(shape)):
        torch._dynamo.reset()
        assert torch.equal(torch.compile(torch.prod, backend="ipu")(x, dim), x.prod(dim))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.int64], ids=str)
@pytest.mark.parametrize("diagonal", [-2, 0, 3])
def test_triangles(dtype: torch.dtype, diagonal: int) -> None:
    x = drawn((3, 7, 9), dtype)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.tril(diagonal), x.triu(diagonal), (x + x).tril(diagonal) + x, x.mT.triu(diagonal)

    torch._dynamo.reset()
    for mine, its in zip(torch.compile(run, backend="ipu")(x), run(x), strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_sums_without_what_is_no_number(dtype: torch.dtype) -> None:
    x = torch.randn(33, 129, generator=torch.Generator().manual_seed(5)).to(dtype)
    x[::3, ::5], x[1, 1], x[2, 1] = torch.nan, torch.inf, -torch.inf

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.nansum(0), x.nansum(1, keepdim=True), x.nansum(), x.nanmean(1), x[3:].nansum(dtype=torch.float32)

    torch._dynamo.reset()
    bound = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[dtype]
    for mine, its in zip(torch.compile(run, backend="ipu")(x), run(x.double()), strict=True):
        torch.testing.assert_close(mine.double(), its.double(), rtol=bound, atol=10 * bound, equal_nan=True)
    given, judged = x.clone().requires_grad_(), x.double().requires_grad_()
    torch.compile(lambda x: x.nansum(0).sum(), backend="ipu")(given).backward()
    judged.nansum(0).sum().backward()
    torch.testing.assert_close(given.grad.double(), judged.grad)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("shape", [(1, 40), (3, 1000), (5, 4099), (2, 3, 131), (70, 33)], ids=str)
@pytest.mark.parametrize("is_finite", [True, False])
def test_reductions_of_halves_as_they_lie(dtype: torch.dtype, shape: tuple[int, ...], is_finite: bool) -> None:
    """Along rows, of all, and down columns; NaN and infinities among them, or magnitudes whose sums stay finite."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(9)).to(dtype) if is_finite else drawn(shape, dtype)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        norm = torch.linalg.vector_norm
        return (
            x.amax(), x.amin(-1), *torch.aminmax(x), *torch.aminmax(x, dim=-1), x.amax(0), norm(x), norm(x, 1, dim=-1),
            norm(x, torch.inf, dim=-1), norm(x, dim=0), x[..., :33].prod(-1), x.sum(-1), x.mean(),
        )

    torch._dynamo.reset()
    bound = {torch.bfloat16: 1e-2, torch.float16: 2e-3}[dtype]
    for number, (mine, its) in enumerate(zip(torch.compile(run, backend="ipu")(x), run(x.double()), strict=True)):
        is_exact = number < 7
        its = its.to(dtype) if is_exact else its
        torch.testing.assert_close(
            mine.to(its.dtype), its, rtol=0 if is_exact else bound, atol=0 if is_exact else bound, equal_nan=True,
        )
