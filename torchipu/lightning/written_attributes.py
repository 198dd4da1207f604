"""Attributes that a step writes while it is captured: lists it appends to, values it keeps; found by comparing."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from functools import _lru_cache_wrapper
from typing import Any

import torch

from torchipu.capture.reachable import KINDS, MISSING, Holder, Kept, Reachable, refill
from torchipu.lightning.effects import (
    PLAIN,
    Appended,
    Assigned,
    Bound,
    Filled,
    Look,
    Path,
    Refilled,
    Removed,
    Written,
    is_data,
)
from torchipu.lightning.noted_reads import (
    NotedAttributes,
    NotedDeque,
    NotedDict,
    NotedList,
    content_of,
    has_some_of,
    has_tensors,
    is_carried,
    noted,
)

DEPTH = 3
_OF_TORCH = frozenset({
    "training", "_parameters", "_buffers", "_modules", "_trainer", "_fabric", "_current_fx_name", "log", "forward",
    "_non_persistent_buffers_set", "_is_full_backward_hook", "_param_requires_grad_state",
})
OF_LIGHTNING = ("lightning", "lightning_fabric", "lightning_utilities", "pytorch_lightning", "torchmetrics")


def _read(place: str, is_state: bool = True) -> Look:
    return Look(is_state and bool(place), bool(place), place)


class Containers:
    """What the attributes of a module and its parts hold before a step.

    Args:
        module: The Lightning module; metrics in it are left out.
        reads: Notes which attributes the step reads.
    """

    def __init__(self, module: torch.nn.Module, reads: NotedAttributes) -> None:
        self.before: list[tuple[Path, Any, Any]] = []
        self.noted: dict[int, Any] = {}
        self.reads = reads
        for name, member in _members(module):
            attributes = {key: value for key, value in member.__dict__.items() if key not in _OF_TORCH}
            self.before.append(((name,), member, attributes))
            for key, value in attributes.items():
                stand_in = self._note((name, key), value, DEPTH)
                if stand_in is not value:
                    member.__dict__[key] = stand_in
            reads.watch(member)

    def _look(self, member: Any, name: str, was: Any, now: Any) -> Look:
        return _look_at(self.reads, member, name, was, now)

    def _note(self, path: Path, value: Any, depth: int) -> Any:
        """Keep what a container holds; return what stands for it during the step."""
        if id(value) in self.reads.stand_ins:
            return self.reads.stand_ins[id(value)][0]
        if isinstance(value, list):
            self.before.append((path, value, list(value)))
        elif isinstance(value, dict):
            self.before.append((path, value, dict(value)))
        else:
            return value
        stand_in: Any = noted(value)
        if stand_in is not None:
            self.noted[id(value)] = stand_in
            self.reads.stand_ins[id(value)] = stand_in, value
        if depth:
            for key, item in list(enumerate(value) if isinstance(value, list) else value.items()):
                inner = self._note((*path, key), item, depth - 1)
                if isinstance(stand_in, NotedDict):
                    dict.__setitem__(stand_in, key, inner)
                elif stand_in is not None:
                    list.__setitem__(stand_in, key, inner)
        return value if stand_in is None else stand_in

    def undo(self) -> list[Written]:
        """Put everything back as it was; return what had been written."""
        written: list[Written] = []
        originals = self.reads.originals()
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
                before = _raw(before, originals)  # Elsewhere has stood in for some
                written += [
                    Assigned((*path, key), _copied(value), self._look(container, key, before.get(key), value))
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
    ) -> list[Written]:
        stand_in = self.noted.get(id(container))
        if not isinstance(stand_in, NotedList):
            return _of_list(path, container, before, None)
        now = [originals.get(id(item), item) for item in list.copy(stand_in)]
        is_noted = stand_in.is_cut or len(now) != len(before)
        return _of_list(path, now if is_noted else container, before, stand_in)

    def _of_dict(
        self, path: Path, container: dict[Any, Any], before: dict[Any, Any], originals: dict[int, Any],
    ) -> list[Written]:
        stand_in = self.noted.get(id(container))
        if not isinstance(stand_in, NotedDict):
            return _of_dict(path, container, before, None)
        now = _raw(stand_in, originals)
        # What is written under another name is in the dictionary itself.
        return _of_dict(path, now if _differ(now, before) else dict(container), before, stand_in)


class Elsewhere:
    """What a step may write beside attributes of modules: objects, globals, variables of functions, deques, sets.

    Args:
        module: The Lightning module.
        reads: Notes which attributes the step reads.
    """

    def __init__(self, module: torch.nn.Module, reads: NotedAttributes) -> None:
        self._kept = Kept(Reachable(module, libraries=OF_LIGHTNING))
        self._reads = reads
        self._noted: dict[int, Any] = {}

    def begin(self) -> None:
        """Let what notes reads stand for containers and objects, until they are set back."""
        for holder, before in self._kept.held:
            for name, value in before.items():
                if holder.is_class:
                    continue
                # Containers stands in for those that attributes of modules have.
                if type(value) in ((set, deque) if holder.is_module else KINDS):
                    self._stand_in(holder, name, value)
                elif isinstance(value, _lru_cache_wrapper):  # what it keeps would be tensors of the capture
                    holder.put(name, value.__wrapped__)
                    self._reads.stand_ins[id(value)] = value.__wrapped__, value
            if holder.owner is not None:
                self._reads.watch(holder.owner)

    def _stand_in(self, holder: Holder, name: str, value: Any) -> None:
        if id(value) not in self._noted:
            stand_in = noted(value)
            if stand_in is None:
                return
            self._noted[id(value)] = stand_in
            self._reads.stand_ins[id(value)] = stand_in, value
        holder.put(name, self._noted[id(value)])

    def written(self) -> list[Bound | Filled]:
        """Return what was written so far."""
        written: list[Bound | Filled] = []
        originals = self._reads.originals()
        for holder, before in self._kept.held:
            for name, found in () if holder.is_module else holder.read().items():
                now = originals.get(id(found), found)
                was = before.get(name, MISSING)
                was_there = was is not MISSING and was is not None
                if now is was or not (has_tensors(now) or (_differs(was, now) if was_there else is_data(now))):
                    continue
                look = _look_at(self._reads, holder.owner, name, was if was_there else None, now)
                written.append(Bound(holder, name, _copied(now), look, has_tensors(now), was_there))
        for held, name, before in self._kept.contents:
            effect = self._filled(held, name, before, originals)
            if effect is not None:
                written.append(effect)
        return written

    def restore(self) -> None:
        """Put everything back as it was."""
        self._kept.restore()

    def _filled(self, held: Any, name: str, before: Any, originals: dict[int, Any]) -> Filled | None:
        """Return what is new in a container, or None."""
        stand_in = self._noted.get(id(held))
        look = Look(may_matter=True)
        items, is_anew = _new_in(held, held, before)
        if stand_in is not None:
            now = content_of(stand_in)
            if isinstance(now, dict):
                now = {key: originals.get(id(value), value) for key, value in now.items()}
            else:
                now = type(now)(originals.get(id(value), value) for value in now)
            if stand_in.is_own or (isinstance(stand_in, (NotedList, NotedDeque)) and stand_in.is_cut):
                items, is_anew = now, True
            elif items is None:  # what is written under another name is in the container itself
                items, is_anew = _new_in(held, now, before)
            look = _read(_read_in(stand_in, {**before, **now} if isinstance(now, dict) else ()))
        if items is None:
            return None
        return Filled(held, name, items, is_anew, look, has_tensors(list(items) if isinstance(items, set) else items))


def _read_in(stand_in: Any, keys: Iterable[Any]) -> str:
    if not isinstance(stand_in, NotedDict):
        return str(stand_in.read_at)
    return next(filter(None, map(stand_in.read_at, keys)), "")


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


def _of_list(path: Path, now: list[Any], before: list[Any], stand_in: NotedList | None) -> list[Written]:
    is_cut, read_at = (False, "") if stand_in is None else (stand_in.is_cut, stand_in.read_at)
    if not is_cut and len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True)):
        return []
    if not is_cut and len(now) > len(before) and all(a is b for a, b in zip(now, before, strict=False)):
        return [Appended(path, list(now[len(before):]), _read(read_at))]
    is_state = bool(read_at) or has_some_of(now, before)
    return [Refilled(path, list(now), Look(is_state, is_state, read_at))]


def _of_dict(
    path: Path, now: dict[Any, Any], before: dict[Any, Any], stand_in: NotedDict | None,
) -> list[Written]:
    if stand_in is not None and stand_in.is_own:
        look = _read(_read_in(stand_in, {**before, **now}), is_state=False)
        return [Refilled(path, {key: _copied(value) for key, value in now.items()}, look)]

    def read_at(key: Any) -> str:
        return "" if stand_in is None else stand_in.read_at(key)

    written: list[Written] = [
        Removed((*path, key), look=_read(read_at(key), is_state=False)) for key in before if key not in now
    ]
    for key, value in now.items():
        was = before.get(key)
        if key in before and was is value:
            continue
        look = _read(read_at(key), has_tensors(value) or _counts(value))
        if stand_in is None:  # nobody knows what was read
            look = Look(is_carried(was, value), may_matter=True)
        written.append(Assigned((*path, key), _copied(value), look))
    return written


def _counts(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _differs(was: Any, now: Any) -> bool:
    try:
        return bool(was != now)
    except Exception:  # objects that cannot be compared
        return True


def _look_at(reads: NotedAttributes, owner: Any, name: str, was: Any, now: Any) -> Look:
    """Return whether the next micro-batch may read what the last one leaves in an attribute, and where."""
    if not reads.knows(owner):
        return Look(is_carried(was, now), may_matter=True)
    return _read(reads.read_at(owner, name), is_carried(was, now) or (was is None and has_tensors(now)))


def _new_in(held: Any, now: Any, before: Any) -> tuple[Any, bool]:
    """Return what is new in a container, or None, and whether that is all that is in it."""
    if isinstance(held, set):
        if now == before:
            return None, False
        return (now - before, False) if now > before else (set(now), True)
    if isinstance(held, dict):
        if set(before) - set(now):
            return dict(now), True
        items = {key: value for key, value in now.items() if before.get(key, MISSING) is not value}
        return items or None, False
    old, found = {id(one) for one in before}, list(now)
    count = len(found)
    # A value that nobody can change, such as True, is the same object wherever it is.
    while count and (id(found[count - 1]) not in old or count > len(before) and isinstance(found[count - 1], PLAIN)):
        count -= 1
    is_full = getattr(held, "maxlen", None) is not None  # a deque that drops what came first
    begins = list(before)[len(before) - count:] if is_full else list(before)
    if count != len(begins) or any(one is not other for one, other in zip(found, begins, strict=False)):
        return found, True
    return found[count:] or None, False
