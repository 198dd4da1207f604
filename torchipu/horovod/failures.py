"""What a failed exchange raises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class HorovodInternalError(RuntimeError):
    """An exchange failed: another process has ended, exchanges something else, or did not come in time."""


def named_failures(exchange: Callable[P, T]) -> Callable[P, T]:
    """Let what torch.distributed raises be a `HorovodInternalError`, which programs for Horovod expect.

    Args:
        exchange: Calls torch.distributed.
    """
    @functools.wraps(exchange)
    def called(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return exchange(*args, **kwargs)
        except HorovodInternalError:
            raise
        except RuntimeError as error:
            raise HorovodInternalError(f"an exchange with the other processes failed: {error}") from error

    return called
