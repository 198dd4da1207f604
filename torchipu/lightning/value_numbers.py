"""Numbers for the values of tensors: two runs of a step compute the same where they have the same numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from torchipu.lightning.effects import PLAIN
from torchipu.lightning.noted_reads import users_line

_BY_SIZE = frozenset({
    "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros", "new_ones", "new_full", "new_empty",
    "new_empty_strided",
})
"""Ops that look at the size and the type of their first tensor alone."""


class ValueNumbers(TorchDispatchMode):
    """Gives each value that ops compute a number: by the op and the numbers of what it is given.

    A tensor's number is that of what its memory holds, seen as the tensor lies in it; an op that writes into memory
    gives that another number.

    Attributes:
        done: The ops of a run, in order, by number; those between constants are left out.
        line: The user's line at which a run first does another op than was expected, or nothing.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.done: list[int] = []
        self.line = ""
        self._expected: Sequence[int] | None = None
        self._numbers: dict[Any, int] = {}
        self._constants: set[int] = set()
        self._content: dict[int, int] = {}
        self._named: dict[int, Any] = {}
        self._alive: list[Any] = []
        self._digests: dict[tuple[int, int], Any] = {}
        self._drawn = 0
        self._is_over = False

    # ------------------------------------------------------------------ runs
    def name(self, tensor: torch.Tensor, name: Any) -> None:
        """Let the memory of an input, a parameter or a buffer hold, whenever a run begins, the value of that name."""
        self._named[self._memory(tensor)] = name

    def begin(self, expected: Sequence[int] | None = None) -> None:
        """Begin a run: what earlier ones have computed, but for constants, are values of earlier runs now.

        Args:
            expected: What it may be expected to do, to find the first op that is another one.
        """
        self.done, self.line, self._expected, self._drawn, self._is_over = [], "", expected, 0, False
        for memory, number in self._content.items():
            if number not in self._constants:
                self._content[memory] = self._number(("of an earlier run", memory))
        for memory, name in self._named.items():
            self._content[memory] = self._number(("named", name))

    def stop(self) -> None:
        """End the list of ops of a run; values are numbered all the same."""
        self._is_over = True

    # ------------------------------------------------------------------ numbers
    def _number(self, key: Any, is_constant: bool = False) -> int:
        number = self._numbers.setdefault(key, len(self._numbers))
        if is_constant:
            self._constants.add(number)
        return number

    def is_constant(self, number: int) -> bool:
        """Whether a value is the same in every run."""
        return number in self._constants

    def of(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's value."""
        if not isinstance(tensor, FakeTensor):
            return self._of_real(tensor)
        memory = self._memory(tensor)
        content = self._content.get(memory)
        if content is None:  # nobody knows where it comes from
            content = self._content[memory] = self._number(("unknown", memory))
        view = ("view", content, tuple(tensor.shape), tensor.dtype, *_geometry(tensor))
        return self._number(view, content in self._constants)

    def _of_real(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor with values, which is a constant of the program."""
        key = (id(tensor), tensor._version)
        if key not in self._digests:
            self._alive.append(tensor)
            with _disable_current_modes(), torch.no_grad():
                plain = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
            self._digests[key] = hashlib.blake2b(plain.data).digest()
        return self._number(("real", tuple(tensor.shape), tensor.dtype, self._digests[key]), is_constant=True)

    def _memory(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        memory = storage._cdata
        if memory not in self._content:
            self._alive.append(storage)
        return memory

    # ------------------------------------------------------------------ ops
    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Do an op, and number what it gives."""
        kwargs = kwargs or {}
        given, spec = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
        name = getattr(function, "name", lambda: "")() if isinstance(function, OpOverload) else str(function)
        is_drawn = isinstance(function, OpOverload) and torch.Tag.nondeterministic_seeded in function.tags
        by_size = isinstance(function, OpOverload) and function.overloadpacket.__name__ in _BY_SIZE
        seen = [_sizes(leaf) if by_size and isinstance(leaf, torch.Tensor) else self._leaf(leaf) for leaf in given]
        is_constant = not is_drawn and (by_size or all(self.is_constant(self.of(tensor)) for tensor in tensors))
        key = (name, tuple(seen), str(spec), torch.is_grad_enabled(), self._drawn if is_drawn else -1)
        self._drawn += is_drawn
        op = self._number(("op", key), is_constant)
        result = function(*args, **kwargs)
        written = _written(function, args, kwargs)
        results = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        if not (results or written):  # it asks on which device a tensor is, and the like
            return result
        if not self._is_over and not (is_constant and all(self.is_constant(self.of(tensor)) for tensor in written)):
            self._note(op)
        for index, tensor in enumerate(written):
            self._hold(tensor, self._number(("written", op, index), is_constant))
        for index, tensor in enumerate(results):
            if isinstance(tensor, FakeTensor) and self._memory(tensor) not in self._content:
                self._hold(tensor, self._number(("result", op, index), is_constant))
        return result

    def _leaf(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return "tensor", self.of(leaf)
        return (type(leaf).__name__, leaf) if isinstance(leaf, PLAIN) else type(leaf).__name__

    def _hold(self, tensor: torch.Tensor, number: int) -> None:
        if isinstance(tensor, FakeTensor):
            self._content[self._memory(tensor)] = number

    def _note(self, op: int) -> None:
        place = len(self.done)
        self.done.append(op)
        if self._expected is not None and not self.line and self._expected[place:place + 1] != [op]:
            self.line = users_line()


def _geometry(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tuple(tensor.stride()), int(tensor.storage_offset())


def _sizes(tensor: torch.Tensor) -> tuple[Any, ...]:
    return "sizes", tuple(tensor.shape), tensor.dtype, *_geometry(tensor)


def _written(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an op writes into."""
    if not isinstance(function, OpOverload):
        return []
    places = [place for place in function._schema.arguments if place.alias_info and place.alias_info.is_write]
    if not places:
        return []
    names = [place.name for place in function._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    found = pytree.tree_leaves([given.get(place.name) for place in places])
    return [leaf for leaf in found if isinstance(leaf, torch.Tensor)]
