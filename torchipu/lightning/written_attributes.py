"""Attributes that a step writes while it is captured: lists it appends to, values it keeps; found by comparing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from torchipu.capture.reachable import MISSING, Holder, Kept, Reachable, refill
from torchipu.lightning.expressions import Surroundings, evaluated
from torchipu.lightning.noted_reads import (
    NotedAttributes,
    NotedDict,
    NotedList,
    has_some_of,
    has_tensors,
    is_carried,
    noted,
)

Path = tuple[Any, ...]
"""Name of a module, then an attribute of it, then keys into containers."""
DEPTH = 3
_OF_TORCH = frozenset({
    "training", "_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_current_fx_name", "log", "forward",
    "_non_persistent_buffers_set", "_is_full_backward_hook", "_param_requires_grad_state",
})


_OF_LIGHTNING = ("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics")


@dataclass(frozen=True, slots=True)
class Appended:
    """Items behind the end of a list.

    Attributes:
        path: Its place.
        items: They.
        is_state: Whether the step has looked at the list: the next micro-batch would see these items too.
        read_at: Where it has.
    """

    path: Path
    items: Any
    is_state: bool = False
    read_at: str = ""

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
            micro-batch may read the last one's; or the step has read what was not there yet.
        read_at: Where it has, if that is known.
    """

    path: Path
    value: Any
    is_state: bool = False
    read_at: str = ""

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


@dataclass(frozen=True, slots=True)
class Refilled:
    """All that is in a list or a dictionary that was emptied, or written anew from its beginning.

    Attributes:
        path: Its place.
        items: What is in it now.
        is_state: Whether some of what was there is left, and the step has looked at it.
        read_at: Where it has.
    """

    path: Path
    items: Any
    is_state: bool = False
    read_at: str = ""

    def held(self, hold: Callable[[Any], Any]) -> Refilled:
        """Return it with outputs in the places of tensors."""
        return replace(self, items=hold(self.items))

    def do(self, module: Any, at: Surroundings) -> None:
        """Put in what a micro-batch has."""
        refill(_resolved(module, self.path), evaluated(self.items, at))


@dataclass(frozen=True, slots=True)
class Removed:
    """A key that was taken out of a dictionary.

    Attributes:
        path: Its place.
        key: The key.
    """

    path: Path
    key: Any

    def held(self, hold: Callable[[Any], Any]) -> Removed:
        """Return it: there are no tensors in it."""
        return self

    def do(self, module: Any, at: Surroundings) -> None:
        """Take it out, if it is there."""
        _resolved(module, self.path).pop(self.key, None)


Effect = Appended | Assigned | Refilled | Removed


def _resolved(module: Any, path: Path) -> Any:
    found = getattr(module.get_submodule(path[0]), path[1])
    for key in path[2:]:
        found = found[key]
    return found


class Containers:
    """What the attributes of a module and its parts hold before a step.

    Args:
        module: The Lightning module; metrics in it are left out.
        reads: Notes which attributes the step reads.
    """

    def __init__(self, module: torch.nn.Module, reads: NotedAttributes) -> None:
        self.before: list[tuple[Path, Any, Any]] = []
        self.noted: dict[int, tuple[NotedList | NotedDict, Any]] = {}
        self.reads = reads
        for name, member in _members(module):
            attributes = {key: value for key, value in member.__dict__.items() if key not in _OF_TORCH}
            self.before.append(((name,), member, attributes))
            for key, value in attributes.items():
                stand_in = self._note((name, key), value, DEPTH)
                if stand_in is not value:
                    member.__dict__[key] = stand_in
            reads.watch(member)

    def _note(self, path: Path, value: Any, depth: int) -> Any:
        """Keep what a container holds; return what stands for it during the step."""
        if id(value) in self.noted:
            return self.noted[id(value)][0]
        if isinstance(value, list):
            self.before.append((path, value, list(value)))
        elif isinstance(value, dict):
            self.before.append((path, value, dict(value)))
        else:
            return value
        stand_in = noted(value)
        if stand_in is not None:
            self.noted[id(value)] = stand_in, value
        if depth:
            for key, item in list(enumerate(value) if isinstance(value, list) else value.items()):
                inner = self._note((*path, key), item, depth - 1)
                if isinstance(stand_in, NotedDict):
                    dict.__setitem__(stand_in, key, inner)
                elif stand_in is not None:
                    list.__setitem__(stand_in, key, inner)
        return value if stand_in is None else stand_in

    def undo(self) -> list[Effect]:
        """Put everything back as it was; return what had been written."""
        written: list[Effect] = []
        originals = {id(stand_in): original for stand_in, original in self.noted.values()}
        seen: set[int] = set()
        for path, container, before in self.before:
            if id(container) in seen:  # under a second name
                continue
            seen.add(id(container))
            if isinstance(container, list):
                written += self._of_list(path, container, before, originals)
            elif isinstance(container, dict):
                written += self._of_dict(path, container, before, originals)
            else:
                now = {key: value for key, value in _raw(container.__dict__, originals).items() if key not in _OF_TORCH}
                written += [
                    Assigned((*path, key), _copied(value), *self.reads.state(container, key, before.get(key), value))
                    for key, value in now.items() if before.get(key, MISSING) is not value
                ]
        for _, container, before in self.before:
            if isinstance(container, (list, dict)):
                refill(container, before)
            else:
                held = container.__dict__
                for key in [key for key in held if key not in before and key not in _OF_TORCH]:
                    del held[key]
                held.update(before)
        return written

    def _of_list(
        self, path: Path, container: list[Any], before: list[Any], originals: dict[int, Any],
    ) -> list[Effect]:
        stand_in = self.noted.get(id(container), (None,))[0]
        if not isinstance(stand_in, NotedList):
            return _of_list(path, container, before, None)
        now = [originals.get(id(item), item) for item in list.copy(stand_in)]
        is_noted = stand_in.is_cut or len(now) != len(before)
        return _of_list(path, now if is_noted else container, before, stand_in)

    def _of_dict(
        self, path: Path, container: dict[Any, Any], before: dict[Any, Any], originals: dict[int, Any],
    ) -> list[Effect]:
        stand_in = self.noted.get(id(container), (None,))[0]
        if not isinstance(stand_in, NotedDict):
            return _of_dict(path, container, before, None)
        now = _raw(stand_in, originals)
        # What is written under another name is in the dictionary itself.
        return _of_dict(path, now if _differ(now, before) else dict(container), before, stand_in)


