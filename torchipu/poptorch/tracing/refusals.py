"""Shapes that torch refuses and for which PopTorch has an error of its own: its words, and then torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from torchipu.poptorch.poptorch_core import Error, createPoptorchError


def _expand(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    sizes = kwargs.get("size", args[1:])
    sizes = sizes[0] if len(sizes) == 1 and isinstance(sizes[0], (list, tuple)) else sizes
    if len(sizes) < args[0].dim():
        return "The desired shape passed to expand should have at least as many dimensions as the existing tensor."
    return "Can only expand dimensions of size 1."


def _cross(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return "Cross product of tensors that do not fit: both need the same rank and shape, and size 3 along the axis."


def _roll(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    shifts = kwargs.get("shifts", args[1] if len(args) > 1 else 0)
    dims = kwargs.get("dims", args[2] if len(args) > 2 else ())
    if isinstance(shifts, (list, tuple)) and len(shifts) > 1 and dims in ((), [], None):
        return "The 'shifts' argument of the roll op must be a scalar when 'dims' is not specified."
    return "The roll op takes as many shifts as dims, all within the rank of the tensor."


def _glu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    dim, rank = kwargs.get("dim", args[1] if len(args) > 1 else -1), args[0].dim()
    if not -rank <= dim < rank:
        return f"glu: the dimension {dim} is not in the legal range [{-rank}, {rank - 1}]."
    return f"glu: the size {args[0].shape[dim]} of dimension {dim} must be even."


def _feature_dropout(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    return "Feature dropout requires at least 2 dimensions."


_WORDS: dict[Any, Callable[[tuple[Any, ...], dict[str, Any]], str]] = {
    Tensor.expand: _expand, torch.cross: _cross, Tensor.cross: _cross, torch.linalg.cross: _cross, torch.roll: _roll,
    Tensor.roll: _roll, F.glu: _glu, torch.feature_dropout: _feature_dropout,
    torch.feature_alpha_dropout: _feature_dropout,
}


def in_words_of_poptorch(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception,
) -> Exception | None:
    """Return PopTorch's error for one of torch's, or None where PopTorch lets torch's through.

    Args:
        function: What refused.
        args: Its arguments.
        kwargs: Its keyword arguments.
        error: Torch's.
    """
    words = _WORDS.get(function)
    return None if words is None else createPoptorchError(f"{words(args, kwargs)} {error}")


def in_words_of_kernels(error: Exception, other: Exception | None) -> Exception | None:
    """Return PopTorch's error with what torch's kernels say behind its words, or None where it is no such error.

    Args:
        error: Of a capture, where torch words some refusals otherwise than its kernels do.
        other: That of the same call with values, or None where it has none.
    """
    said = error.__cause__
    if other is None or said is None or not isinstance(error, Error) or not error.message.endswith(f" {said}"):
        return None
    return createPoptorchError(f"{error.message.removesuffix(str(said))}{other}")
