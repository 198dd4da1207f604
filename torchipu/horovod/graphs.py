"""Exchanges within what is compiled: Dynamo goes around them, and a model that is captured has nothing to exchange."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from torchipu.horovod.processes import is_initialized, size

P = ParamSpec("P")
T = TypeVar("T")

_apart: dict[Any, Any] = {}


def outside_of_graphs(exchange: Callable[P, T]) -> Callable[P, T]:
    """Let an exchange be made by the host, between the graphs of a function that is compiled.

    What it then takes are tensors with values; other things are refused.

    Args:
        exchange: Whose first parameter is ``tensor``, ``tensors`` or something else.
    """
    first = next(iter(inspect.signature(exchange).parameters), "")

    @functools.wraps(exchange)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        if torch.compiler.is_dynamo_compiling():
            return _without_dynamo(exchange)(*args, **kwargs)
        if first in ("tensor", "tensors"):
            given: Any = args[0] if args else kwargs.get(first, ())
            _check(exchange.__name__, given if first == "tensors" and isinstance(given, (list, tuple)) else [given])
        return exchange(*args, **kwargs)

    return called


def _without_dynamo(exchange: Callable[P, T]) -> Callable[P, T]:
    # Not when this is imported: it imports Dynamo, which takes seconds, and most programs need none.
    if exchange not in _apart:
        _apart[exchange] = torch.compiler.disable(exchange)
    found: Callable[P, T] = _apart[exchange]
    return found


def _check(name: str, given: Iterable[Any]) -> None:
    for tensor in given:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"hvd.{name} takes tensors, got {type(tensor).__name__}: torch.tensor(...) makes one")
        if isinstance(tensor, (FakeTensor, FunctionalTensor)) and is_initialized() and size() > 1:
            raise ValueError(
                f"hvd.{name} was called within a model that is captured, where tensors have no values yet: exchange "
                "what the model returns. Gradients of all replicas and processes are combined by the program itself"
            )
