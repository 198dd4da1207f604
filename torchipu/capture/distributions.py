"""Distributions while a model is captured: values are validated, or drawn within bounds, when the program runs."""

from __future__ import annotations

import contextlib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Geometric, constraints
from torch.distributions.utils import broadcast_all, lazy_property
from torch.nn import init

from torchipu.capture.assertions import assert_
from torchipu.capture.process_wide import replaced, switched

FILLS = "_no_grad_trunc_normal_"
"""The function of torch that draws such numbers."""


@contextlib.contextmanager
def unvalidated() -> Iterator[None]:
    """Validate no arguments meanwhile unless asked to, and afterwards as before; Dynamo would leave them so."""
    with switched(Distribution, "_validate_args", False):
        yield


@contextlib.contextmanager
def validated_when_run() -> Iterator[None]:
    """Let distributions that are asked to validate do so when the program runs, by assertions in the graph."""
    with contextlib.ExitStack() as stack:
        for method, ours in VALIDATED.items():
            owner = Geometric if method is Geometric.__init__ else Distribution
            stack.enter_context(replaced(owner, method.__name__, ours))
        yield


@contextlib.contextmanager
def truncated_at_once() -> Iterator[None]:
    """Let `torch.nn.init.trunc_normal_` draw each value once; torch may draw again what lies outside of the bounds."""
    with replaced(init, FILLS, _truncated_normal_) if hasattr(init, FILLS) else contextlib.nullcontext():
        yield


_NO_SIZE = torch.Size()


def _init(
    self: Any, batch_shape: Any = _NO_SIZE, event_shape: Any = _NO_SIZE, validate_args: bool | None = None,
) -> None:
    """`Distribution.__init__`, whose look at the values of parameters becomes assertions."""
    self._batch_shape = batch_shape
    self._event_shape = event_shape
    if validate_args is not None:
        self._validate_args = validate_args
    if self._validate_args:
        try:
            arg_constraints = self.arg_constraints
        except NotImplementedError:
            arg_constraints = {}
        for name, constraint in arg_constraints.items():
            if isinstance(constraint, constraints._Dependent):
                continue  # it cannot be checked
            if name not in self.__dict__ and _is_lazy(type(self), name):
                continue  # it is computed when it is first asked for
            _expect(constraint, getattr(self, name), f"parameter {name} of distribution {type(self).__name__}")


# Dynamo's own look at such a property leaves it one that has no value.
@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
def _is_lazy(kind: type, name: str) -> bool:
    return isinstance(getattr(kind, name), lazy_property)


def _validate_sample(self: Any, value: Tensor) -> None:
    """`Distribution._validate_sample`, whose look at values becomes an assertion."""
    if not isinstance(value, Tensor):
        raise ValueError("The value argument to log_prob must be a Tensor")
    shape, event_shape = value.shape, self._event_shape
    if shape[len(shape) - len(event_shape) :] != event_shape:
        raise ValueError(f"The right-most size of value must match event_shape: {shape} vs {event_shape}.")
    expected = self._batch_shape + event_shape
    for given, wanted in zip(reversed(shape), reversed(expected)):  # noqa: B905  # the longer one has batches more
        if given != 1 and wanted != 1 and given != wanted:
            raise ValueError(f"Value is not broadcastable with batch_shape+event_shape: {shape} vs {expected}.")
    try:
        support = self.support
    except NotImplementedError:
        return
    _expect(support, value, f"value argument to be within the support of distribution {type(self).__name__}")


def _expect(constraint: Any, value: Tensor, what: str) -> None:
    """Let the run end where values do not satisfy a constraint."""
    assert_(constraint.check(value).all(), f"Expected {what} to satisfy the constraint {_named(constraint)}")


def _named(constraint: Any) -> str:
    """Return the name of a constraint, with its bounds where these are numbers: what tensors hold is not known."""
    bounds = (getattr(constraint, "lower_bound", None), getattr(constraint, "upper_bound", None))
    has_tensors = any(isinstance(bound, Tensor) for bound in bounds)
    return type(constraint).__name__.lstrip("_") if has_tensors else repr(constraint)


def _geometric(self: Any, probs: Any = None, logits: Any = None, validate_args: bool | None = None) -> None:
    """`Geometric.__init__`, which has a look at values of its own."""
    if (probs is None) == (logits is None):
        raise ValueError("Either `probs` or `logits` must be specified, but not both.")
    if probs is not None:
        self.probs, = broadcast_all(probs)
    else:
        self.logits, = broadcast_all(logits)
    given = logits if probs is None else probs
    Distribution.__init__(
        self, _NO_SIZE if isinstance(given, numbers.Number) else given.size(), validate_args=validate_args,
    )
    if self._validate_args and probs is not None:
        assert_((self.probs > 0).all(), "Expected parameter probs of distribution Geometric to be positive")


VALIDATED: Mapping[Callable[..., Any], Callable[..., Any]] = {
    Distribution.__init__: _init, Distribution._validate_sample: _validate_sample, Geometric.__init__: _geometric,
}
"""Methods that look at the values of parameters and samples; and what is called or traced instead."""


def _truncated_normal_(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: Any = None,
) -> torch.Tensor:
    """Fill a tensor from a normal distribution between ``a`` and ``b``, by the inverse of its distribution function."""
    if std == 0:
        return tensor.fill_(min(max(mean, a), b))
    low, high = (a - mean) / std, (b - mean) / std
    side = -1 if low + high > 0 else 1  # of the tail in which probabilities are small numbers, not close to 1
    shares = [math.erfc(-bound / math.sqrt(2)) / 2 for bound in sorted((side * low, side * high))]
    with torch.no_grad():
        drawn = torch.empty_like(tensor, dtype=torch.float32).uniform_(*shares, generator=generator)
        return tensor.copy_(torch.special.ndtri(drawn).mul(side * std).add(mean).clamp(a, b))


DRAWN_AT_ONCE: Mapping[Callable[..., Any], Callable[..., Any]] = (
    {getattr(init, FILLS): _truncated_normal_} if hasattr(init, FILLS) else {}
)
"""What Dynamo traces where torch may draw again."""
