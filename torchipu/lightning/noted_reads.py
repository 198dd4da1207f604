"""Stand-ins during a step for what its module holds: lists, dictionaries and classes that note what the step reads."""

from __future__ import annotations

import sys
import sysconfig
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT

TRACED = (FunctionalTensor, FakeTensor)
_LIBRARIES = (
    OUR_ROOT, TORCH_ROOT, "<frozen", sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"],
    sysconfig.get_paths()["platlib"],
)


_CLASS = object.__dict__["__class__"]


def users_line() -> str:
    """Return the file and line of the user's code that runs, for messages."""
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_LIBRARIES) and frame.f_back is not None:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class NotedList(list[Any]):
    """Stands for a list of a module during a step: what is left in it does not tell what was done to it.

    Attributes:
        read_at: Where the step has looked at what the list held before, or nothing.
        is_cut: Whether something was taken out of it, or put elsewhere than at its end.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.read_at = ""
        self.is_cut = self._is_own = False

    def _look(self) -> None:
        if not self._is_own and not self.read_at:
            self.read_at = users_line()

    def __len__(self) -> int:
        self._look()
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        self._look()
        return super().__iter__()

    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)
        if not isinstance(found, TRACED):
            self._look()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)
        self.is_cut = True
        self._is_own |= key == slice(None)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)
        self.is_cut = True
        self._is_own |= key == slice(None)

    def clear(self) -> None:
        super().clear()
        self.is_cut = self._is_own = True

    def insert(self, *args: Any) -> None:
        super().insert(*args)
        self.is_cut = True

    def pop(self, *args: Any) -> Any:
        self._look()
        self.is_cut = True
        return super().pop(*args)

    def remove(self, *args: Any) -> None:
        self._look()
        self.is_cut = True
        super().remove(*args)


class NotedDict(dict[Any, Any]):
    """Stands for a dictionary of a module during a step, and notes which keys it reads before it has written them.

    Attributes:
        is_cleared: Whether the step has emptied it: all that it holds is then the step's own.
    """

    def __init__(self, *args: Any) -> None:
        self._begin()
        super().__init__(*args)
        self._begin()  # an OrderedDict writes its items one by one

    def _begin(self) -> None:
        self.is_cleared = False
        self._looked: dict[Any, str] = {}
        self._own: set[Any] = set()
        self._own_when_all_was_read: set[Any] | None = None
        self._all_read_at = ""

    def read_at(self, key: Any) -> str:
        """Return where the step has looked at what was there before it wrote, or nothing."""
        found = self._looked.get(key, "")
        if not found and self._own_when_all_was_read is not None and key not in self._own_when_all_was_read:
            return self._all_read_at
        return found

    def _look(self, key: Any) -> None:
        if not self.is_cleared and key not in self._own and key not in self._looked:
            self._looked[key] = users_line()

    def _look_at_all(self) -> None:
        if self.is_cleared:
            return
        if self._own_when_all_was_read is None:
            self._own_when_all_was_read, self._all_read_at = set(self._own), users_line()
        else:
            self._own_when_all_was_read &= self._own

    # ------------------------------------------------------------------ reading
    def __getitem__(self, key: Any) -> Any:
        self._look(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._look(key)
        return super().__contains__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        self._look(key)
        return super().get(key, default)

    def __len__(self) -> int:
        self._look_at_all()
        return super().__len__()

    def __iter__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__iter__()

    def __reversed__(self) -> Iterator[Any]:
        self._look_at_all()
        return super().__reversed__()

    def keys(self) -> Any:
        self._look_at_all()
        return super().keys()

    def values(self) -> Any:
        self._look_at_all()
        return super().values()

    def items(self) -> Any:
        self._look_at_all()
        return super().items()

    def copy(self) -> Any:
        self._look_at_all()
        return super().copy()

    def __eq__(self, other: object) -> bool:
        self._look_at_all()
        return super().__eq__(other)

    def __or__(self, other: Any) -> Any:
        self._look_at_all()
        return super().__or__(other)

    def __ror__(self, other: Any) -> Any:
        self._look_at_all()
        return super().__ror__(other)

    # ------------------------------------------------------------------ writing
    def __setitem__(self, key: Any, value: Any) -> None:
        self._own.add(key)
        super().__setitem__(key, value)

    def __delitem__(self, key: Any) -> None:
        self._look(key)
        super().__delitem__(key)
        self._own.add(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        self._look(key)
        self._own.add(key)
        return super().setdefault(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self._look(key)
        self._own.add(key)
        return super().pop(key, *default)

    def popitem(self, *args: Any) -> Any:
        self._look_at_all()
        key, value = super().popitem(*args)
        self._own.add(key)
        return key, value

    def update(self, *args: Any, **kwargs: Any) -> None:
        items = dict(*args, **kwargs)
        self._own |= items.keys()
        super().update(items)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def clear(self) -> None:
        super().clear()
        self.is_cleared = True


class NotedDefaultDict(NotedDict, defaultdict[Any, Any]):
    """`NotedDict` that makes what is missing."""


class NotedOrderedDict(NotedDict, OrderedDict[Any, Any]):
    """`NotedDict` that can be put in another order."""


def noted(value: Any) -> NotedList | NotedDict | None:
    """Return what stands for a list or a dictionary during a step, or None for what else it may be."""
    if type(value) is list:
        return NotedList(value)
    if type(value) is dict:
        return NotedDict(value)
    if type(value) is defaultdict:
        return NotedDefaultDict(value.default_factory, value)
    return NotedOrderedDict(value) if type(value) is OrderedDict else None


def _flat(held: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    return list(held.values()), list(held)


pytree.register_pytree_node(NotedList, lambda held: (held.copy(), None), lambda items, _: list(items))
for _kind in (NotedDict, NotedDefaultDict, NotedOrderedDict):
    pytree.register_pytree_node(_kind, _flat, lambda values, keys: dict(zip(keys, values, strict=True)))


def is_carried(before: Any, now: Any) -> bool:
    """Whether both values are tensors or hold some, or are lists of which the later one has some of the earlier."""
    if isinstance(now, list) and isinstance(before, list):
        return has_some_of(now, before)
    kinds = (torch.Tensor, tuple)
    return isinstance(now, kinds) and isinstance(before, kinds) and has_tensors(now) and has_tensors(before)


def has_some_of(now: list[Any], before: list[Any]) -> bool:
    """Whether a list has tensors of another one."""
    left = {id(one) for one in list.copy(before) if isinstance(one, torch.Tensor)}
    return any(id(one) in left for one in list.copy(now))


def has_tensors(value: Any) -> bool:
    """Whether there are tensors in a structure."""
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


class NotedAttributes:
    """Notes which attributes of objects, there or not, a step reads before it has written them."""

    def __init__(self) -> None:
        self._read: dict[tuple[int, str], str] = {}
        self._written: set[tuple[int, str]] = set()
        self._watched: list[tuple[Any, type]] = []
        self._known: set[int] = set()
        self._watching: dict[type, type | None] = {}

    def state(self, owner: Any, name: str, was: Any, now: Any) -> tuple[bool, str]:
        """Return whether the next micro-batch may read what the last one leaves in an attribute, and where.

        Args:
            owner: The object, or None where nobody knows what is read.
            name: The attribute.
            was: What it was before the step; None too if it was not there.
            now: What the step leaves in it.
        """
        read_at = self._read.get((id(owner), name), "")
        if id(owner) not in self._known:
            return is_carried(was, now), ""
        is_read = bool(read_at) and (is_carried(was, now) or (was is None and has_tensors(now)))
        return is_read, read_at

    def watch(self, owner: Any) -> None:
        """Begin with an object whose class is the user's own; others do not keep what a step leaves."""
        kind: Any = type(owner)
        if id(owner) in self._known:
            return
        if kind not in self._watching:
            self._watching[kind] = self._watching_class(kind)
        watching = self._watching[kind]
        if watching is None:
            return
        try:
            _CLASS.__set__(owner, watching)
        except TypeError:  # whose layout is another
            return
        self._watched.append((owner, kind))
        self._known.add(id(owner))

    def _watching_class(self, kind: Any) -> type | None:
        module = sys.modules.get(kind.__module__)
        file = getattr(module, "__file__", None)
        if (file is not None and file.startswith(_LIBRARIES)) or kind.__module__ in sys.builtin_module_names:
            return None

        def note(self_: Any, name: str) -> None:
            key = (id(self_), name)
            if key not in self._written and key not in self._read:
                self._read[key] = users_line()

        def get(self_: Any, name: str) -> Any:
            note(self_, name)
            return kind.__getattribute__(self_, name)

        def put(self_: Any, name: str, value: Any) -> None:
            kind.__setattr__(self_, name, value)
            self._written.add((id(self_), name))

        members: dict[str, Any] = {
            "__getattribute__": get, "__setattr__": put, "__module__": kind.__module__,
            "__qualname__": kind.__qualname__, "__slots__": (),
        }
        if not issubclass(kind, torch.nn.Module):  # whose class others set, too
            members["__class__"] = property(lambda _: kind)  # which dataclasses compare
        try:
            watching: type = type(kind)(kind.__name__, (kind,), members)
        except Exception:  # a class that none can be derived from, for reasons of its own
            return None
        return watching

    def restore(self) -> None:
        """Give every object its own class again."""
        for owner, kind in reversed(self._watched):
            _CLASS.__set__(owner, kind)
        self._watched.clear()
