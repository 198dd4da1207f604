"""Distributions while a model is captured: their arguments have no values that could be validated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributions import Distribution


@contextlib.contextmanager
def unvalidated() -> Iterator[None]:
    """Validate no arguments of distributions meanwhile, and afterwards as before; Dynamo would leave them so."""
    validates = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(validates)
