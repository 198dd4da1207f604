"""Calls whose result has a shape that a tensor decides, where the values of that tensor are known at capture.

A mask, a count of repetitions or a length that is no input, parameter or buffer is a constant: what it picks is picked
by places, which are constants too, and the program's shapes are those of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from torchipu.poptorch.tracing.known_values import KnownValues
from torchipu.poptorch.tracing.packed_sequences import packed, padded, recurrent

MASKS = (torch.bool, torch.uint8)


def with_known_shape(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], known: KnownValues, values: Any,
) -> Any:
    """Return the result of a call whose shape known values decide, captured without them, or NotImplemented.

    Args:
        function: What was called.
        args: Its arguments.
        kwargs: Its keyword arguments.
        known: The values.
        values: What the call gives on the host, or `UNKNOWN`.
    """
    take = TAKEN.get(getattr(function, "__name__", ""))
    if take is None or "out" in kwargs:
        return NotImplemented
    if isinstance(values, Tensor) and known.all_of_host((args, kwargs)):
        return known.constant(values)  # nothing of it is on the device yet
    return take(known, function, *args, **kwargs)


def _item(known: KnownValues, function: Any, tensor: Any, index: Any, *value: Any) -> Any:
    if value and not (isinstance(value[0], Tensor) and value[0].numel() != 1):
        return NotImplemented  # a mask by which one number is written is applied as it is
    members = index if type(index) is tuple else (index,)
    places: list[Any] = []
    for member in members:
        places.extend(_places(known, member) or (member,))
    if len(places) == len(members) and all(map(lambda one, other: one is other, places, members)):
        return NotImplemented
    return function(tensor, tuple(places), *value)


def _places(known: KnownValues, mask: Any) -> list[Tensor]:
    """Return the places of a mask with known values, one tensor for each of its dimensions; none of anything else."""
    if isinstance(mask, list) and mask and all(isinstance(one, bool) for one in mask):
        return known.constants(known.on_host(lambda: torch.tensor(mask).nonzero(as_tuple=True)))
    if not isinstance(mask, Tensor) or mask.dtype not in MASKS or mask.dim() == 0:
        return []
    values = known.of(mask)
    return [] if values is None else known.constants(known.on_host(lambda: values.nonzero(as_tuple=True)))


def _masked_select(known: KnownValues, function: Any, input: Tensor, mask: Tensor) -> Any:
    values = known.of(mask)
    if values is None:
        return NotImplemented
    shape = torch.broadcast_shapes(input.shape, values.shape)
    places = known.on_host(lambda: values.expand(shape).nonzero(as_tuple=True))
    return input.expand(shape)[tuple(known.constants(places))]


def _repeat_interleave(
    known: KnownValues, function: Any, input: Tensor, repeats: Any = None, dim: int | None = None, *,
    output_size: int | None = None,
) -> Any:
    values = known.of(repeats) if isinstance(repeats, Tensor) else None
    if values is None:
        return NotImplemented
    along = input.flatten() if dim is None else input
    dim = 0 if dim is None else dim
    places = known.on_host(lambda: torch.repeat_interleave(torch.arange(along.shape[dim]), values))
    return along.index_select(dim, known.constant(places))


def _tensor_split(known: KnownValues, function: Any, input: Tensor, *args: Any, **kwargs: Any) -> Any:
    first = args[0] if args else kwargs.pop("tensor_indices_or_sections", kwargs.pop("indices_or_sections", None))
    values = known.of(first) if isinstance(first, Tensor) else None
    if values is None:
        return NotImplemented
    return function(input, known.listed(values), *args[1:], **kwargs)


TAKEN: Mapping[str, Callable[..., Any]] = {
    "__getitem__": _item, "__setitem__": _item, "masked_select": _masked_select,
    "repeat_interleave": _repeat_interleave,
    "tensor_split": _tensor_split, "_pack_padded_sequence": packed, "_pad_packed_sequence": padded,
    "lstm": recurrent, "gru": recurrent, "rnn_tanh": recurrent, "rnn_relu": recurrent,
}
"""What takes a call, by the name of the function; called with what is known and the function, then the arguments."""
