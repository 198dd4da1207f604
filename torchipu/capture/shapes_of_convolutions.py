"""How convolutions of any size lie: by the layout of their operands, whatever code eager PyTorch would choose."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor


def register() -> None:
    """Let torch choose the code of a convolution without a guard.

    On one thread eager PyTorch computes images of up to 20,480 elements by other code than larger ones, so that Dynamo
    would compile a network anew for each of its convolutions that a new size moves over that border, and after eight
    of these leave it to eager. Both lay a result out alike, which is all that a capture asks.
    """
    plain = torch._C._select_conv_backend
    if getattr(plain, "__module__", None) == __name__:
        return

    def chosen(images: Tensor, weight: Tensor, *args: Any, **kwargs: Any) -> Any:
        sizes = images.fake_mode.shape_env if isinstance(images, FakeTensor) else None
        if sizes is None or images.dim() > 4:  # of five dimensions the two kinds of code differ in layout
            return plain(images, weight, *args, **kwargs)
        with sizes.suppress_guards():
            return plain(images, weight, *args, **kwargs)

    torch._C._select_conv_backend = chosen
