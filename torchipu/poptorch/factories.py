"""Tensors that a model makes while it is captured: they are the device's, also where no device is named."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.distributions import Distribution
from torch.overrides import TorchFunctionMode

from torchipu.poptorch._logging import logger

FACTORIES: frozenset[Any] = frozenset({
    torch.arange, torch.empty, torch.full, torch.full_like, torch.linspace, torch.logspace, torch.ones, torch.rand,
    torch.randint, torch.randn, torch.randperm, torch.range, torch.tensor, torch.zeros, torch.zeros_like,
})


@contextlib.contextmanager
def factories_seen(names: set[str]) -> Iterator[None]:
    """Say of calls that make a tensor without naming a device that it is made on the IPU.

    Arguments of distributions are not validated meanwhile, since there are no values to look at.

    Args:
        names: Functions of which it was said already; added to.
    """
    validates = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        with _Factories(names):
            yield
    finally:
        Distribution.set_default_validate_args(validates)


class _Factories(TorchFunctionMode):
    """Sees every call into torch."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if (function in FACTORIES or _is_normal_of_numbers(function, args, kwargs)) and kwargs.get("device") is None:
            self._say(function.__name__)
        return function(*args, **kwargs)

    def _say(self, name: str) -> None:
        if name not in self.names:
            self.names.add(name)
            logger.warning("No device set in torch.%s(): forcing to IPU", name)


def _is_normal_of_numbers(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return function is torch.normal and not any(isinstance(value, torch.Tensor) for value in (*args, *kwargs.values()))
