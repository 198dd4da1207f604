"""Packed sequences whose lengths are known at capture: places of their elements, and layers run in spans of time.

A packed sequence holds for each time step the rows that still last, the longest first. Within a span in which none
ends, a recurrent layer sees a plain tensor; the states of rows that end stay behind.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from torchipu.poptorch.tracing.known_values import KnownValues

ARGUMENTS = 9
"""How many a recurrent layer is called with, of packed elements or of a plain tensor."""


def packed(known: KnownValues, function: Any, input: Tensor, lengths: Tensor, batch_first: bool) -> Any:
    """Return the elements of padded sequences in order of time, `[sum of lengths, *]`, and the rows of each time step.

    Args:
        known: Values known at capture.
        function: `torch._VF._pack_padded_sequence`, which says what is wrong with lengths.
        input: `[T, N, *]`, or with ``batch_first`` `[N, T, *]`.
        lengths: `[N]`, falling.
        batch_first: Which.
    """
    values = known.of(lengths)
    if values is None:
        return NotImplemented
    rows, steps = (input.shape[0], input.shape[1]) if batch_first else (input.shape[1], input.shape[0])
    shape = (rows, steps, 1) if batch_first else (steps, rows, 1)
    places, sizes = known.on_host(
        lambda: function(torch.arange(rows * steps).reshape(shape), values, batch_first)
    )
    taken = known.constant(places).flatten()
    elements = input.reshape(rows * steps, *input.shape[2:]).index_select(0, taken)
    return elements, known.keep_on_host(known.constant(sizes))


def padded(
    known: KnownValues, function: Any, data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: float,
    total_length: int,
) -> Any:
    """Return packed elements `[sum of lengths, *]` as padded sequences, and the lengths.

    Args:
        known: Values known at capture.
        function: `torch._VF._pad_packed_sequence`.
        data: The elements.
        batch_sizes: The rows of each time step.
        batch_first: Whether `[N, T, *]` is wanted, not `[T, N, *]`.
        padding_value: Value behind the ends.
        total_length: The number of time steps; 0 or less for that of the longest.
    """
    sizes = known.of(batch_sizes)
    if sizes is None:
        return NotImplemented
    count = data.shape[0]
    places, lengths = known.on_host(
        lambda: function(torch.arange(count).unsqueeze(1), sizes, batch_first, count, total_length)
    )
    extended = torch.cat([data, data.new_full((1, *data.shape[1:]), padding_value)])
    elements = extended.index_select(0, known.constant(places).flatten())
    return elements.reshape(*places.shape[:2], *data.shape[1:]), known.constant(lengths)


def recurrent(known: KnownValues, function: Any, *args: Any, **kwargs: Any) -> Any:
    """Return what a recurrent layer makes of packed elements: `[sum of lengths, H]` and the states at the ends.

    Args:
        known: Values known at capture.
        function: The layer.
        args: Elements, rows of each time step, states `[L, N, *]` and what else the layer takes; other arguments are
            those of a plain tensor.
        kwargs: None where a layer of torch.nn calls.
    """
    if kwargs or len(args) != ARGUMENTS:
        return NotImplemented
    sizes = known.of(args[1]) if isinstance(args[3], (list, tuple)) and isinstance(args[1], Tensor) else None
    runs_back = args[-1]
    if sizes is None or runs_back:
        return NotImplemented
    data, _, states, *rest = args
    held = tuple(states) if isinstance(states, (tuple, list)) else (states,)
    outputs, begin = [], 0
    for rows, span in itertools.groupby(known.listed(sizes)):
        steps = len(list(span))
        part = data[begin : begin + rows * steps].reshape(steps, rows, -1)
        begin += rows * steps
        last = tuple(state[:, :rows] for state in held)
        output, *ends = function(part, last if isinstance(states, (tuple, list)) else last[0], *rest, False)
        held = tuple(torch.cat([end, state[:, rows:]], 1) for end, state in zip(ends, held, strict=True))
        outputs.append(output.flatten(0, 1))
    return torch.cat(outputs), *held
