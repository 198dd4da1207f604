"""How tensors of the user's lie, asked before each call whether that is so still."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch._C._dynamo.guards import TensorGuards

_SHAPE, _DTYPE = Tensor.shape.__get__, Tensor.dtype.__get__  # type: ignore[attr-defined]


class Laid:
    """Where tensors lie and how: while that holds, the same memory holds the same of them.

    Shapes and types that Python is told of are new objects each time, most of what asking takes. Torch compares what
    is left within itself, as it does before each call of a compiled function.

    Args:
        tensors: Of the CPU, with memory of their own or of others.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._places = list(map(Tensor.data_ptr, tensors))
        self._found = _described(tensors)
        self._guards = _guards_of(tensors)

    def holds(self, tensors: Sequence[Tensor]) -> bool:
        """Return whether these tensors, as many or not, lie where and as the others did."""
        if list(map(Tensor.data_ptr, tensors)) != self._places:
            return False
        if self._guards.check(*tensors):
            return True
        if _described(tensors) != self._found:
            return False
        # Guards see more than how tensors lie: who asks for gradients, the mode that torch is in.
        self._guards = _guards_of(tensors)
        return True


def _described(tensors: Sequence[Tensor]) -> tuple[list[object], ...]:
    """Return strides, shapes and types of tensors, and whether torch negates them on reading."""
    return (
        list(map(Tensor.stride, tensors)), list(map(_SHAPE, tensors)), list(map(_DTYPE, tensors)),
        list(map(Tensor.is_neg, tensors)),
    )


def _guards_of(tensors: Sequence[Tensor]) -> TensorGuards:
    sizes: list[Any] = [list(tensor.shape) for tensor in tensors]
    strides: list[Any] = [list(tensor.stride()) for tensor in tensors]
    return TensorGuards(*tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides)
