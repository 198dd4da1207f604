"""What the forward of a model may read and write beside its parameters and buffers.

Attributes of its modules, and of objects that they hold; globals, variables of enclosing functions and attributes of
classes that the code of its methods names, and of the functions that those call, with their defaults and attributes.
Neither the code of libraries is looked at nor a class of theirs that is only named: what it keeps (a lock of ``tqdm``)
may be in use by others in the meantime.
"""

from __future__ import annotations

import copy
import os
import sys
import sysconfig
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import torch

from torchipu.capture.fx_source import OUR_ROOT, TORCH_ROOT

MISSING = object()
"""What stands for a value that is not there."""
OWN = frozenset(vars(torch.nn.Module()))
"""Attributes of a module that torch keeps itself."""
MOST = 20_000
"""Objects that are looked at: a model that holds a data set has more, and its forward does not write them."""
CONTAINERS = (list, dict, set, deque)
KINDS = (*CONTAINERS, defaultdict, OrderedDict, Counter)
"""Classes of containers that are looked at; those of the user's own are objects."""
_LIBRARIES = (
    TORCH_ROOT, OUR_ROOT, "<frozen", sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"],
    sysconfig.get_paths()["platlib"],
)
_INSTALLED = tuple(f"{os.sep}{folder}{os.sep}" for folder in ("site-packages", "dist-packages"))
"""Folders of libraries wherever they lie: the user's own, or those of the Python that an environment was made from."""
_OF_LIBRARIES = frozenset({"torch", "torchipu", "numpy", "builtins", *sys.stdlib_module_names})


@dataclass(frozen=True, slots=True)
class Holder:
    """Something with names that code binds values to.

    Attributes:
        read: Returns what its names are bound to.
        put: Binds a name.
        drop: Removes one.
        words: Of a name in it, for messages: a pattern for `str.format`.
        is_of_torch: Whether it is a module of torch's own, which keeps things in private attributes.
        is_module: Whether it is a module.
        is_class: Whether it is a class.
        owner: The object, if it is one and no module.
    """

    read: Callable[[], dict[str, Any]]
    put: Callable[[str, Any], None]
    drop: Callable[[str], None]
    words: str
    is_of_torch: bool = False
    is_module: bool = False
    is_class: bool = False
    owner: Any = None

    def told(self, name: str) -> str:
        """Return what messages call a name."""
        return self.words.format(name)

    def is_private(self, name: str) -> bool:
        """Whether a name is an affair of torch's own."""
        return self.is_of_torch and name.startswith("_")


