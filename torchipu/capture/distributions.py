"""Distributions while a model is captured: their arguments have no values that could be validated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch.distributions import Distribution

from torchipu.capture.process_wide import switched


@contextlib.contextmanager
def unvalidated() -> Iterator[None]:
    """Validate no arguments of distributions meanwhile, and afterwards as before; Dynamo would leave them so."""
    with switched(Distribution, "_validate_args", False):
        yield
