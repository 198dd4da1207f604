"""Trace points of the host, which ``pvti`` writes where ``PVTI_OPTIONS`` asks for them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Callable, Iterator
from typing import Any


class Channel:
    """A named row of trace points; without ``PVTI_OPTIONS`` all of it does nothing.

    Args:
        name: Name of the row.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pvti: Any = _pvti()
        self._channel = self._pvti.createTraceChannel(name) if self._pvti else None

    @property
    def is_active(self) -> bool:
        """Whether trace points are written."""
        return self._pvti is not None

    def instrument(self, obj: Any, *methods: str) -> Any:
        """Put a trace point around methods of an object.

        Args:
            obj: The object; changed in place.
            *methods: Names of its methods.

        Returns:
            The same object.
        """
        if self.is_active:
            for name in methods:
                # Past the module's __setattr__, which keeps methods from nothing but costs a look-up.
                object.__setattr__(obj, name, self._around(getattr(obj, name), name))
        return obj

    @contextlib.contextmanager
    def tracepoint(self, name: str) -> Iterator[None]:
        """Write a trace point from entry to exit.

        Args:
            name: Its label, after that of the channel; a whole one if it begins with ``poptorch.``.
        """
        if not self.is_active:
            yield
            return
        with self._pvti.Tracepoint(self._channel, name if name.startswith("poptorch.") else f"{self._name}.{name}"):
            yield

    def _around(self, method: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with self.tracepoint(name):
                return method(*args, **kwargs)

        return traced


def _pvti() -> Any:
    """Return the library, Graphcore's or this package's, or None where it is not asked for."""
    if not os.environ.get("PVTI_OPTIONS"):
        return None
    try:
        return importlib.import_module("pvti")
    except ImportError:  # where this package is on the path without its aliases
        return importlib.import_module("torchipu.pvti")
