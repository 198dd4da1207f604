"""What a run raised: whether it is an error of ours, and its first line."""

from __future__ import annotations

from torchipu.errors import IpuError


def our_error(error: BaseException | None) -> IpuError | None:
    """Return the error of ours that an exception is, or that Dynamo or another exception came of; else None."""
    while error is not None:
        if isinstance(error, IpuError):
            return error
        error = getattr(error, "inner_exception", None) or error.__cause__
    return None


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's words that is not empty, or its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
