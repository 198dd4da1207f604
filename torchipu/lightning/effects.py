"""What a step leaves behind in places that are no parts of its program, and how each micro-batch does it again."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

import torch
from torch.utils import _pytree as pytree

from torchipu.capture.reachable import Holder, refill
from torchipu.lightning.expressions import Number, Output, Surroundings, evaluated

Path = tuple[Any, ...]
"""Name of a module, then an attribute of it, then keys into containers."""


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of whether a step reads a place that it writes.

    Attributes:
        is_state: Whether the next micro-batch computes something else on the CPU, which reads what this one leaves.
        may_matter: Whether it may: the step has read the place, or nobody knows whether it has.
        read_at: Where it has.
    """

    is_state: bool = False
    may_matter: bool = False
    read_at: str = ""


UNREAD = Look()

PLAIN = (
    bool, int, float, complex, str, bytes, type(None), range, type, Enum, torch.Size, torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)
"""Values that nobody can change: one that a step leaves is the same for every micro-batch."""


class Effect:
    """What a step leaves at one place; those below are frozen data.

    Attributes:
        content: What it leaves there.
        look: Whether the step has read the place.
        extends: Whether a container grows by this.
        is_guarded: Whether the step is captured again where the content is another one.
        is_followed: Whether it is done for each micro-batch.
    """

    __slots__ = ()
    content: Any
    look: Look
    extends: bool
    is_guarded: bool
    is_followed: bool

    @property
    def key(self) -> Any:
        """Its place, which no other effect has."""
        raise NotImplementedError

    def held(self, hold: Callable[[Any], Any]) -> Self:
        """Return it with outputs in the places of tensors."""
        return self._changed(content=hold(self.content))

    def looked(self, **known: Any) -> Self:
        """Return it with more known of whether the step reads the place: attributes of `Look`."""
        return self._changed(look=replace(self.look, **known))

    def _changed(self, **changes: Any) -> Self:
        this: Any = self  # each kind is a dataclass
        changed: Self = replace(this, **changes)
        return changed

    def do(self, module: Any, at: Surroundings) -> None:
        """Leave there what a micro-batch has."""
        raise NotImplementedError


# ---------------------------------------------------------------------- in attributes of modules
@dataclass(frozen=True, slots=True)
class Written(Effect):
    """What is left in an attribute of a module, or in a container there.

    Attributes:
        path: Its place.
        content: What is there now.
        look: Whether the step has read what was there before.
    """

    path: Path
    content: Any = None
    look: Look = UNREAD
    extends = False
    is_guarded = False
    is_followed = True

    @property
    def key(self) -> Any:
        """Its place."""
        return "at", self.path


@dataclass(frozen=True, slots=True)
class Appended(Written):
    """Items behind the end of a list, which the next micro-batch would see where the step looks at it.

    Attributes:
        at: Of how many items the list must be for them to be appended; None for any number.
    """

    at: int | None = None
    extends = True

    def once(self, module: Any) -> Appended:
        """Return what is done only where the list is as long as it is now."""
        return replace(self, at=list.__len__(_resolved(module, self.path)))

    def anew(self) -> Refilled:
        """Return what fills the list anew with these items."""
        return Refilled(self.path, self.content, self.look)

    def do(self, module: Any, at: Surroundings) -> None:
        """Append what a micro-batch has."""
        held = _resolved(module, self.path)
        if self.at is None or len(held) == self.at:
            held.extend(evaluated(self.content, at))


@dataclass(frozen=True, slots=True)
class Assigned(Written):
    """Another value of an attribute, or of an item of a dict or list."""

    @property
    def is_guarded(self) -> bool:  # type: ignore[override]
        """Whether the step is captured again where the value is another one."""
        is_plain = isinstance(self.content, Number) or type(self.content) in (bool, int, float, str)
        is_number = isinstance(self.content, (int, float)) and not isinstance(self.content, bool)
        is_private = str(self.path[-1]).startswith("_") and not (is_number and self.path[0] == "")
        return len(self.path) == 2 and is_plain and not is_private

    def do(self, module: Any, at: Surroundings) -> None:
        """Assign what a micro-batch has."""
        *before, last = self.path
        value = evaluated(self.content, at)
        if len(before) == 1:
            setattr(module.get_submodule(before[0]), last, value)
        else:
            _resolved(module, tuple(before))[last] = value


