"""Attributes that a step writes while it is captured: lists it appends to, values it keeps; found by comparing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import _pytree as pytree

from torchipu.capture.reachable import MISSING, Holder, Kept, Reachable, refill
from torchipu.lightning.expressions import Surroundings, evaluated

Path = tuple[Any, ...]
"""Name of a module, then an attribute of it, then keys into containers."""
TRACED = (FunctionalTensor, FakeTensor)
DEPTH = 3
_OF_TORCH = frozenset({
    "training", "_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_current_fx_name", "log", "forward",
    "_non_persistent_buffers_set", "_is_full_backward_hook", "_param_requires_grad_state",
})


_OF_LIGHTNING = ("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics")


class NotedList(list[Any]):
    """Stands for a list of a module during a step: what is left in it does not tell what was done to it.

    Attributes:
        is_read: Whether the step has looked at what the list held before.
        is_cut: Whether something was taken out of it, or put elsewhere than at its end.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.is_read = self.is_cut = self._is_own = False

    def _look(self) -> None:
        self.is_read |= not self._is_own

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


pytree.register_pytree_node(NotedList, lambda held: (held.copy(), None), lambda items, _: list(items))


@dataclass(frozen=True, slots=True)
class Appended:
    """Items behind the end of a list.

    Attributes:
        path: Its place.
        items: They.
        is_state: Whether the step has looked at the list: the next micro-batch would see these items too.
    """

    path: Path
    items: Any
    is_state: bool = False

    def held(self, hold: Callable[[Any], Any]) -> Appended:
        """Return it with outputs in the places of tensors."""
        return replace(self, items=hold(self.items))

    def do(self, module: Any, at: Surroundings) -> None:
        """Append what a micro-batch has."""
        _resolved(module, self.path).extend(evaluated(self.items, at))


@dataclass(frozen=True, slots=True)
class Assigned:
    """Another value of an attribute, or of an item of a dict or list.

    Attributes:
        path: Its place.
        value: What is there now.
        is_state: Whether both that and what was there are tensors, or a list of which some is left: the next
            micro-batch may read the last one's.
    """

    path: Path
    value: Any
    is_state: bool = False

    def held(self, hold: Callable[[Any], Any]) -> Assigned:
        """Return it with outputs in the places of tensors."""
        return replace(self, value=hold(self.value))

    def do(self, module: Any, at: Surroundings) -> None:
        """Assign what a micro-batch has."""
        *before, last = self.path
        value = evaluated(self.value, at)
        if len(before) == 1:
            setattr(module.get_submodule(before[0]), last, value)
        else:
            _resolved(module, tuple(before))[last] = value


def _resolved(module: Any, path: Path) -> Any:
    found = getattr(module.get_submodule(path[0]), path[1])
    for key in path[2:]:
        found = found[key]
    return found


