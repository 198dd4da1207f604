"""Writes into tensors that torch does not count, as through ``.data`` or numpy: a few elements show most of them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from torchipu._kernels.abi import Samples

_FRACTIONS = (0.0, 0.382, 0.618, 1.0)
"""Where in a tensor elements are looked at: what is written into a whole tensor is hardly the same in all of them."""


class Sampled:
    """A few elements of tensors, compared with what they were.

    Their memory stays while this does, so that no other tensor is taken for one of them by its address.

    Args:
        tensors: With memory of their own, laid out in any way.

    Attributes:
        samples: The elements, for whoever knows that the tensors lie where they lay.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._tensors = tensors
        with torch._C.DisableTorchFunctionSubclass():
            self._held = [tensor.detach() for tensor in tensors]
        self._places = list(map(Tensor.data_ptr, self._held))
        self.samples = Samples([
            (address, tensor.element_size(), number)
            for number, tensor in enumerate(self._held) for address in _addresses(tensor)
        ])

    def take(self, *, lie_there: bool = False) -> bool:
        """Keep what the elements are now; return whether the tensors lie where they lay, else nothing is kept.

        Args:
            lie_there: Whether the caller knows that they lie as they did: asking takes longer than all else.
        """
        if not lie_there and not self._lie_there():
            return False
        self.samples.take()
        return True

    def changed(self, *, lie_there: bool = False) -> list[int]:
        """Return the numbers of tensors of which an element is another; none where one lies elsewhere.

        Args:
            lie_there: As for `take`.
        """
        return self.samples.changed() if lie_there or self._lie_there() else []

    def _lie_there(self) -> bool:
        # A storage that was resized lies elsewhere, or nowhere, for what is held here too.
        places = list(map(Tensor.data_ptr, self._tensors))
        return places == self._places and list(map(Tensor.data_ptr, self._held)) == self._places


def _addresses(tensor: Tensor) -> Iterator[int]:
    """Yield where the elements of a tensor lie that are looked at."""
    begin, size, count = tensor.data_ptr(), tensor.element_size(), tensor.numel()
    if not count or not begin:
        return
    for place in sorted({int(fraction * (count - 1)) for fraction in _FRACTIONS}):
        yield begin + size * (place if tensor.is_contiguous() else _offset(tensor, place))


def _offset(tensor: Tensor, place: int) -> int:
    """Return how many elements behind the first one that of a row-major place lies."""
    offset = 0
    for extent, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        offset += place % extent * stride
        place //= extent
    return offset


def warn_of_unseen(weights: Sequence[str], done: str) -> None:
    """Warn of writes that torch did not count.

    Args:
        weights: Words for each weight that is another now, such as ``weight 'head.bias'``.
        done: What is done about it.
    """
    more = f" and {len(weights) - 1} more" if len(weights) > 1 else ""
    warnings.warn(
        f"torchipu: the {weights[0]}{more} was written in a way that torch does not count, as through .data or numpy; "
        f"{done}. Write under torch.no_grad() instead, as in weight.copy_(value), or call "
        "torch.autograd.graph.increment_version(weight) after the write: a few elements are compared, and one of the "
        "others would not have shown it", stacklevel=2,
    )
