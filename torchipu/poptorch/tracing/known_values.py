"""Tensors whose values are known while a model is captured: those of the host, and what is computed from them alone.

PopTorch computes on the host whatever has no operand on the device. Here such a call is made on the host too, beside
its capture, so that the values can be asked for: as numbers, as bounds of slices, as text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchipu.poptorch.operators.constants import ON_DEVICE, is_of_host, is_transformed, warn_of_write
from torchipu.poptorch.tracing.writes import written_by

UNKNOWN = object()
"""What a call gives whose operands are not all known."""
MOVES: dict[Any, int] = {
    torch.Tensor.to: 0, torch.Tensor.type_as: 0, torch.Tensor.new_tensor: 1, torch.as_tensor: 0, torch.asarray: 0,
}
"""Calls that bring a tensor of the host to the device where one is named, and the place of that tensor."""

MAKERS: frozenset[Any] = frozenset({
    torch.arange, torch.as_tensor, torch.asarray, torch.eye, torch.full, torch.linspace, torch.logspace, torch.ones,
    torch.range, torch.scalar_tensor, torch.tensor, torch.tril_indices, torch.triu_indices, torch.zeros,
})
"""Calls that make a tensor of numbers, the same each time."""
LARGEST_MADE = 4096
"""Elements of the largest tensor made of numbers whose values are kept: they are asked for as numbers and as bounds."""


class KnownValues:
    """The values of one run of a model's forward.

    Args:
        model: What runs.
        written: Memory of the host that an earlier run has written into, with what it held; added to.
        made: Tensors of the host that forward may use on the device; added to.
    """

    def __init__(
        self, model: torch.nn.Module, written: dict[int, tuple[torch.Tensor, torch.Tensor]],
        made: dict[int, torch.Tensor],
    ) -> None:
        self._model, self._written, self._made = model, written, made
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # kept, so that no id is given to another
        self._on_host: dict[int, torch.Tensor] = {}

    # ------------------------------------------------------------------ what is known
    def of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the values of a tensor, or None."""
        if is_of_host(tensor):
            return tensor
        found = self._values.get(id(tensor))
        return None if found is None else found[1]

    def all_of_host(self, arguments: Any) -> bool:
        """Whether every tensor among nested arguments is one of the host."""
        return all(map(is_of_host, tensors_within(arguments)))

    def keep_on_host(self, captured: torch.Tensor) -> torch.Tensor:
        """Let a constant of the program answer that it is on the host, where torch wants it, and return it."""
        self._on_host[id(captured)] = captured
        return captured

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a captured tensor answers so."""
        return id(tensor) in self._on_host

    def note(self, captured: Any, values: Any) -> None:
        """Note the values of what a captured call has given.

        Args:
            captured: The result.
            values: The same of the host, or `UNKNOWN`.
        """
        if values is not UNKNOWN:
            self._values.update(
                (id(one), (one, other))
                for one, other in zip(tensors_within(captured), tensors_within(values), strict=False)
                if isinstance(one, ON_DEVICE)
            )

    def numbers(self, value: Any, *, in_slices_only: bool = False) -> Any:
        """Return arguments with numbers for tensors of one element whose value is known.

        Args:
            value: Arguments, nested.
            in_slices_only: Only for the bounds of slices.
        """
        def number(tensor: torch.Tensor) -> Any:
            known = self.of(tensor)
            return tensor if known is None or known.numel() != 1 else _on_host(known.item)

        if in_slices_only and not isinstance(value, (slice, tuple)):
            return value
        if in_slices_only and isinstance(value, tuple):
            return tuple(self.numbers(one, in_slices_only=True) for one in value)
        return _mapped(value, number)

    def constant(self, values: torch.Tensor) -> torch.Tensor:
        """Return a constant of the program with values of the host, which are known."""
        own = _on_host(lambda: values.detach().clone(memory_format=torch.contiguous_format))  # a view has a base
        result = own.clone()  # captured
        self.note(result, own)
        return result

    def constants(self, values: Any) -> Any:
        """Return nested values with constants of the program for tensors."""
        return _mapped(values if type(values) in (tuple, list) else tuple(values), self.constant)

    def listed(self, values: torch.Tensor) -> Any:
        """Return the numbers of a tensor of the host."""
        return self.on_host(values.tolist)

    def on_host(self, call: Callable[[], Any]) -> Any:
        """Return what a call of tensors of the host gives, which is not captured."""
        return _on_host(call)

    # ------------------------------------------------------------------ calls
    def compute(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Make a call on the host, or return `UNKNOWN`; of an iterator the list of what it gives."""
        target = written_by(function, args, kwargs)
        name = getattr(function, "__name__", "")
        operands = [self.of(tensor) for tensor in tensors_within((args, kwargs))]
        if not operands:
            return _made_of_numbers(function, args, kwargs)
        if any(value is None for value in operands) or name == "__set__" or "_foreach_" in name:
            for tensor in tensors_within(args[:1]) if "_foreach_" in name and name.endswith("_") else (target,):
                self.forget(tensor)
            return UNKNOWN
        if target is not None:
            self._keep(target)
        given = _mapped((args, kwargs), self.of)
        values = _on_host(lambda: _without_chance(lambda: function(*given[0], **given[1])))
        if name == "__iter__" and values is not UNKNOWN:
            values = _on_host(lambda: list(values))
        if values is UNKNOWN:
            self.forget(target)
        return values

    def on_host_alone(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], values: Any,
    ) -> Any:
        """Return the result of a call of known values that needs no capture, or NotImplemented.

        Numbers and text need none, nor what lies in memory of the host: views of it, and writes into it.

        Args:
            function: What was called.
            args: Its arguments.
            kwargs: Its keyword arguments.
            values: What `compute` has given.
        """
        name = getattr(function, "__name__", "")
        target = written_by(function, args, kwargs)
        if target is not None:
            return values if is_of_host(target) else NotImplemented
        made = list(tensors_within(values))
        if not made:
            return NotImplemented if name == "__get__" else values
        hosts = {tensor.untyped_storage()._cdata for tensor in tensors_within((args, kwargs)) if is_of_host(tensor)}
        if not all(tensor.untyped_storage()._cdata in hosts for tensor in made):
            return NotImplemented
        self._made.update((id(tensor), tensor) for tensor in made)
        return iter(values) if name == "__iter__" else values

    def moved(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the values that a call brings from the host to the device, or `UNKNOWN` where it does nothing such.

        Args:
            function: One of `MOVES`, or another.
            args: Its arguments.
            kwargs: Its keyword arguments.
        """
        place = MOVES.get(function)
        if place is None or len(args) <= place or not is_of_host(args[place]):
            return UNKNOWN
        others = (*args[:place], *args[place + 1 :], *kwargs.values())
        is_named = any(isinstance(one, (torch.device, str, *ON_DEVICE)) for one in others)
        if not is_named:
            return UNKNOWN

        def plain(value: Any) -> Any:
            if isinstance(value, ON_DEVICE):
                return torch.empty(0, dtype=value.dtype)
            return "cpu" if isinstance(value, (torch.device, str)) else value  # "ipu" among them

        def make() -> Any:
            given = {key: plain(value) for key, value in kwargs.items()}
            return function(*(one if one is args[place] else plain(one) for one in args), **given).clone()

        return _on_host(make)

    def apart(self, args: Any, *, of_host: bool) -> Any:
        """Return arguments with copies for tensors of the host that forward writes: each use has the value of then.

        Args:
            args: Nested.
            of_host: Whether all that the call takes is known. What was computed from tensors of the host alone is
                captured, but still one of them: others may stand beside it.
        """
        is_mixed = of_host and any(isinstance(tensor, ON_DEVICE) for tensor in tensors_within(args))

        def copied(tensor: torch.Tensor) -> torch.Tensor:
            is_written = is_of_host(tensor) and tensor.untyped_storage()._cdata in self._written
            if not is_written and not (is_mixed and is_of_host(tensor)):
                return tensor
            twin: torch.Tensor = _on_host(lambda: tensor.detach().clone() if is_written else tensor.detach())
            self._made[id(twin)] = twin
            return twin

        return _mapped(args, copied) if self._written or is_mixed else args

    # ------------------------------------------------------------------ writes
    def _keep(self, target: torch.Tensor) -> None:
        """Keep what memory of the host holds before it is written into."""
        if not is_of_host(target):
            return
        memory = target.untyped_storage()._cdata
        if memory not in self._written:
            whole = target if target._base is None else target._base
            warn_of_write(self._model, target)
            self._written[memory] = (whole, _on_host(lambda: whole.detach().clone()))

    def forget(self, target: torch.Tensor | None) -> None:
        """Let nothing be known of a tensor that is written, nor of what shares its memory.

        Args:
            target: The tensor, if there is one.
        """
        known = None if target is None else self._values.get(id(target))
        if known is not None:
            memory = known[1].untyped_storage()._cdata
            self._values = {
                key: pair for key, pair in self._values.items() if pair[1].untyped_storage()._cdata != memory
            }


def _made_of_numbers(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return what a call makes of numbers alone, such as the size of a window, or `UNKNOWN`."""
    if function not in MAKERS:
        return UNKNOWN
    given = {name: value for name, value in kwargs.items() if name != "device"}

    def make() -> Any:
        if function(*args, **given, device="meta").numel() > LARGEST_MADE:
            return UNKNOWN
        made = function(*args, **given, device="cpu")
        return UNKNOWN if is_transformed(made) else made

    return _on_host(lambda: _without_chance(make))


def undo_writes(written: dict[int, tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Give memory of the host what it held before forward ran."""
    def undo() -> None:
        for whole, before in written.values():
            whole.detach().copy_(before)

    _on_host(undo)


def _on_host(call: Callable[[], Any]) -> Any:
    """Make a call outside of the capture."""
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.no_grad():
        return call()


def _without_chance(call: Callable[[], Any]) -> Any:
    """Return what a call gives, or `UNKNOWN` where it fails or draws random numbers: the device draws others."""
    before = torch.get_rng_state()
    values: Any = UNKNOWN
    with contextlib.suppress(Exception):  # the capture of the same call says what is wrong
        values = call()
    if torch.equal(torch.get_rng_state(), before):
        return values
    torch.set_rng_state(before)
    return UNKNOWN


def tensors_within(value: Any) -> Iterator[torch.Tensor]:
    """Yield tensors.

    Args:
        value: Arguments, nested; bounds of slices are among them.
    """
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for one in value:
            yield from tensors_within(one)
    elif isinstance(value, dict):
        yield from tensors_within(list(value.values()))
    elif isinstance(value, slice):
        yield from tensors_within((value.start, value.stop, value.step))


def _mapped(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Return nested arguments with other tensors."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(one, change) for one in value)
    if type(value) is dict:
        return {key: _mapped(one, change) for key, one in value.items()}
    if isinstance(value, slice):
        return slice(*(_mapped(one, change) for one in (value.start, value.stop, value.step)))
    return value
