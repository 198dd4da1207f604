"""Exchanges that are begun, and whose results are taken later: they are done when they begin."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from typing import Any

from torchipu.horovod import exchange

_pending: dict[int, Any] = {}
_handles = itertools.count(1)


def _later(value: Any) -> int:
    """Return a handle to the result of an exchange."""
    handle = next(_handles)  # of its own, whatever threads do
    _pending[handle] = value
    return handle


def _begun(whole: Callable[..., Any]) -> Callable[..., int]:
    """Return the form of an exchange that returns a handle.

    It takes what the other takes, in the same order, but for ``compression``, which Horovod's asynchronous forms lack.

    Args:
        whole: The exchange.
    """
    signature = inspect.signature(whole)
    taken = signature.replace(
        parameters=[parameter for parameter in signature.parameters.values() if parameter.name != "compression"],
        return_annotation="int",
    )

    name = f"{whole.__name__.removesuffix('_')}_async{'_' if whole.__name__.endswith('_') else ''}"

    @functools.wraps(whole)
    def begin(*args: Any, **kwargs: Any) -> int:
        return _later(whole(**taken.bind(*args, **kwargs).arguments))

    begin.__name__ = begin.__qualname__ = name
    begin.__module__ = __name__
    begin.__doc__ = f"Begin `{whole.__name__}`; `synchronize` gives its result."
    begin.__signature__ = taken  # type: ignore[attr-defined]
    return begin


allreduce_async = _begun(exchange.allreduce)
allreduce_async_ = _begun(exchange.allreduce_)
grouped_allreduce_async = _begun(exchange.grouped_allreduce)
grouped_allreduce_async_ = _begun(exchange.grouped_allreduce_)
reducescatter_async = _begun(exchange.reducescatter)
grouped_reducescatter_async = _begun(exchange.grouped_reducescatter)
allgather_async = _begun(exchange.allgather)
grouped_allgather_async = _begun(exchange.grouped_allgather)
alltoall_async = _begun(exchange.alltoall)
broadcast_async = _begun(exchange.broadcast)
broadcast_async_ = _begun(exchange.broadcast_)


def poll(handle: int) -> bool:
    """Return whether an exchange is done.

    Raises:
        ValueError: There is no such exchange.
    """
    _check_handle(handle)
    return True


def synchronize(handle: int) -> Any:
    """Wait for an exchange, and return its result.

    Args:
        handle: What has begun it returned; used once.

    Raises:
        ValueError: There is no such exchange.
    """
    _check_handle(handle)
    return _pending.pop(handle)


def _check_handle(handle: int) -> None:
    if handle not in _pending:
        raise ValueError(f"there is no exchange with the handle {handle}, or its result has been taken")
