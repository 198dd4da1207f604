"""Classifiers of sentences that look at the state of the last end of a sentence, such as BART's and T5's.

They pick the states of all ends by a mask, check on the host that all rows have as many, and take the last of each. A
program has no shapes that depend on values: it takes the last of each row at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from types import MethodType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchipu import poptorch

MARK = "_takes_last_ends"


def place_ends(model: torch.nn.Module) -> None:
    """Let a classifier with an encoder and a decoder take the last end of each row within a program.

    Args:
        model: Given a ``forward`` of its own, which `unplace_ends` takes away; other models stay as they are.
    """
    config = getattr(model, "config", None)
    kinds = [kind.__name__ for kind in type(model).__mro__]
    if getattr(config, "is_encoder_decoder", False) and any(k.endswith("ForSequenceClassification") for k in kinds):
        kind: Any = type(model)
        vars(model)["forward"] = MethodType(_forward_of(kind), model)


def unplace_ends(model: torch.nn.Module) -> None:
    """Undo `place_ends`.

    Args:
        model: The model.
    """
    if hasattr(vars(model).get("forward"), MARK):
        del vars(model)["forward"]


@functools.cache
def _forward_of(kind: Any) -> Callable[..., Any]:
    """Return the forward of a class, with the last ends in a program; its signature is the same."""
    @functools.wraps(kind.forward)
    def forward(model: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not poptorch.isRunningOnIpu():
            return kind.forward(model, *args, **kwargs)
        with _LastEnds():
            return kind.forward(model, *args, **kwargs)

    setattr(forward, MARK, True)
    return forward


class _LastEnds(TorchFunctionMode):
    """Takes for states `[N, T, H]` that a mask `[N, T]` picks those of the last place of each row, `[N, H]`."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(function, "__name__", "")
        if name in ("unique_consecutive", "_unique_consecutive"):  # of how many ends rows have: all as many
            return args[0][:1]
        if name == "__getitem__" and args[0].dim() == 3 and _is_mask(args[1], args[0].shape[:2]):
            states, mask = args[0], args[1][0]
            places = torch.arange(states.shape[1], device=states.device)
            last = torch.where(mask, places, -1).amax(1)  # a row without an end has no place to read
            return states.gather(1, last[:, None, None].expand(-1, 1, states.shape[2])).squeeze(1)
        return function(*args, **(kwargs or {}))


def _is_mask(index: Any, shape: torch.Size) -> bool:
    first = index[0] if isinstance(index, tuple) and len(index) == 2 and index[1] == slice(None) else None
    return isinstance(first, torch.Tensor) and first.dtype == torch.bool and first.shape == shape