class Reachable:
    """What a model's forward may read and write.

    Args:
        model: The model, if there is one.
        functions: Further ones of the user's that run in it.
        libraries: Further packages whose objects and code are not looked at.

    Attributes:
        holders: What has names.
        containers: Lists, dictionaries and the like, with the name of each.
        functions: Whose code was looked at.
    """

    def __init__(
        self, model: torch.nn.Module | None, functions: Sequence[Callable[..., Any]] = (),
        libraries: Sequence[str] = (),
    ) -> None:
        self._libraries = _OF_LIBRARIES.union(libraries)
        self.holders: list[Holder] = []
        self.containers: list[tuple[Any, str]] = []
        self.functions: list[FunctionType] = []
        self._seen: dict[int, Any] = {}
        for path, member in () if model is None else model.named_modules():
            self._module(member, path)
        for function in functions:
            self._value(function, getattr(function, "__name__", "a function"))

    def _is_new(self, value: Any) -> bool:
        if id(value) in self._seen or len(self._seen) >= MOST:
            return False
        self._seen[id(value)] = value
        return True

    def _module(self, member: torch.nn.Module, path: str) -> None:
        if id(member) in self._seen or isinstance(member, torch.jit.ScriptModule):  # whose attributes are TorchScript's
            return
        self._seen[id(member)] = member
        prefix, held = f"{path}." if path else "", member.__dict__
        self._hold(Holder(
            partial(_plain, member), partial(dict.__setitem__, held), partial(dict.__delitem__, held),
            f"Attribute {prefix}{{}} of {_braced(type(member).__name__)}", _is_of(type(member), "torch"),
            is_module=True,
        ), prefix)
        self._classes(type(member).__mro__)

    def _hold(self, holder: Holder, prefix: str) -> None:
        self.holders.append(holder)
        for name, value in holder.read().items():
            self._value(value, f"{prefix}{name}")

    def _value(self, value: Any, name: str) -> None:
        if isinstance(value, (str, bytes, int, float, torch.Tensor, ModuleType)) or value is None:
            return
        if isinstance(value, tuple):
            for one in value:
                self._value(one, name)
        elif isinstance(value, MethodType):
            self._value(value.__func__, name)
        elif not self._is_new(value):
            return
        elif type(value) in KINDS:
            if len(value) > MOST:
                return
            self.containers.append((value, name))
            for one in list(value.values()) if isinstance(value, dict) else list(value):
                self._value(one, name)
        elif isinstance(value, FunctionType):
            self._function(value)
        elif isinstance(value, type):
            self._seen.pop(id(value))
            self._classes([one for one in value.__mro__ if not _is_of_library(_file_of(one))])
        elif isinstance(value, torch.nn.Module):
            self._seen.pop(id(value))
            self._module(value, name)
        elif type(getattr(value, "__dict__", None)) is dict and (
            type(value) is SimpleNamespace or not _is_of(type(value), *self._libraries)
        ):
            held = value.__dict__
            self._hold(Holder(
                partial(dict, held), partial(dict.__setitem__, held), partial(dict.__delitem__, held),
                f"Attribute {_braced(name)}.{{}} of {_braced(type(value).__name__)}", owner=value,
            ), f"{name}.")

    # ------------------------------------------------------------------ code
    def _classes(self, kinds: Sequence[type]) -> None:
        for one in kinds:
            if _is_of(one, *self._libraries) or not self._is_new(one):
                continue
            for value in list(vars(one).values()):
                function = getattr(value, "__func__", None) or getattr(value, "fget", None) or value
                if isinstance(function, FunctionType):
                    self._function(function)
            self._hold(Holder(
                partial(_of_class, one), partial(setattr, one), partial(delattr, one),
                f"Attribute {{}} of the class {_braced(one.__name__)}", is_class=True,
            ), f"{one.__name__}.")

    def _function(self, function: FunctionType) -> None:
        code = function.__code__
        if _is_of_library(code.co_filename) or function in self.functions:
            return
        self.functions.append(function)
        names = sorted(set(names_in(code)))
        space = function.__globals__
        self._hold(Holder(
            lambda: {name: space[name] for name in names if name in space}, space.__setitem__, space.__delitem__,
            "The global {}",
        ), "")
        for value in [space[name] for name in names if isinstance(space.get(name), ModuleType)]:
            self._python_module(value, names)
        called = _braced(function.__name__)
        places = code.co_varnames[:code.co_argcount][::-1]
        defaults = dict(zip(places, (function.__defaults__ or ())[::-1], strict=False))
        for name, value in (defaults | (function.__kwdefaults__ or {})).items():
            self._value(value, name)
        own = function.__dict__
        self._hold(Holder(
            partial(dict, own), partial(dict.__setitem__, own), partial(dict.__delitem__, own),
            f"Attribute {{}} of the function {called}",
        ), f"{function.__name__}.")
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        if cells:
            self._hold(Holder(
                lambda: dict(_filled(cells)), lambda name, value: setattr(cells[name], "cell_contents", value),
                lambda name: delattr(cells[name], "cell_contents"), "{} of an enclosing function",
            ), "")


    def _python_module(self, module: ModuleType, names: Sequence[str]) -> None:
        """Look at those globals of a user's module that code names, as in ``settings.seen``."""
        file = getattr(module, "__file__", None)
        if file is None or _is_of_library(file) or module.__name__.partition(".")[0] in self._libraries:
            return
        space = vars(module)
        self._hold(Holder(
            lambda: {name: space[name] for name in names if name in space}, space.__setitem__, space.__delitem__,
            f"The global {{}} of {_braced(module.__name__)}",
        ), f"{module.__name__}.")


