"""What all programs have together, for as long as one of them lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from torchipu import forks

T = TypeVar("T")


class Shared(Generic[T]):
    """One object for all who ask; it goes when the last of them does.

    Args:
        make: Makes it for the first.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: weakref.ref[T] | None = None
        self._lock = forks.lock()

    def get(self) -> T:
        """Return the object, which whoever asks keeps."""
        with self._lock:
            held = self._held() if self._held is not None else None
            if held is None:
                held = self._make()
                self._held = weakref.ref(held)
            return held
