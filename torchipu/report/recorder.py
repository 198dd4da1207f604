"""Which programs were compiled while somebody wanted to know: the compiler tells, ``torchipu explain`` listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class ProfileLike(Protocol):
    """What a recorded profile must offer here."""

    def text(self) -> str:
        """Return the profile for people."""
        ...


_LISTENERS: list[list[ProfileLike]] = []


def record(profile: ProfileLike) -> None:
    """Note that a program was compiled; without a listener this does nothing."""
    for heard in _LISTENERS:
        heard.append(profile)


@contextmanager
def recording() -> Iterator[list[ProfileLike]]:
    """Return the list to which the profile of every program compiled meanwhile is added, in any thread."""
    heard: list[ProfileLike] = []
    _LISTENERS.append(heard)
    try:
        yield heard
    finally:
        # By identity: two empty lists are equal.
        _LISTENERS[:] = [listener for listener in _LISTENERS if listener is not heard]
