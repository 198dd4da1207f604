"""``MultiConv``: convolutions that do not depend on each other, computed side by side; values stay as they are."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Self

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from torchipu.capture.block import Partials, SideBySide
from torchipu.poptorch.capturing import isRunningOnIpu
from torchipu.poptorch.enums import MultiConvPlanType
from torchipu.poptorch.operators.hints import Attribute, set_available_memory
from torchipu.poptorch.operators.placing import number_of_region
from torchipu.poptorch.poptorch_core import createPoptorchError

MULTI_CONV = "__multi_conv"
"""Attribute of the ops of a `MultiConv`: its number in the model, and its settings."""
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")

PARTIALS = {torch.float32: "float", torch.float16: "half"}


class MultiConv:
    """A context manager whose convolutions are one op on the device; its methods return it, to be chained."""

    _active: ClassVar[MultiConv | None] = None

    def __init__(self) -> None:
        self.settings: dict[str, Any] = {}
        self._counter: _Convolutions | None = None
        self._attribute: Attribute | None = None
        self._number = 0

    def availableMemoryProportions(self, value: float | Sequence[float]) -> Self:
        """Set which part of the tile memory each convolution may use for temporary values.

        Args:
            value: One for all, or one for each.
        """
        return self._note(availableMemoryProportions=value)

    def partialsTypes(self, value: torch.dtype | Sequence[torch.dtype]) -> Self:
        """Set the type in which each convolution is summed.

        Args:
            value: ``torch.float`` or ``torch.half``, one for all or one for each.

        Raises:
            ValueError: It is something else.
        """
        if any(dtype not in (torch.float32, torch.float16) for dtype in _each(value)):
            raise ValueError(f"Invalid partials types: {value}. Expected torch.float or torch.half, or a list of these")
        return self._note(partialsTypes=value)

    def enableConvDithering(self, value: bool | Sequence[bool]) -> Self:
        """Begin each convolution on another tile.

        Args:
            value: Whether to, one for all or one for each.

        Raises:
            ValueError: It is no bool.
        """
        if not all(isinstance(dither, bool) for dither in _each(value)):
            raise ValueError(f"Invalid conv dithering values: {value}. Expected a bool or a list of bools")
        return self._note(enableConvDithering=value)

    def planType(self, value: MultiConvPlanType) -> Self:
        """Set whether convolutions run side by side or one after another.

        Args:
            value: Which.
        """
        if not isinstance(value, MultiConvPlanType):
            raise AssertionError("Invalid plan type!")
        return self._note(planType=value)

    def perConvReservedTiles(self, value: int) -> Self:
        """Set how many tiles each convolution has at least.

        Args:
            value: The number.
        """
        if not isinstance(value, int):
            raise AssertionError(f"perConvReservedTiles takes an int, not {type(value)}")
        return self._note(perConvReservedTiles=value)

    def cycleBackOff(self, value: float) -> Self:
        """Set by how much a convolution may be slower to leave tiles to the others; taken and checked.

        Args:
            value: The factor.
        """
        if not isinstance(value, (int, float)):
            raise AssertionError(f"cycleBackOff takes a float, not {type(value)}")
        return self._note(cycleBackOff=float(value))

    def __enter__(self) -> Self:
        if MultiConv._active is not None:
            raise createPoptorchError("Nested poptorch.MultiConv is not supported.")
        MultiConv._active = self
        if isRunningOnIpu():
            self._number = number_of_region()
            self._attribute = Attribute(**{MULTI_CONV: {"number": self._number, **self.settings}})
            self._attribute.__enter__()
            self._counter = _Convolutions(self._number, self.settings)
            self._counter.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: Any) -> None:
        MultiConv._active = None
        counter, self._counter = self._counter, None
        if counter is None:
            return
        counter.__exit__(kind, *error)
        if self._attribute is not None:
            self._attribute.__exit__(None, None, None)
        if kind is not None:
            return
        if counter.count == 0:
            raise createPoptorchError("Unexpected end_multi_conv. There is no convolution in the poptorch.MultiConv.")
        for name, value in self.settings.items():
            if isinstance(value, (list, tuple)) and len(value) != counter.count:
                raise createPoptorchError(
                    f"poptorch.MultiConv: {name} has {len(value)} values for {counter.count} convolutions"
                )

    def _note(self, **settings: Any) -> Self:
        self.settings.update(settings)
        return self


def _each(value: Any) -> Sequence[Any]:
    """Return the values that a setting has, one or several."""
    return value if isinstance(value, (list, tuple)) else [value]


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


class _Convolutions(TorchFunctionMode):
    """Counts the convolutions that run, and tells each the type of its partials, its memory and its neighbours.

    One that depends on another is refused.

    Args:
        number: Of the `MultiConv` in the model.
        settings: Its settings: each one value for all, or one for each.
    """

    def __init__(self, number: int, settings: dict[str, Any]) -> None:
        super().__init__()
        self.count = 0
        self.number, self.settings = number, settings
        # By its id, what a convolution has made or follows from that, held so that no other tensor has that id.
        self._follows: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        follows = any(id(given) in self._follows for given in _tensors((args, kwargs)))
        if getattr(function, "__name__", "") not in CONVOLUTIONS:
            result = function(*args, **(kwargs or {}))
            return self._followed(result, args) if follows else result
        if follows:
            raise createPoptorchError(
                f"poptorch.MultiConv: its convolution {self.count + 1} depends on one before it, but convolutions of "
                "one MultiConv run side by side. Put it behind the block, or into another one."
            )
        dtype, memory = self._own("partialsTypes"), self._own("availableMemoryProportions")
        self.count += 1
        with contextlib.ExitStack() as annotations:
            if dtype is not None:
                annotations.enter_context(Partials(PARTIALS[dtype]))
            if self.settings.get("planType", MultiConvPlanType.Parallel) == MultiConvPlanType.Parallel:
                annotations.enter_context(SideBySide(self.number, self.settings.get("perConvReservedTiles", 1)))
            result = function(*args, **(kwargs or {}))
        return self._followed(result if memory is None else set_available_memory(result, memory), ())

    def _followed(self, result: Any, written: tuple[Any, ...]) -> Any:
        """Note that a result follows from a convolution, and return it; without one, what was written into does."""
        for tensor in _tensors(written[:1] if result is None else result):
            self._follows[id(tensor)] = tensor
        return result

    def _own(self, name: str) -> Any:
        """Return the value of a setting for the next convolution."""
        values = _each(self.settings.get(name))
        return values[min(self.count, len(values) - 1)] if values else None
