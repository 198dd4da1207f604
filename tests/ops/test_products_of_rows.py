"""Gradients of products and of running products against eager float64: with zeros, along any dimension, and again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.ops.judge import check, judge
from tests.releases import GRADIENTS_WITHIN

PRODUCTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "of a row": lambda x: x.prod(-1), "of columns": lambda x: x.prod(0, keepdim=True), "of all": lambda x: x.prod(),
    "in the middle": lambda x: x.prod(1), "running": lambda x: x.cumprod(-1), "running down": lambda x: x.cumprod(0),
    "running in the middle": lambda x: x.cumprod(1),
}


def factors(*shape: int) -> torch.Tensor:
    """Return factors about one, some of them negative."""
    torch.manual_seed(len(shape))
    return (0.8 + 0.4 * torch.rand(shape)) * torch.where(torch.rand(shape) < 0.3, -1, 1)


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_gradients_are_those_of_eager_with_zeros_too(name: str, zeros: int) -> None:
    x = factors(13, 3, 70)
    for place in range(zeros):
        x[4 * place, :, 5 + 40 * place] = 0
        x[:, place, 3] = 0
    check(PRODUCTS[name], x.requires_grad_(), tolerance=1e-4)


@pytest.mark.parametrize("running", [True, False])
def test_halves_are_multiplied_in_float(running: bool) -> None:
    x = factors(5, 40).half().requires_grad_()
    check(lambda x: x.cumprod(1) if running else x.prod(1), x, tolerance=1e-2)


@pytest.mark.parametrize("running", [True, False])
def test_the_gradient_is_one_op_and_a_cast_before_it(running: bool) -> None:
    x = factors(9, 4).requires_grad_()
    ops = judge(lambda x: x.cumprod(0) if running else x.prod(0, dtype=torch.float32), x)
    assert [op.target for op in ops].count("ipu.product_gradient.default") == 1
    assert not any("cumsum" in op.target or "masked" in op.target for op in ops)


@GRADIENTS_WITHIN
@pytest.mark.parametrize("running", [True, False])
def test_a_gradient_within_the_function_has_one_itself(running: bool) -> None:
    def norm_of_gradient(x: torch.Tensor) -> torch.Tensor:
        products = x.cumprod(0) if running else x.prod(0)
        (gradient,) = torch.autograd.grad(products.sum(), x, create_graph=True)
        return gradient.square().sum()

    x = factors(5, 3)
    results = []
    for function, values in ((torch.compile(norm_of_gradient, backend="ipu"), x), (norm_of_gradient, x.double())):
        torch._dynamo.reset()
        values = values.clone().requires_grad_()
        results.append(torch.autograd.grad(function(values), values)[0].double())
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


def test_transforms_and_complex_factors_have_gradients_as_ever() -> None:
    x = factors(5, 3)
    for function in (lambda x: torch.func.vmap(torch.func.grad(torch.prod))(x),
                     lambda x: torch.func.jacrev(lambda row: row.cumprod(0))(x[0])):
        torch._dynamo.reset()
        found = torch.compile(function, backend="ipu")(x)
        torch.testing.assert_close(found.double(), function(x.double()), rtol=1e-5, atol=1e-6)
    turned = torch.complex(x, x.flip(0))
    results = []
    torch._dynamo.reset()
    compiled = torch.compile(torch.prod, backend="ipu")
    for function, values in ((compiled, turned), (torch.prod, turned.to(torch.cdouble))):
        values = values.clone().requires_grad_()
        results.append(torch.autograd.grad(function(values).abs(), values)[0].to(torch.cdouble))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("length", [1, 2, 5, 33, 70])
@pytest.mark.parametrize("dim", [0, 1])
def test_gradients_of_running_products_of_what_is_not_finite_are_those_of_eager(length: int, dim: int) -> None:
    drawn = torch.Generator().manual_seed(length)
    specials = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -0.5, 3.0])
    for each in range(6):  # the more, the fewer special factors: also rows that have a zero before an infinity, or none
        x, coming = (torch.randn(40, length, generator=drawn) for _ in range(2))
        for value, seldom in ((x, 1 + each), (coming, 9)):
            taken = torch.rand(value.shape, generator=drawn) < 1 / seldom
            value[taken] = specials[torch.randint(0, len(specials), (int(taken.sum()),), generator=drawn)]
        x, coming = (value.T.contiguous() if dim == 0 else value for value in (x, coming))
        found, exact = x.clone().requires_grad_(), x.double().requires_grad_()
        torch._dynamo.reset()
        ours = torch.autograd.grad(torch.compile(lambda x: x.cumprod(dim), backend="ipu")(found), found, coming)[0]
        wanted = torch.autograd.grad(exact.cumprod(dim), exact, coming.double())[0]
        torch.testing.assert_close(ours.double(), wanted, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.parametrize("running", [True, False])
def test_the_op_in_eager_mode_gives_what_its_kernel_gives(running: bool) -> None:
    x = factors(3, 7, 4)
    x[0, 2, 1] = x[1, 4, 0] = 0
    x.requires_grad_()
    products = x.cumprod(1) if running else x.prod(1, keepdim=True)
    coming = torch.randn(products.shape)
    wanted = torch.autograd.grad(products, x, coming)[0]
    found = torch.ops.ipu.product_gradient(coming, x.detach(), running)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
