"""Operators that torch takes apart stay whole, or are put together otherwise, in what AOT autograd traces."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._C import DispatchKey

from torchipu.capture import circular_padding, global_pools, interpolation, product_gradients
from torchipu.capture.process_wide import implemented

_KEYS = (DispatchKey.CompositeImplicitAutograd, DispatchKey.Autograd)
_SHRINKING = dict.fromkeys((torch.ops.aten.hardshrink.default, torch.ops.aten.softshrink.default))
"""Torch's own in C++, whose gradients are ops too: in Python each is a choice between what several others make."""


@contextlib.contextmanager
def whole() -> Iterator[None]:
    """Let what this thread traces hold ops that we have, where torch would hold what it makes of them."""
    with (
        implemented(
            {**interpolation.implementations(), **circular_padding.IMPLEMENTED, **global_pools.IMPLEMENTED}, _KEYS,
        ),
        implemented({**product_gradients.IMPLEMENTED, **_SHRINKING}, (DispatchKey.Autograd,)),
        implemented(
            {**interpolation.shapes_of_gradients(), **interpolation.shapes_of_nothing()}, (DispatchKey.Meta,),
        ),
    ):
        yield
