"""Sees every call of a captured model into torch, and has it made: captured, on the host, or refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torchipu.poptorch.operators.loss import LossTracker
from torchipu.poptorch.tracing.assigned_data import assigned
from torchipu.poptorch.tracing.devices import ANSWERS
from torchipu.poptorch.tracing.known_shapes import with_known_shape
from torchipu.poptorch.tracing.known_values import UNKNOWN, KnownValues, tensors_within
from torchipu.poptorch.tracing.limits import NEEDS_VALUES, Limits
from torchipu.poptorch.tracing.mixed_types import with_common_type
from torchipu.poptorch.tracing.refusals import in_words_of_poptorch
from torchipu.poptorch.tracing.slices import ITEMS, Slices
from torchipu.poptorch.tracing.substitutes import substituted
from torchipu.poptorch.tracing.writes import written_by

REFUSALS = (IndexError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""What torch raises for arguments that it does not take; of which kind depends on the kernel."""


class Calls(TorchFunctionMode):
    """Mixed types come together, dynamic slices are taken, limits kept, losses noted, known values computed.

    Args:
        tracker: Told of losses.
        known: The values of tensors of the host.
    """

    def __init__(self, tracker: LossTracker, known: KnownValues) -> None:
        super().__init__()
        self.tracker, self.known = tracker, known
        self.slices = Slices(known.of, known.forget)
        self.windows = self.slices.windows
        self.limits = Limits()

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if function in ANSWERS:
            is_on_host = bool(args) and self.known.is_on_host(args[0])
            with torch._C.DisableTorchFunction() if is_on_host else contextlib.nullcontext():
                return function(*args, **(kwargs or {}))
        args, kwargs = with_common_type(function, args, kwargs or {})
        if function in ITEMS:
            args = (args[0], self.known.numbers(args[1], in_slices_only=True), *args[2:])
        moved = self.known.moved(function, args, kwargs)
        if moved is not UNKNOWN:
            result = moved.clone()  # captured: a constant of the program
            self.known.note(result, moved)
            return result
        values = self.known.compute(function, args, kwargs)
        if values is not UNKNOWN:
            result = self.known.on_host_alone(function, args, kwargs, values)
            if result is not NotImplemented:
                return result
        args, kwargs = self.known.apart((args, kwargs), of_host=values is not UNKNOWN)
        self.windows.refresh(tensors_within((args, kwargs)))
        result = self._captured(function, args, kwargs, values)
        self.windows.push(tensors_within((args, kwargs)))
        is_iterator = function is torch.Tensor.__iter__
        result = list(result) if is_iterator else result
        self.known.note(result, values)
        self.limits.note(function, args, kwargs, result)
        self.slices.note(function, args, kwargs, result)
        self.tracker.note(function, args, kwargs, result)
        return iter(result) if is_iterator else result

    def _captured(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], values: Any,
    ) -> Any:
        result = self.slices.take(function, args, kwargs)
        if result is not NotImplemented:
            return result
        result = assigned(function, args, self.windows.holds)
        if result is not NotImplemented:
            return result
        self.limits.check(function, args, kwargs)
        result = with_known_shape(function, args, kwargs, self.known, values)
        if result is not NotImplemented:
            return result
        call = substituted(function)
        try:
            return call(*args, **kwargs)
        except NEEDS_VALUES as error:
            if isinstance(values, (torch.Tensor, tuple)) and written_by(function, args, kwargs) is None:
                return self.known.constant(values) if isinstance(values, torch.Tensor) else self.known.constants(values)
            numbers = self.known.numbers((args, kwargs))
            if _differ(numbers, (args, kwargs)):
                return call(*numbers[0], **numbers[1])
            explained = self.limits.explain(function, args, error)
            if explained is error:  # an error that is its own cause has no end
                raise
            raise explained from error
        except REFUSALS as error:
            reworded = in_words_of_poptorch(function, args, kwargs, error)
            if reworded is None:
                raise
            raise reworded from error


def _differ(one: Any, other: Any) -> bool:
    """Whether nested arguments differ in which are tensors."""
    count = torch.utils._pytree.tree_leaves
    return [type(leaf) for leaf in count(one)] != [type(leaf) for leaf in count(other)]
