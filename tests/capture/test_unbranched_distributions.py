"""Distributions whose methods look at values: one graph through every door, with eager's values in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Beta, Dirichlet, MultivariateNormal, StudentT, Uniform, VonMises, Wishart

from torchipu import poptorch

LOWER = torch.tensor([[1.0, 0.0, 0.0], [0.5, 1.5, 0.0], [-0.3, 0.2, 0.8]])
SPREAD = LOWER @ LOWER.T
DEGREES = torch.tensor([3.5, 6.0])
FORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "wishart": lambda df: Wishart(df, SPREAD.to(df)).log_prob(2 * SPREAD.to(df)),
    "precision": lambda df: Wishart(df, precision_matrix=SPREAD.to(df)).log_prob(SPREAD.to(df)),
    "lower": lambda df: Wishart(df, scale_tril=LOWER.to(df), validate_args=True).entropy(),
    "mode": lambda df: Wishart(df, SPREAD.to(df)).mode,
    "number": lambda df: Wishart(5, SPREAD.to(df)).variance * df.sum(),
    "corner": lambda df: Dirichlet(torch.stack([df / 10, df - 3, df * 0.1 + 0.2], -1)).mode,
    "beta": lambda df: Beta(df - 3, df.flip(0) / 4).mode,
    "student": lambda df: StudentT(torch.cat([df - 1, df - 2, df - 3]), scale=df.sum()).variance,
    "normal": lambda df: MultivariateNormal(df.new_zeros(3), df[0] * SPREAD.to(df), validate_args=True).log_prob(
        df.new_ones(3),
    ),
    "bounds": lambda df: Uniform(-df, df, validate_args=True).log_prob(df / 2),
}


def compiled(function: Callable[..., Any], *args: Tensor) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend="ipu", fullgraph=True)(*args)


def of_poptorch(function: Callable[..., Any], *args: Tensor) -> Any:
    return poptorch.inferenceModel(function)(*args)


@pytest.mark.parametrize("door", [compiled, of_poptorch])
@pytest.mark.parametrize("name", FORMS)
def test_values_and_gradients(name: str, door: Callable[..., Any]) -> None:
    df = DEGREES.clone().requires_grad_(door is compiled)
    judge = DEGREES.double().requires_grad_()
    found, expected = door(FORMS[name], df), FORMS[name](judge)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    if found.requires_grad:
        for value in (found, expected):
            torch.where(value.isfinite(), value, 0).sum().backward()
        torch.testing.assert_close(df.grad.double(), judge.grad, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("door", [compiled, of_poptorch])
def test_a_value_out_of_bounds_ends_the_run(door: Callable[..., Any]) -> None:
    with pytest.raises((RuntimeError, poptorch.Error), match="df must be greater than ndim - 1 = 2"):
        door(FORMS["wishart"], torch.tensor([1.5, 6.0]))
    words = "support of distribution Uniform to satisfy the constraint Interval"
    with pytest.raises((RuntimeError, poptorch.Error), match=words):
        door(lambda df: Uniform(-df, df, validate_args=True).log_prob(2 * df), DEGREES)


@pytest.mark.parametrize("door", [compiled, of_poptorch])
def test_wishart_matrices_have_the_mean_of_theirs_and_gradients(door: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    df = DEGREES.clone().requires_grad_(door is compiled)
    found = door(lambda df: Wishart(df, SPREAD).rsample((2000,)), df)
    assert found.shape == (2000, 2, 3, 3)
    assert torch.equal(found, found.mT)
    # The variance of an element is df (v_ij^2 + v_ii v_jj): five standard errors of the mean of 2,000.
    each = DEGREES.view(2, 1, 1)
    diagonal = SPREAD.diagonal()
    errors = (each * (SPREAD**2 + diagonal[:, None] * diagonal)).sqrt() / math.sqrt(2000)
    assert ((found.mean(0) - each * SPREAD).abs() < 5 * errors).all()
    if found.requires_grad:
        slope, = torch.autograd.grad(found.diagonal(dim1=-2, dim2=-1).mean(0).sum(), df)
        torch.testing.assert_close(slope, SPREAD.trace().expand(2), rtol=0.1, atol=0)  # of df times the trace


@pytest.mark.parametrize("door", [compiled, of_poptorch])
def test_von_mises_angles_have_the_moments_of_theirs(door: Callable[..., Any]) -> None:
    torch.manual_seed(0)
    concentration = torch.tensor([0.3, 4.0])
    found = door(lambda k: VonMises(torch.tensor([1.0, 3.0]), k).sample((4000,)), concentration)
    assert (found.abs() <= math.pi + 1e-5).all()
    ratio = torch.special.i1(concentration) / torch.special.i0(concentration)
    turned = found - torch.tensor([1.0, 3.0])
    assert ((turned.cos().mean(0) - ratio).abs() < 5 / math.sqrt(2 * 4000)).all()
    assert (turned.sin().mean(0).abs() < 5 / math.sqrt(2 * 4000)).all()
    assert turned.unique(dim=0).shape[0] > 3990  # each is drawn by itself
