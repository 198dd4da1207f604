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