@dataclass(frozen=True, slots=True)
class Refilled(Written):
    """All that is in a list or a dictionary that was emptied, or written anew from its beginning."""

    def do(self, module: Any, at: Surroundings) -> None:
        """Put in what a micro-batch has."""
        refill(_resolved(module, self.path), evaluated(self.content, at))


@dataclass(frozen=True, slots=True)
class Removed(Written):
    """A key that was taken out of a dictionary; it leaves nothing."""

    def do(self, module: Any, at: Surroundings) -> None:
        """Take it out, if it is there."""
        _resolved(module, self.path[:-1]).pop(self.path[-1], None)


def _resolved(module: Any, path: Path) -> Any:
    found = getattr(module.get_submodule(path[0]), path[1])
    for key in path[2:]:
        found = found[key]
    return found


# ---------------------------------------------------------------------- elsewhere
@dataclass(frozen=True, slots=True)
class Bound(Effect):
    """Another value of a global, of a variable of an enclosing function, or of an object's attribute.

    Attributes:
        holder: What has the name.
        name: The name.
        content: What it is bound to now.
        look: Whether the step has read what was there before.
        is_followed: Whether it is done for each micro-batch.
        was_there: Whether there was something before.
    """

    holder: Holder
    name: str
    content: Any
    look: Look = UNREAD
    is_followed: bool = True
    was_there: bool = True
    extends = False
    is_guarded = False

    @property
    def key(self) -> Any:
        """Its place."""
        return "name", self.told

    @property
    def told(self) -> str:
        """What messages call it."""
        return self.holder.told(self.name)

    def do(self, module: Any, at: Surroundings) -> None:
        """Bind it to what a micro-batch has."""
        self.holder.put(self.name, evaluated(self.content, at))


@dataclass(frozen=True, slots=True)
class Filled(Effect):
    """What is new in a list, a deque, a dictionary or a set that is not found through attributes of modules alone.

    Attributes:
        container: It.
        name: What messages call it.
        content: What is new at its end, or under keys; all of it, if it does not begin with what there was.
        is_anew: Whether that takes the place of all else.
        look: Whether the step has read what was there before.
        is_followed: Whether it is done for each micro-batch.
        at: As for `Appended`.
    """

    container: Any
    name: str
    content: Any
    is_anew: bool
    look: Look = UNREAD
    is_followed: bool = True
    at: int | None = None
    is_guarded = False

    @property
    def key(self) -> Any:
        """Its place."""
        return "in", id(self.container)

    @property
    def extends(self) -> bool:  # type: ignore[override]
        """Whether it grows by this."""
        return not self.is_anew and isinstance(self.container, (list, deque))

    @property
    def told(self) -> str:
        """What messages call it."""
        return f"{self.name}, a {type(self.container).__name__},"

    def once(self, module: Any) -> Filled:
        """Return what is done only where the container is as long as it is now."""
        return replace(self, at=len(self.container))

    def anew(self) -> Filled:
        """Return what fills the container anew with this."""
        return replace(self, is_anew=True)

    def do(self, module: Any, at: Surroundings) -> None:
        """Put in what a micro-batch has."""
        if self.at is not None and len(self.container) != self.at:
            return
        content = evaluated(self.content, at)
        if self.is_anew:
            refill(self.container, content)
        elif isinstance(self.container, dict):
            dict.update(self.container, content)  # a Counter's own adds
        elif isinstance(self.container, set):
            self.container.update(content)
        else:
            self.container.extend(content)


def is_data(value: Any) -> bool:
    """Whether a structure is of plain values and tensors alone."""
    kinds = (*PLAIN, torch.Tensor, Output)
    return all(
        all(map(is_data, leaf)) if isinstance(leaf, (set, frozenset)) else isinstance(leaf, kinds)
        for leaf in pytree.tree_leaves(value)
    )
