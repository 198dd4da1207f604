"""What the command lines of the examples have in common."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows the first line of a module's description, and the default of each flag."""
    return argparse.ArgumentParser(
        description=str(description).splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )


def positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    """Return a reader of numbers above zero."""

    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above zero")
        return value

    read.__name__ = f"{kind.__name__} above zero"  # argparse says so of what is no number
    return read