class Kept:
    """What was found at places, to be set back.

    Args:
        reachable: The places.

    Attributes:
        held: What has names, with what they were bound to.
        contents: Lists, dictionaries and the like with the name of each, and with what was in them.
    """

    def __init__(self, reachable: Reachable) -> None:
        self.held = [(holder, holder.read()) for holder in reachable.holders]
        self.contents = [(held, name, copy.copy(held)) for held, name in reachable.containers]

    def restore(self) -> None:
        """Set everything back."""
        for holder, before in self.held:
            now = holder.read()
            for name in set(now) - set(before):
                holder.drop(name)
            for name, value in before.items():
                if now.get(name, MISSING) is not value:
                    holder.put(name, value)
        for held, _, content in self.contents:
            refill(held, content)

    def changes(self) -> Iterator[str]:
        """Yield what messages call that which is another value now; what was nothing before may be made once."""
        for holder, before in self.held:
            for name, now in holder.read().items():
                if not holder.is_private(name) and _is_another(before.get(name), now):
                    yield holder.told(name)
        for held, name, content in self.contents:
            if _is_another(content, held):
                yield f"{name}, a {type(held).__name__},"


def _is_another(before: Any, now: Any) -> bool:
    if now is before or isinstance(now, torch.Tensor) or isinstance(before, torch.Tensor):
        return now is not before
    if isinstance(now, dict) and isinstance(before, dict):
        return now.keys() != before.keys() or any(now[key] is not before[key] for key in now)
    if isinstance(now, CONTAINERS) and type(now) is type(before) and not isinstance(now, set):
        return len(now) != len(before) or any(one is not other for one, other in zip(before, now, strict=True))
    if before is None:
        return False
    try:
        return type(now) is not type(before) or bool(now != before)
    except Exception:  # objects that cannot be compared
        return True


def refill(held: Any, content: Any) -> None:
    """Give a container its content back."""
    if isinstance(held, list):
        held[:] = content
    elif isinstance(held, deque):
        held.clear()
        held.extend(content)
    else:
        held.clear()
        held.update(content)


def _plain(member: torch.nn.Module) -> dict[str, Any]:
    """Return the attributes that are neither torch's nor parameters or buffers."""
    known = {*OWN, *member._parameters, *member._buffers}
    return {name: value for name, value in member.__dict__.items() if name not in known}


def _of_class(kind: type) -> dict[str, Any]:
    """Return the attributes of a class that hold values, not what Python keeps there."""
    return {
        name: value for name, value in vars(kind).items() if not (name.startswith("__") and name.endswith("__"))
        and not hasattr(value, "__get__") and name != "_abc_impl"
    }


def names_in(code: CodeType) -> Iterator[str]:
    """Yield the names that code looks up, with that of functions within it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def _filled(cells: dict[str, CellType]) -> Iterator[tuple[str, Any]]:
    for name, cell in cells.items():
        try:
            yield name, cell.cell_contents
        except ValueError:  # nothing is bound to it yet
            continue


def _is_of(kind: type, *packages: str) -> bool:
    """Whether a class is one of certain packages."""
    return (kind.__module__ or "").partition(".")[0] in packages


def _is_of_library(file: str) -> bool:
    """Whether a file of code is none of the user's."""
    return file.startswith(_LIBRARIES) or any(folder in file for folder in _INSTALLED)


def _file_of(kind: type) -> str:
    """Return the file that a class was written in; empty where it is not known."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or ""


def _braced(text: str) -> str:
    """Return text that `str.format` leaves as it is."""
    return text.replace("{", "{{").replace("}", "}}")
