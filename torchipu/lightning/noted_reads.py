"""Stand-ins during a step for what its module holds: lists, dictionaries and classes that note what the step reads."""

from __future__ import annotations

import functools
import sys
import sysconfig
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
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


class _Noted:
    """What stand-ins for lists, deques and sets share.

    Attributes:
        read_at: Where the step has looked at what was there before, or nothing.
        is_cut: Whether something was taken out of it, or put elsewhere than at its end.
        is_own: Whether the step has emptied it: all that it holds is then the step's own.
    """

    read_at = ""
    is_cut = is_own = False

    def _look(self) -> None:
        if not self.is_own and not self.read_at:
            self.read_at = users_line()

    def _take(self) -> None:
        self._look()
        self.is_cut = True

    def clear(self) -> None:
        """Take all out: what is there then is the step's own."""
        super().clear()  # type: ignore[misc]
        self.is_cut = self.is_own = True


def _doing(plain: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        note(self)
        return plain(self, *args, **kwargs)

    return method


def _noting(reads: str, takes: str) -> Callable[[type], type]:
    """Let a class note calls of methods.

    Args:
        reads: Names of those that look at what is there.
        takes: Names of those that look at it and take something out, or put it elsewhere than at the end.
    """
    def decorated(kind: Any) -> Any:
        for names, note in ((reads, _Noted._look), (takes, _Noted._take)):
            for name in names.split():
                setattr(kind, name, _doing(getattr(kind, name), note))
        return kind

    return decorated


_COMPARING = "__eq__ __ne__ __lt__ __le__ __gt__ __ge__"
_OF_SEQUENCES = f"__len__ __iter__ __reversed__ __contains__ __add__ __mul__ __rmul__ index count copy {_COMPARING}"
_OF_SETS = (
    f"__len__ __iter__ __contains__ __or__ __ror__ __and__ __rand__ __sub__ __rsub__ __xor__ __rxor__ isdisjoint "
    f"issubset issuperset union intersection difference symmetric_difference copy {_COMPARING}"
)


class _NotedSequence(_Noted):
    def __getitem__(self, key: Any) -> Any:
        found = super().__getitem__(key)  # type: ignore[misc]
        is_from_end = isinstance(key, int) and key < 0
        if not (is_from_end and isinstance(found, TRACED)):  # which the step may have put there itself
            self._look()
        return found

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(key, value)  # type: ignore[misc]
        self.is_cut = True
        self.is_own |= key == slice(None)

    def __delitem__(self, key: Any) -> None:
        super().__delitem__(key)  # type: ignore[misc]
        self.is_cut = True
        self.is_own |= key == slice(None)

    def insert(self, *args: Any) -> None:
        super().insert(*args)  # type: ignore[misc]
        self.is_cut = True


@_noting(_OF_SEQUENCES, "pop remove sort reverse __imul__")
class NotedList(_NotedSequence, list[Any]):
    """Stands for a list during a step: what is left in it does not tell what was done to it."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._look()
        return list, (list.copy(self),)


@_noting(_OF_SEQUENCES, "pop popleft remove reverse rotate __imul__")
class NotedDeque(_NotedSequence, deque[Any]):
    """Stands for a deque during a step."""

    def appendleft(self, item: Any) -> None:
        super().appendleft(item)
        self.is_cut = True

    def extendleft(self, items: Any) -> None:
        super().extendleft(items)
        self.is_cut = True

    def copy(self) -> Any:
        return deque(deque.__iter__(self), self.maxlen)

    def __add__(self, other: Any) -> Any:
        return self.copy() + other

    def __mul__(self, times: Any) -> Any:
        return self.copy() * times

    __rmul__ = __mul__
    __copy__ = None  # type: ignore[assignment]  # that of deque makes another of the stand-in's class

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._look()
        return deque, (list(deque.__iter__(self)), self.maxlen)


@_noting(
    _OF_SETS, "pop remove discard __isub__ __iand__ __ixor__ difference_update intersection_update "
    "symmetric_difference_update",
)
class NotedSet(_Noted, set[Any]):
    """Stands for a set during a step."""

    def copy(self) -> Any:
        return set(set.__iter__(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._look()
        return set, (list(set.__iter__(self)),)


class NotedDict(dict[Any, Any]):
    """Stands for a dictionary of a module during a step, and notes which keys it reads before it has written them.

    Attributes:
        is_own: Whether the step has emptied it.
    """

    def __init__(self, *args: Any) -> None:
        self._begin()
        super().__init__(*args)
        self._begin()  # an OrderedDict writes its items one by one

    def _begin(self) -> None:
        self.is_own = False
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
        if not self.is_own and key not in self._own and key not in self._looked:
            self._looked[key] = users_line()

    def _look_at_all(self) -> None:
        if self.is_own:
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
        self.is_own = True

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._look_at_all()
        return dict, (dict(dict.items(self)),)


class NotedDefaultDict(NotedDict, defaultdict[Any, Any]):
    """`NotedDict` that makes what is missing."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._look_at_all()
        return defaultdict, (self.default_factory, dict(dict.items(self)))

    __copy__ = None  # type: ignore[assignment]  # that of defaultdict makes another of the stand-in's class


class NotedOrderedDict(NotedDict, OrderedDict[Any, Any]):
    """`NotedDict` that can be put in another order."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._look_at_all()
        return OrderedDict, (list(OrderedDict.items(self)),)


Noted = NotedList | NotedDeque | NotedSet | NotedDict


def noted(value: Any) -> Noted | None:
    """Return what stands for a list, a deque, a set or a dictionary during a step, or None for what else it may be."""
    if type(value) is list:
        return NotedList(value)
    if type(value) is deque:
        return NotedDeque(value, value.maxlen)
    if type(value) is set:
        return NotedSet(value)
    if type(value) is dict:
        return NotedDict(value)
    if type(value) is defaultdict:
        return NotedDefaultDict(value.default_factory, value)
    return NotedOrderedDict(value) if type(value) is OrderedDict else None


def content_of(held: Any) -> Any:
    """Return what is in a container as a plain list, set or dictionary, without noting that."""
    kind: Any
    for kind in (list, deque, set):
        if isinstance(held, kind):
            return set(kind.__iter__(held)) if kind is set else list(kind.__iter__(held))
    return dict(dict.items(held))


def _flat(held: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    return list(held.values()), list(held)


def _read(held: NotedList | NotedDeque) -> tuple[list[Any], None]:
    held._look()
    return content_of(held), None


pytree.register_pytree_node(NotedList, _read, lambda items, _: list(items))
pytree.register_pytree_node(NotedDeque, _read, lambda items, _: deque(items))
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


def watching_class(kind: Any, members: dict[str, Any]) -> type:
    """Return a class whose objects pass for those of another one, also when they are copied or pickled.

    Args:
        kind: The other one, from which it is derived.
        members: What it does itself.
    """
    def as_own(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            watching = type(self)
            _CLASS.__set__(self, kind)
            try:
                return getattr(kind, name)(self, *args)
            finally:
                _CLASS.__set__(self, watching)

        return call

    copying = [name for name in ("__reduce_ex__", "__deepcopy__", "__copy__") if hasattr(kind, name)]
    made: type = type(kind)(kind.__name__, (kind,), {
        **members, **{name: as_own(name) for name in copying}, "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "__class__": property(lambda _: kind, _CLASS.__set__),  # which dataclasses compare, and pickle
    })
    return made


class NotedAttributes:
    """Notes which attributes of objects, there or not, a step reads before it has written them.

    Attributes:
        stand_ins: What stands for containers and the like during the step, by number of the original, with that.
    """

    def __init__(self) -> None:
        self.stand_ins: dict[int, tuple[Any, Any]] = {}
        self._read: dict[tuple[int, str], str] = {}
        self._written: set[tuple[int, str]] = set()
        self._watched: list[tuple[Any, type]] = []
        self._known: set[int] = set()
        self._watching: dict[type, type | None] = {}

    def originals(self) -> dict[int, Any]:
        """Return the containers by number of what stands for them."""
        return {id(stand_in): original for stand_in, original in self.stand_ins.values()}

    def knows(self, owner: Any) -> bool:
        """Whether what is read of an object is noted."""
        return id(owner) in self._known

    def read_at(self, owner: Any, name: str) -> str:
        """Return where an attribute was read before it was written, or nothing."""
        return self._read.get((id(owner), name), "")

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

        try:
            watching = watching_class(kind, {"__getattribute__": get, "__setattr__": put, "__slots__": ()})
        except Exception:  # a class that none can be derived from, for reasons of its own
            return None
        return watching

    def restore(self) -> None:
        """Give every object its own class again."""
        for owner, kind in reversed(self._watched):
            _CLASS.__set__(owner, kind)
        self._watched.clear()
