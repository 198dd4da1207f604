"""Complex arguments and results of calls, and what is computed on pairs as they lie; eager float64 judges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from torchipu.host.resting import resting

pytest.importorskip("torch._subclasses.complex_tensor")

Function = Callable[..., torch.Tensor]
SHAPES = [(1,), (3, 5), (8,), (7, 33), (129, 31), (600, 512), (2, 3, 4, 5)]
BINARY: dict[str, Function] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: torch.sub(x, y, alpha=2), "mul": lambda x, y: x * y,
    "conjugate_left": lambda x, y: x.conj() * y, "conjugate_right": lambda x, y: x * y.conj(),
    "conjugate_both": lambda x, y: x.conj() * y.conj(), "conjugate": lambda x, y: (x * y).conj().resolve_conj(),
    "mul_of_sum": lambda x, y: (x + y) * y, "sum_of_mul": lambda x, y: (x * y + x).sum(),
    "real_factor": lambda x, y: x * y.real, "row": lambda x, y: x * y[:1], "column": lambda x, y: x * y[..., :1],
}
UNARY: dict[str, Function] = {
    "neg": torch.neg, "square": torch.square, "halves": lambda x: x / 2, "sum": torch.sum, "mean": torch.mean,
    "sum_last": lambda x: x.sum(-1), "sum_first": lambda x: x.sum(0, keepdim=True), "mean_last": lambda x: x.mean(-1),
    "transposed": lambda x: x.transpose(0, -1).contiguous(), "flat": lambda x: x.reshape(-1) + 0,
    "reversed": lambda x: x.flip(-1), "columns": lambda x: -x[..., 1::2], "picked": lambda x: x.select(-1, 0) * 2,
    "more": lambda x: x.unsqueeze(-1).expand(*x.shape, 3) * 2, "parts": lambda x: torch.view_as_real(x) * 2,
}


def drawn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed + sum(shape)))


def wide(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def check(function: Function, given: list[torch.Tensor]) -> None:
    """Compare results, at the first call and at later ones, and gradients with those of double precision."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu", dynamic=False)
    exact = function(*map(wide, given))
    largest = max([1.0, *exact.abs().flatten().tolist()])
    with torch.no_grad():
        for _ in range(3):
            ours = compiled(*given)
            assert ours.dtype == function(*given).dtype
            assert ours.stride() == function(*given).stride()
            torch.testing.assert_close(wide(ours), exact, rtol=1e-5, atol=1e-5 * largest)
    trained = [value.clone().requires_grad_() for value in given]
    judged = [wide(value).requires_grad_() for value in given]
    loss = function(*judged)
    gradient = torch.randn_like(loss)
    expected = torch.autograd.grad(loss, judged, gradient)
    for _ in range(3):
        result = compiled(*trained)
        found = torch.autograd.grad(result, trained, gradient.to(result.dtype))
        for mine, its in zip(found, expected, strict=True):
            torch.testing.assert_close(wide(mine), its, rtol=1e-5, atol=2e-5 * max(1.0, float(its.abs().max())))


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_two_operands(name: str, shape: tuple[int, ...]) -> None:
    check(BINARY[name], [drawn(*shape), drawn(*shape, seed=1)])


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_one_operand(name: str, shape: tuple[int, ...]) -> None:
    check(UNARY[name], [drawn(*shape)])


@pytest.mark.parametrize("lies", ["transposed", "every_other", "conjugated", "offset", "expanded"])
@pytest.mark.parametrize("name", ["add", "mul", "conjugate_left"])
def test_arguments_that_lie_otherwise(name: str, lies: str) -> None:
    """After a call with row-major ones, which leaves one that is made for these."""
    x, y = drawn(33, 17), drawn(33, 17, seed=1)
    others = {
        "transposed": drawn(17, 33).t(), "every_other": drawn(33, 34)[:, ::2], "conjugated": drawn(33, 17).conj(),
        "offset": drawn(34, 17)[1:], "expanded": drawn(1, 17).expand(33, 17),
    }
    other = others[lies]
    torch._dynamo.reset()
    compiled = torch.compile(BINARY[name], backend="ipu", dynamic=False)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, y), BINARY[name](x, y))
        for _ in range(2):
            torch.testing.assert_close(compiled(other, y), BINARY[name](other, y))
            torch.testing.assert_close(compiled(x, other), BINARY[name](x, other))