class Containers:
    """What the attributes of a module and its parts hold before a step.

    Args:
        module: The Lightning module; metrics in it are left out.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.before: list[tuple[Path, Any, Any]] = []
        self.noted: dict[int, tuple[NotedList, list[Any]]] = {}
        for name, member in _members(module):
            attributes = {key: value for key, value in member.__dict__.items() if key not in _OF_TORCH}
            self.before.append(((name,), member, attributes))
            for key, value in attributes.items():
                self._note((name, key), value, DEPTH)
                if type(value) is list:
                    member.__dict__[key] = self.noted.setdefault(id(value), (NotedList(value), value))[0]

    def _note(self, path: Path, value: Any, depth: int) -> None:
        if isinstance(value, list):
            self.before.append((path, value, list(value)))
            inner: Any = enumerate(value)
        elif isinstance(value, dict):
            self.before.append((path, value, dict(value)))
            inner = value.items()
        else:
            return
        if depth:
            for key, item in list(inner):
                self._note((*path, key), item, depth - 1)

    def undo(self) -> list[Appended | Assigned]:
        """Put everything back as it was; return what had been written."""
        written: list[Appended | Assigned] = []
        originals = {id(noted): original for noted, original in self.noted.values()}
        seen: set[int] = set()
        for path, container, before in self.before:
            if id(container) in seen:  # under a second name
                continue
            seen.add(id(container))
            if isinstance(container, list):
                noted, _ = self.noted.get(id(container), (None, container))
                is_noted = noted is not None and (noted.is_cut or len(noted.copy()) != len(before))
                written += _of_list(path, noted.copy() if noted is not None and is_noted else container, before, noted)
            elif isinstance(container, dict):
                written += _of_mapping(path, container, before)
            else:
                now = {
                    key: originals.get(id(value), value) for key, value in container.__dict__.items()
                    if key not in _OF_TORCH
                }
                written += _of_mapping(path, now, before)
        for _, container, before in self.before:
            if isinstance(container, list):
                container[:] = before
            elif isinstance(container, dict):
                container.clear()
                container.update(before)
            else:
                held = container.__dict__
                for key in [key for key in held if key not in before and key not in _OF_TORCH]:
                    del held[key]
                held.update(before)
        return written


@dataclass(frozen=True, slots=True)
class Bound:
    """Another value of a global, of a variable of an enclosing function, or of an object's attribute.

    Attributes:
        holder: What has the name.
        name: The name.
        value: What it is bound to now.
        is_state: As for `Assigned`.
    """

    holder: Holder
    name: str
    value: Any
    is_state: bool

    def held(self, hold: Callable[[Any], Any]) -> Bound:
        """Return it with outputs in the places of tensors."""
        return replace(self, value=hold(self.value))

    def do(self, module: Any, at: Surroundings) -> None:
        """Bind it to what a micro-batch has."""
        self.holder.put(self.name, evaluated(self.value, at))


@dataclass(frozen=True, slots=True)
class Filled:
    """What is new in a list, a deque, a dictionary or a set that is not found through attributes of modules alone.

    Attributes:
        container: It.
        items: What is new at its end, or under keys; all of it, if it does not begin with what there was.
        anew: Whether they take the place of all else.
    """

    container: Any
    items: Any
    anew: bool

    def held(self, hold: Callable[[Any], Any]) -> Filled:
        """Return it with outputs in the places of tensors."""
        return replace(self, items=hold(self.items))

    def do(self, module: Any, at: Surroundings) -> None:
        """Put in what a micro-batch has."""
        items = evaluated(self.items, at)
        if self.anew:
            refill(self.container, items)
        elif isinstance(self.container, (dict, set)):
            self.container.update(items)
        else:
            self.container.extend(items)


class Elsewhere:
    """What a step may write beside attributes of modules: objects, globals, variables of functions, deques.

    Args:
        module: The Lightning module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._kept = Kept(Reachable(module, libraries=_OF_LIGHTNING))

    def undo(self) -> tuple[list[Bound | Filled], list[str]]:
        """Put everything back as it was.

        Returns:
            What had been written of tensors, and what messages call the rest, which cannot be followed.
        """
        written: list[Bound | Filled] = []
        told: list[str] = []
        for holder, before in self._kept.held:
            for name, now in () if holder.is_module else holder.read().items():
                was = before.get(name, MISSING)
                if now is was or ((was is MISSING or was is None) and not _has_tensors(now)):
                    continue
                if _has_tensors(now):
                    written.append(Bound(holder, name, now, _is_state(was, now)))
                elif _differs(was, now):
                    told.append(holder.told(name))
        for held, name, before in self._kept.contents:
            written_there = _filled(held, before)
            if written_there is not None and _has_tensors(written_there.items):
                written.append(written_there)
            elif written_there is not None:
                told.append(f"{name}, a {type(held).__name__},")
        self._kept.restore()
        return written, told


def _members(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    try:
        from torchmetrics import Metric, MetricCollection

        metrics: tuple[type, ...] = (Metric, MetricCollection)
    except ImportError:
        metrics = ()
    for name, member in module.named_modules():
        if not isinstance(member, metrics):
            yield name, member


def _of_list(
    path: Path, now: list[Any], before: list[Any], noted: NotedList | None,
) -> list[Appended | Assigned]:
    is_cut, is_read = (False, False) if noted is None else (noted.is_cut, noted.is_read)
    if not is_cut and len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return []
    if not is_cut and len(now) > len(before) and all(a is b for a, b in zip(now, before, strict=False)):
        return [Appended(path, list(now[len(before):]), is_read)]
    return [Assigned(path, list(now), is_read or _has_some_of(now, before))] if len(path) == 2 else []


def _of_mapping(path: Path, now: dict[Any, Any], before: dict[Any, Any]) -> list[Appended | Assigned]:
    return [
        Assigned((*path, key), list(value) if isinstance(value, list) else value, _is_state(before.get(key), value))
        for key, value in now.items() if key not in before or before[key] is not value
    ]


def _is_state(before: Any, now: Any) -> bool:
    """Whether the next micro-batch may read what the last one has left."""
    if isinstance(now, list) and isinstance(before, list):
        return _has_some_of(now, before)
    kinds = (torch.Tensor, tuple)
    return isinstance(now, kinds) and isinstance(before, kinds) and _has_tensors(now) and _has_tensors(before)


def _has_some_of(now: list[Any], before: list[Any]) -> bool:
    left = {id(one) for one in before if isinstance(one, torch.Tensor)}
    return any(id(one) in left for one in now)


def _has_tensors(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _differs(was: Any, now: Any) -> bool:
    try:
        return bool(was != now)
    except Exception:  # objects that cannot be compared
        return True


def _filled(now: Any, before: Any) -> Filled | None:
    """Return what is new in a container, or None."""
    if isinstance(now, set):
        if now == before:
            return None
        return Filled(now, now - before, False) if now > before else Filled(now, set(now), True)
    if isinstance(now, dict):
        if set(before) - set(now):
            return Filled(now, dict(now), True)
        items = {key: value for key, value in now.items() if before.get(key, MISSING) is not value}
        return Filled(now, items, False) if items else None
    old, found = {id(one) for one in before}, list(now)
    count = len(found)
    while count and id(found[count - 1]) not in old:
        count -= 1
    is_full = getattr(now, "maxlen", None) is not None  # a deque that drops what came first
    begins = list(before)[len(before) - count:] if is_full else before
    if count != len(begins) or any(one is not other for one, other in zip(found, begins, strict=False)):
        return Filled(now, found, True)
    return Filled(now, found[count:], False) if len(found) > count else None
