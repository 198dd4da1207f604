"""Operators that torch takes apart stay whole, or are put together otherwise, in what AOT autograd traces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch._C import DispatchKey

from torchipu.capture import circular_padding, global_pools, interpolation, product_gradients
from torchipu.capture.process_wide import implemented

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Let what this thread traces hold ops that we have, where torch would hold what it makes of them."""
    with (
        implemented(
            {**interpolation.implementations(), **circular_padding.IMPLEMENTED, **global_pools.IMPLEMENTED}, _KEYS,
        ),
        implemented(product_gradients.IMPLEMENTED, (DispatchKey.Autograd,)),
        implemented(interpolation.shapes_of_gradients(), (DispatchKey.Meta,)),
    ):
        yield