def test_a_number_times_its_conjugate_is_real() -> None:
    z = drawn(1000)
    found = torch.compile(lambda z: z * z.conj(), backend="ipu")(z)
    assert torch.equal(found.imag, torch.zeros(1000))


@pytest.mark.parametrize("name", ["add", "mul", "conjugate_right"])
def test_what_is_not_finite(name: str) -> None:
    special = torch.tensor([0.0, -0.0, 1.5, torch.inf, -torch.inf, torch.nan])
    parts = torch.cartesian_prod(special, special, special, special)
    x, y = (torch.view_as_complex(parts[:, place : place + 2].contiguous()) for place in (0, 2))
    found = torch.view_as_real(torch.compile(BINARY[name], backend="ipu")(x, y))
    a, b, c, d = parts.unbind(-1)
    d = -d if name == "conjugate_right" else d
    expected = torch.stack((a + c, b + d) if name == "add" else (a * c - b * d, a * d + b * c), -1)
    assert torch.equal(found.nan_to_num(123.0, 1e30, -1e30), expected.nan_to_num(123.0, 1e30, -1e30))


@pytest.mark.parametrize("name", ["add", "mul", "sum_last", "square"])
def test_threads_change_no_bit(name: str) -> None:
    function = {**BINARY, **UNARY}[name]
    given = [drawn(301, 77), drawn(301, 77, seed=1)][: 1 + (name in BINARY)]
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch._dynamo.reset()
            found.append(torch.compile(function, backend="ipu")(*given))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, found[0]) for one in found)


def test_parts_of_an_argument_are_handed_back_and_saved() -> None:
    """An argument that is complex to the caller and pairs to who reads its parts."""
    def function(z: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        pairs = torch.view_as_real(z)
        return pairs, (pairs * w).sin(), z

    z, w = drawn(5, 7), torch.randn(5, 7, 2)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="ipu")
    for _ in range(3):
        x, y = z.clone().requires_grad_(), w.clone().requires_grad_()
        a, b = z.clone().requires_grad_(), w.clone().requires_grad_()
        ours, eager = compiled(x, y), function(a, b)
        for mine, its in zip(ours, eager, strict=True):
            torch.testing.assert_close(mine, its)
        found = torch.autograd.grad(ours[1].sum() + ours[0].sum(), (x, y))
        for mine, its in zip(found, torch.autograd.grad(eager[1].sum() + eager[0].sum(), (a, b)), strict=True):
            torch.testing.assert_close(mine, its)


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_that_change(dynamic: bool | None) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y: (x * y, x.sum(0), x + y), backend="ipu", dynamic=dynamic)
    for rows in (4, 9, 30, 4):
        for _ in range(2):
            x, y = drawn(rows, 6), drawn(rows, 6, seed=1)
            for mine, its in zip(compiled(x, y), (x * y, x.sum(0), x + y), strict=True):
                torch.testing.assert_close(mine, its)


def test_zeros_of_graphs_that_do_not_run_are_complex() -> None:
    x = drawn(3, 4)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x * x, torch.view_as_real(x) * 2), backend="ipu")
    for _ in range(2):
        with resting():
            found, parts = compiled(x)
        assert torch.equal(found, torch.zeros(3, 4, dtype=torch.complex64))
        assert torch.equal(parts, torch.zeros(3, 4, 2))
        torch.testing.assert_close(compiled(x)[0], x * x)


def test_images_of_complex_numbers_in_channels_last_order() -> None:
    x = drawn(2, 3, 4, 5)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: (x + x).contiguous(memory_format=torch.channels_last), backend="ipu")
    for _ in range(3):
        found = compiled(x)
        torch.testing.assert_close(found, x + x)
        assert found.is_contiguous(memory_format=torch.channels_last)
