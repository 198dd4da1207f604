"""Distributions whose methods look at values as they go: here they draw a number of times that is known, and choose."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Chi2, Dirichlet, Distribution, StudentT, VonMises, Wishart, constraints, wishart
from torch.distributions.multivariate_normal import _precision_to_scale_tril

from torchipu.capture.assertions import assert_
from torchipu.capture.process_wide import replaced, switched

ROUNDS = 24
"""Proposals for each draw of a von Mises distribution: at least 0.657 of a round are taken, and 1 in 1e11 is left."""
TRIES = 3
"""Draws in place of a singular matrix, as many as torch itself makes while it traces."""
_NO_SIZE = torch.Size()


@contextlib.contextmanager
def unbranched() -> Iterator[None]:
    """Let these distributions look at no values meanwhile."""
    with contextlib.ExitStack() as stack:
        for owner, name, ours in _METHODS:
            stack.enter_context(replaced(owner, name, ours))
        for owner, name, ours in _PROPERTIES:  # other threads see these too; the values are the same
            stack.enter_context(switched(owner, name, property(ours)))
        yield


def _wishart(
    self: Any, df: Tensor | float, covariance_matrix: Tensor | None = None, precision_matrix: Tensor | None = None,
    scale_tril: Tensor | None = None, validate_args: bool | None = None,
) -> None:
    """`Wishart.__init__`, whose look at the degrees of freedom is an assertion in the graph."""
    given = [matrix for matrix in (covariance_matrix, precision_matrix, scale_tril) if matrix is not None]
    if len(given) != 1:
        raise AssertionError(
            "Exactly one of covariance_matrix or precision_matrix or scale_tril may be specified."
        )
    matrix = given[0]
    if matrix.dim() < 2:
        raise ValueError("scale_tril must be at least two-dimensional, with optional leading batch dimensions")
    if not isinstance(df, Tensor):
        batch_shape = torch.Size(matrix.shape[:-2])
        self.df = torch.tensor(df, dtype=matrix.dtype, device=matrix.device)
    else:
        batch_shape = torch.broadcast_shapes(matrix.shape[:-2], df.shape)
        self.df = df.expand(batch_shape)
    event_shape = matrix.shape[-2:]
    size = event_shape[-1]
    assert_((self.df > size - 1).all(), f"Wishart: df must be greater than ndim - 1 = {size - 1}")
    expanded = matrix.expand((*batch_shape, -1, -1))
    if scale_tril is not None:
        self.scale_tril = expanded
        self._unbroadcasted_scale_tril = scale_tril
    elif covariance_matrix is not None:
        self.covariance_matrix = expanded
        self._unbroadcasted_scale_tril = torch.linalg.cholesky(covariance_matrix)
    else:
        self.precision_matrix = expanded
        self._unbroadcasted_scale_tril = _precision_to_scale_tril(precision_matrix)
    Distribution.__init__(self, batch_shape, event_shape, validate_args=validate_args)
    self._batch_dims = [-(place + 1) for place in range(len(batch_shape))]
    steps = torch.arange(size, dtype=matrix.dtype, device=matrix.device)
    self._dist_chi2 = Chi2(df=self.df.unsqueeze(-1) - steps.expand((*batch_shape, -1)))


def _wishart_rsample(self: Any, sample_shape: Any = _NO_SIZE, max_try_correction: int | None = None) -> Tensor:
    """`Wishart.rsample`: singular matrices are drawn anew a number of times."""
    drawn = _bartlett(self, sample_shape)
    for _ in range(TRIES if max_try_correction is None else max_try_correction):
        is_singular = ~constraints.positive_definite.check(drawn)
        drawn = torch.where(is_singular.unsqueeze(-1).unsqueeze(-1), _bartlett(self, sample_shape), drawn)
    return drawn


def _bartlett(self: Any, sample_shape: Any) -> Tensor:
    """Return the product of a triangular matrix of normal and chi values with itself."""
    chi = self._dist_chi2.rsample(torch.Size(sample_shape)).sqrt()
    diagonal = chi.clamp(min=torch.finfo(chi.dtype).eps).diag_embed()
    below = torch.randn(diagonal.shape, dtype=diagonal.dtype, device=diagonal.device).tril(-1)
    factor = self._unbroadcasted_scale_tril @ (diagonal + below)
    return factor @ factor.mT


def _wishart_mode(self: Any) -> Tensor:
    """`Wishart.mode`: there is none up to ndim + 1 degrees of freedom."""
    factor = self.df - self.covariance_matrix.shape[-1] - 1
    mode: Tensor = torch.where(factor > 0, factor, math.nan).view((*self._batch_shape, 1, 1)) * self.covariance_matrix
    return mode


def _digamma_of_several(x: Tensor, p: int) -> Tensor:
    """`torch.distributions.wishart._mvdigamma`, whose look at values is an assertion."""
    assert_((x > (p - 1) / 2).all(), "Wrong domain for multivariate digamma function.")
    steps = torch.arange(p, dtype=x.dtype, device=x.device)
    return torch.digamma(x.unsqueeze(-1) - steps.div(2).expand((*x.shape, -1))).sum(-1)


def _von_mises(self: Any, sample_shape: Any = _NO_SIZE) -> Tensor:
    """`VonMises.sample`, by the same rejections (Best and Fisher, 1979), all drawn at once; the first taken counts."""
    shape = self._extended_shape(sample_shape)
    concentration, proposal = self.concentration.detach(), self._proposal_r.to(self.loc.dtype).detach()
    first, second, third = torch.rand((3, ROUNDS, *shape), dtype=self.loc.dtype, device=self.loc.device).unbind()
    z = torch.cos(math.pi * first)
    f = (1 + proposal * z) / (proposal + z)
    c = concentration * (proposal - f)
    is_taken = (c * (2 - c) - second > 0) | ((c / second).log() + 1 - c >= 0)
    angles = (third - 0.5).sign() * f.clamp(-1, 1).acos()
    drawn = angles[ROUNDS - 1]
    for number in range(ROUNDS - 2, -1, -1):
        drawn = torch.where(is_taken[number], angles[number], drawn)
    loc = self.loc.detach()
    return (drawn + math.pi + loc) % (2 * math.pi) - math.pi


def _dirichlet_mode(self: Any) -> Tensor:
    """`Dirichlet.mode`: a corner where all concentrations are below 1."""
    above = (self.concentration - 1).clamp(min=0.0)
    mode = above / above.sum(-1, True)
    is_corner = (self.concentration < 1).all(dim=-1, keepdim=True)
    return torch.where(is_corner, F.one_hot(mode.argmax(dim=-1), above.shape[-1]).to(mode.dtype), mode)


def _student_variance(self: Any) -> Tensor:
    """`StudentT.variance`: infinite for up to 2 degrees of freedom, undefined for up to 1."""
    has_one = self.df > 2
    rest = torch.where(has_one, self.df - 2, 1.0)
    otherwise = torch.where(self.df > 1, math.inf, math.nan).to(self.df.dtype)
    return torch.where(has_one, self.scale.pow(2) * self.df / rest, otherwise)


def _is_positive_definite(self: Any, value: Tensor) -> Tensor:
    """``constraints.positive_definite``, which asks for factors also where matrices are not symmetric."""
    is_symmetric = constraints.symmetric.check(value)
    return is_symmetric & torch.linalg.cholesky_ex(value).info.eq(0)


_METHODS: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (Wishart, "__init__", _wishart), (Wishart, "rsample", _wishart_rsample), (VonMises, "sample", _von_mises),
    (wishart, "_mvdigamma", _digamma_of_several),
    (type(constraints.positive_definite), "check", _is_positive_definite),
)
_PROPERTIES: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
    (Dirichlet, "mode", _dirichlet_mode), (StudentT, "variance", _student_variance), (Wishart, "mode", _wishart_mode),
)

TRACED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    **{vars(owner)[name]: ours for owner, name, ours in _METHODS},
    **{vars(owner)[name].fget: ours for owner, name, ours in _PROPERTIES},
}
"""Methods that look at values, and what Dynamo traces."""
