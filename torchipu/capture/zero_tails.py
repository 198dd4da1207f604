"""What a graph transforms, and what becomes of it: zeros behind values, and results whose real part alone is read.

Convolutions by Fourier transforms pad what they transform to twice its length, and the gradient of a transform of real
values is that of half a spectrum behind which there are zeros.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

aten = torch.ops.aten

_ZEROS = frozenset({aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default})


def without_tail(node: Node, dim: int) -> Node:
    """Return the node whose result is the beginning of another's along a dimension, where the rest of that is zeros.

    Args:
        node: Makes a tensor.
        dim: Not negative.
    """
    begins = _written_before(node, dim)
    return node if begins is None else without_tail(begins, dim)


def first_taken(node: Node, dim: int) -> int | None:
    """Return how many of the first elements along a dimension a slice takes, and None where it takes others.

    Args:
        node: A slice.
        dim: Not negative.
    """
    given = _arguments(node)
    begins = given.get("dim", 0) % _dims(node) == dim and not given.get("start") and given.get("step", 1) == 1
    return int(node.meta["val"].shape[dim]) if begins and given.get("end") is not None else None


def real_values(node: Node) -> Node | None:
    """Return the node whose real values another one's are, as complex numbers of the same size; None for others."""
    given = node.args[0] if node.target is aten._to_copy.default else None
    if not isinstance(given, Node) or not node.meta["val"].is_complex():
        return None
    return given if given.meta["val"].dtype is node.meta["val"].real.dtype else None


def _written_before(node: Node, dim: int) -> Node | None:
    arguments = _arguments(node)
    if node.target is aten.constant_pad_nd.default:
        return node.args[0] if _pads_behind(node, arguments, dim) else None  # type: ignore[return-value]
    if node.target is aten.slice_backward.default:
        begins = arguments["start"] == 0 and arguments["step"] == 1 and arguments["dim"] % _dims(node) == dim
        return arguments["grad_output"] if begins else None
    if node.target is not aten.slice_scatter.default or arguments["self"].target not in _ZEROS:
        return None
    begins = not arguments.get("start") and arguments.get("step", 1) == 1
    if not begins or arguments.get("dim", 0) % _dims(node) != dim:
        return None
    written: Node = arguments["src"]
    if written.target is not aten.copy.default:
        return written
    copied = written.args[1]
    is_alike = isinstance(copied, Node) and all(
        getattr(copied.meta["val"], fact) == getattr(written.meta["val"], fact) for fact in ("shape", "dtype")
    )
    return copied if is_alike else written  # type: ignore[return-value]


def is_read_as_real(node: Node) -> bool:
    """Whether nothing reads the imaginary part of a complex result."""
    return all(user.target is aten.view_as_real.default and all(map(_takes_real, user.users)) for user in node.users)


def _takes_real(node: Node) -> bool:
    return node.target is aten.select.int and node.args[1] in (-1, _dims(node)) and bool(node.args[2] == 0)


def _arguments(node: Node) -> dict[str, Any]:
    """Return the arguments of a call that are given, by name."""
    names = node.target._schema.arguments if isinstance(node.target, torch._ops.OpOverload) else ()
    return dict(zip((argument.name for argument in names), node.args, strict=False)) | node.kwargs


def _dims(node: Node) -> int:
    return int(node.meta["val"].dim())


def _pads_behind(node: Node, arguments: dict[str, Any], dim: int) -> bool:
    """Whether a padding puts zeros behind one dimension, and does nothing else."""
    pads: list[int]
    pads, place = list(arguments["pad"]), 2 * (_dims(node) - 1 - dim) + 1
    if arguments.get("value", 0) or place >= len(pads) or pads[place] <= 0:
        return False
    return not any(pads[:place] + pads[place + 1 :])