@dataclass(frozen=True, slots=True)
class Bound:
    """Another value of a global, of a variable of an enclosing function, or of an object's attribute.

    Attributes:
        holder: What has the name.
        name: The name.
        value: What it is bound to now.
        is_state: As for `Assigned`.
        read_at: As for `Assigned`.
    """

    holder: Holder
    name: str
    value: Any
    is_state: bool
    read_at: str = ""

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
        reads: Notes which attributes the step reads.
    """

    def __init__(self, module: torch.nn.Module, reads: NotedAttributes) -> None:
        self._kept = Kept(Reachable(module, libraries=_OF_LIGHTNING))
        self._reads = reads
        for holder, _ in self._kept.held:
            if holder.owner is not None:
                reads.watch(holder.owner)

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
                if now is was or ((was is MISSING or was is None) and not has_tensors(now)):
                    continue
                if has_tensors(now):
                    state = self._reads.state(holder.owner, name, None if was is MISSING else was, now)
                    written.append(Bound(holder, name, now, *state))
                elif _differs(was, now):
                    told.append(holder.told(name))
        for held, name, before in self._kept.contents:
            written_there = _filled(held, before)
            if written_there is not None and has_tensors(written_there.items):
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


def _raw(held: dict[Any, Any], originals: dict[int, Any]) -> dict[Any, Any]:
    """Return what a dictionary holds, without noting that, and with originals in the places of what stands for them."""
    return {key: originals.get(id(value), value) for key, value in dict.items(held)}


def _differ(now: dict[Any, Any], before: dict[Any, Any]) -> bool:
    return now.keys() != before.keys() or any(before[key] is not value for key, value in now.items())


def _copied(value: Any) -> Any:
    return list.copy(value) if isinstance(value, list) else value


def _of_list(path: Path, now: list[Any], before: list[Any], stand_in: NotedList | None) -> list[Effect]:
    is_cut, read_at = (False, "") if stand_in is None else (stand_in.is_cut, stand_in.read_at)
    if not is_cut and len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return []
    if not is_cut and len(now) > len(before) and all(a is b for a, b in zip(now, before, strict=False)):
        return [Appended(path, list(now[len(before):]), bool(read_at), read_at)]
    return [Refilled(path, list(now), bool(read_at) or has_some_of(now, before), read_at)]


def _of_dict(
    path: Path, now: dict[Any, Any], before: dict[Any, Any], stand_in: NotedDict | None,
) -> list[Effect]:
    if stand_in is not None and stand_in.is_cleared:
        return [Refilled(path, {key: _copied(value) for key, value in now.items()})]
    written: list[Effect] = [Removed(path, key) for key in before if key not in now]
    for key, value in now.items():
        was = before.get(key)
        if key in before and was is value:
            continue
        read_at = "" if stand_in is None else stand_in.read_at(key)
        is_state = bool(read_at) and (has_tensors(value) or _counts(value))
        if stand_in is None:  # nobody knows what was read
            is_state = is_carried(was, value)
        written.append(Assigned((*path, key), _copied(value), is_state, read_at))
    return written


def _counts(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


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
