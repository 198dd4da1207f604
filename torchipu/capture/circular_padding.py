"""Circular padding is one op each way, where torch would fill a new tensor and then copy borders within it.

Without writes in place each of these is a copy of all. Where the op does not do, as for complex numbers and for sizes
that are not known, pieces are joined to one another, dimension by dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, library


def joined(self: Tensor, pad: Sequence[int]) -> Tensor:
    """Return a tensor with its last dimensions continued round; negative widths cut off.

    Args:
        self: What is padded.
        pad: Elements before and behind, of the last dimension first.
    """
    for place in range(len(pad) // 2):
        self = _joined(self, self.dim() - 1 - place, *pad[2 * place : 2 * place + 2])
    return self


def _joined(values: Tensor, dim: int, before: int, behind: int) -> Tensor:
    if before < 0 or behind < 0:
        values = values.narrow(dim, max(0, -before), values.shape[dim] + min(0, before) + min(0, behind))
    size, pieces = values.shape[dim], [values]
    if before > 0:
        pieces.insert(0, values.narrow(dim, size - before, before))
    if behind > 0:
        pieces.append(values.narrow(dim, 0, behind))
    return torch.cat(pieces, dim) if len(pieces) > 1 else values


@library.custom_op("ipu::circular_pad", mutates_args=(), schema="(Tensor self, int[] padding) -> Tensor")
def circular_pad(self: Tensor, padding: Sequence[int]) -> Tensor:
    """Return what :func:`joined` does, in new memory."""
    return joined(self, padding).clone(memory_format=torch.contiguous_format)


@library.custom_op(
    "ipu::circular_pad_backward", mutates_args=(),
    schema="(Tensor grad_output, int[] size, int[] padding) -> Tensor",
)
def circular_pad_backward(grad_output: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    """Return what the elements of a tensor of a size get of gradients of what :func:`joined` makes of it."""
    places = joined(torch.arange(torch.Size(size).numel()).view(*size), padding).flatten()
    sums = torch.zeros(torch.Size(size).numel(), dtype=torch.float64)
    return sums.index_add(0, places, grad_output.flatten().double()).view(*size).to(grad_output.dtype)


@circular_pad.register_fake
def _(self: Tensor, padding: Sequence[int]) -> Tensor:
    return self.new_empty(_padded_shape(self.shape, padding))


@circular_pad_backward.register_fake
def _(grad_output: Tensor, size: Sequence[int], padding: Sequence[int]) -> Tensor:
    return grad_output.new_empty(size)


def _padded_shape(size: Sequence[int], padding: Sequence[int]) -> list[int]:
    shape = list(size)
    for place in range(len(padding) // 2):
        shape[-1 - place] += padding[2 * place] + padding[2 * place + 1]
    return shape


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.size, ctx.padding = list(inputs[0].shape), list(inputs[1])


def _keep_padding(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.padding = list(inputs[2])


def _back(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    return torch.ops.ipu.circular_pad_backward(grad, ctx.size, ctx.padding), None


def _back_again(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return torch.ops.ipu.circular_pad(grad, ctx.padding), None, None


circular_pad.register_autograd(_back, setup_context=_keep)
circular_pad_backward.register_autograd(_back_again, setup_context=_keep_padding)


def padded(self: Tensor, pad: Sequence[int]) -> Tensor:
    """Return a padded tensor as one op where that serves it; see :func:`joined`."""
    is_symbolic = any(isinstance(number, torch.SymInt) for number in (*self.shape, *pad))
    is_transformed = torch._C._functorch.peek_interpreter_stack() is not None  # by vmap or jvp, which know no such op
    is_other = self.is_complex() or not any(width > 0 for width in pad) or _reaches_round(self, pad)
    if is_symbolic or is_transformed or is_other:
        return joined(self, pad)
    result: Tensor = torch.ops.ipu.circular_pad(self, pad)
    return result


def _reaches_round(self: Tensor, pad: Sequence[int]) -> bool:
    """Whether a width is more than there is left to take from, which is refused as it is joined."""
    for place in range(len(pad) // 2):
        before, behind = pad[2 * place : 2 * place + 2]
        if max(before, behind) > self.shape[-1 - place] + min(0, before) + min(0, behind):
            return True
    return False


IMPLEMENTED = {torch.ops.aten._pad_circular.default: padded}
"""What tracing is given instead of torch's own."""
