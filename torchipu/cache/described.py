"""Objects as digests that are the same in another process only where the objects do the same.

Nothing of an object is called: classes are told by the code of their functions, functions by their code, defaults and
closures, other objects by their class and what they hold.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import types
from collections.abc import Iterable
from typing import Any

import torch

CONSTANTS = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented))
_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_BUILTINS = (
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.MethodWrapperType, types.GetSetDescriptorType, types.MemberDescriptorType,
)
_OF_A_CLASS = frozenset({
    "__dict__", "__weakref__", "__doc__", "__annotations__", "__module__", "__abstractmethods__", "_abc_impl",
    "__parameters__", "__orig_bases__", "__static_attributes__", "__firstlineno__",
})
"""What classes hold that says nothing of what their objects do, or is said otherwise."""
MAX_DEPTH = 60


class OpaqueError(Exception):
    """An object whose doings cannot be told from what is seen of it."""


class Describer:
    """Describes objects, each once: what comes again is told by its number, so that what is shared stays so.

    Args:
        known: Tensors that a program reads when it runs, by id: told by type and size. Others by their values.

    Attributes:
        codes: All code that was described.
    """

    def __init__(self, known: Iterable[torch.Tensor] = ()) -> None:
        self.codes: set[types.CodeType] = set()
        self._known = {id(tensor) for tensor in known}
        self._classes: dict[type, str] = {}
        self._bodies: dict[type, str] = {}  # of classes that several inherit from, most of all that of modules
        self._code_digests: dict[types.CodeType, str] = {}
        self._numbers: dict[int, int] = {}
        self._open: set[int] = set()  # functions that are being described
        self._kept: list[object] = []  # so that no id is given to another

    # ------------------------------------------------------------------ whole objects
    def deep(self, value: object, depth: int = 0) -> str:
        """Return the description of an object with all that it holds.

        Raises:
            OpaqueError: It holds something that cannot be described.
        """
        if isinstance(value, CONSTANTS) and type(value) in CONSTANTS:
            return _constant(value)
        if depth > MAX_DEPTH:
            raise OpaqueError("it is nested too deeply")
        if isinstance(value, _OF_TORCH):
            return f"{type(value).__name__} {value}"
        if isinstance(value, enum.Enum):
            return f"{_name(type(value))}.{value.name}"
        number = self._number(value)
        if number is not None:
            return f"#{number}"
        return self._parts(value, depth + 1)

    def _number(self, value: object) -> int | None:
        """Return the number of an object that came before; else give it the next one."""
        number = self._numbers.get(id(value))
        if number is None:
            self._numbers[id(value)] = len(self._numbers)
            self._kept.append(value)
        return number

    def _parts(self, value: object, depth: int) -> str:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, depth)
        if isinstance(value, type):
            return self.of_class(value)
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, types.CodeType):
            return self.of_code(value)
        if isinstance(value, types.FunctionType):
            return self._function(value, depth)
        if isinstance(value, types.MethodType):
            return f"method {self.deep(value.__func__, depth)} {self.deep(value.__self__, depth)}"
        if isinstance(value, _BUILTINS):
            return _builtin(value)
        if isinstance(value, (staticmethod, classmethod)):
            return f"{type(value).__name__} {self.deep(value.__func__, depth)}"
        if isinstance(value, property):
            return f"property {self._all((value.fget, value.fset, value.fdel), depth)}"
        if isinstance(value, functools.cached_property):
            return f"cached {self.deep(value.func, depth)}"
        if isinstance(value, functools.partial):
            return f"partial {self._all((value.func, value.args, value.keywords), depth)}"
        if isinstance(value, types.MappingProxyType):
            return f"proxy {self._pairs(value.items(), depth)}"
        if isinstance(value, types.CellType):
            return f"cell {self.deep(value.cell_contents, depth)}"
        if isinstance(value, (types.GenericAlias, types.UnionType)) or type(value).__module__ == "typing":
            return f"typing {value}"
        if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return f"operator {value}"
        return self._instance(value, depth)

    def _instance(self, value: object, depth: int) -> str:
        """Describe an object of a class by that, by its members and its attributes."""
        kind, told = type(value), []
        if isinstance(value, (list, tuple, collections.deque)):
            told.append(self._all(value, depth))
        elif isinstance(value, (dict, collections.OrderedDict)):
            told.append(self._pairs(dict.items(value), depth))
        elif isinstance(value, (set, frozenset)):
            told.append(" ".join(sorted(self.deep(member, depth) for member in value)))
        elif isinstance(value, CONSTANTS):  # of a subclass
            told.append(_constant(value))
        elif kind.__flags__ & (1 << 9) == 0 and not hasattr(value, "__dict__"):
            raise OpaqueError(f"an object of {_name(kind)} cannot be told from another")
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            told.append(self._pairs(held.items(), depth))
        for name in _slots(kind):
            if hasattr(value, name):
                told.append(f"{name}={self.deep(getattr(value, name), depth)}")
        if not told:
            raise OpaqueError(f"an object of {_name(kind)} cannot be told from another")
        return f"{self.of_class(kind)}({' '.join(told)})"

    def _all(self, values: Iterable[object], depth: int) -> str:
        return f"[{','.join(self.deep(value, depth) for value in values)}]"

    def _pairs(self, pairs: Iterable[tuple[object, object]], depth: int) -> str:
        told = (f"{self.deep(key, depth)}:{self.deep(value, depth)}" for key, value in pairs)
        return "{" + ",".join(told) + "}"

    def _tensor(self, tensor: torch.Tensor, depth: int) -> str:
        if torch.nn.parameter.is_lazy(tensor):
            raise OpaqueError("a tensor has no size yet")
        text = layout_of(tensor)
        held = {name: value for name, value in vars(tensor).items() if not name.startswith("_dynamo")}
        if held:
            text += self._pairs(held.items(), depth)
        if id(tensor) in self._known:
            return text
        try:
            values = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
        except (RuntimeError, TypeError) as error:
            raise OpaqueError(f"a tensor has no values to look at: {error}") from error
        return f"{text} {hashlib.sha256(values.tobytes()).hexdigest()}"

    # ------------------------------------------------------------------ code
    def _function(self, function: types.FunctionType, depth: int) -> str:
        closure = []
        for cell in function.__closure__ or ():
            try:
                closure.append(self.deep(cell.cell_contents, depth))
            except ValueError:  # not yet bound
                closure.append("unbound")
        defaults = self._all((function.__defaults__, function.__kwdefaults__), depth)
        return f"function {function.__module__} {self.of_code(function.__code__)} {defaults} [{','.join(closure)}]"

    def of_class(self, kind: type) -> str:
        """Return the description of a class: its bases, and what its body says."""
        known = self._classes.get(kind)
        if known is not None:
            return known
        self._classes[kind] = f"class {_name(kind)}"  # what it says of itself
        bodies = [self._body_of(base) for base in kind.__mro__ if base.__flags__ & (1 << 9)]
        described = f"class {_name(kind)} {_digest(*map(_name, kind.__mro__), *bodies)}"
        self._classes[kind] = described
        return described

    def _body_of(self, kind: type) -> str:
        """Return a digest of what is written in a class."""
        known = self._bodies.get(kind)
        if known is None:
            known = self._bodies[kind] = _digest(self._body(kind))
        return known

    def _body(self, kind: type) -> str:
        """Describe what is written in a class: functions by their code, constants, of other attributes their class."""
        told = []
        for name, value in vars(kind).items():
            if name not in _OF_A_CLASS:
                told.append(f"{name}={self._written(value)}")
        return " ".join(sorted(told))

    def _written(self, value: object) -> str:
        """Describe what stands in the body of a class; objects that are read get a description of their own."""
        if type(value) in CONSTANTS:
            return _constant(value)
        if isinstance(value, types.FunctionType):
            return self._written_function(value)
        if isinstance(value, (staticmethod, classmethod)):
            return f"{type(value).__name__} {self._written(value.__func__)}"
        if isinstance(value, property):
            return f"property {[self._written(one) for one in (value.fget, value.fset, value.fdel)]}"
        if isinstance(value, functools.cached_property):
            return f"cached {self._written(value.func)}"
        return f"of {_name(type(value))}"

    def _written_function(self, function: types.FunctionType) -> str:
        if id(function) in self._open:
            return "itself"
        self._open.add(id(function))
        inner = [cell.cell_contents for cell in function.__closure__ or () if _is_bound(cell)]
        functions = [self._written(one) for one in inner if isinstance(one, types.FunctionType)]
        defaults = [_constant(one) for one in function.__defaults__ or () if type(one) in CONSTANTS]
        self._open.discard(id(function))
        return f"{self.of_code(function.__code__)}{functions}{defaults}"

    def of_code(self, code: types.CodeType) -> str:
        """Return a digest of code, with where it is written: lines of the user's stand in programs."""
        known = self._code_digests.get(code)
        if known is None:
            self.codes.add(code)
            # The constants in an order of their own: that of frozen sets is another one in each process.
            constants = [
                self.of_code(one) if isinstance(one, types.CodeType) else ordered(one) for one in code.co_consts
            ]
            known = self._code_digests[code] = _digest(
                code.co_filename, code.co_firstlineno, code.co_qualname, code.co_code.hex(), code.co_linetable.hex(),
                code.co_exceptiontable.hex(), code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars,
                code.co_flags, code.co_argcount, code.co_kwonlyargcount, constants,
            )
        return known

    # ------------------------------------------------------------------ what is seen of an object at one place
    def shallow(self, value: object) -> str:
        """Return what can be seen of an object without looking into what it holds, which is described by itself.

        Raises:
            OpaqueError: It cannot be described.
        """
        if isinstance(value, CONSTANTS) and type(value) in CONSTANTS:
            return _constant(value)
        if isinstance(value, (*_OF_TORCH, enum.Enum, torch.Tensor, type, types.CodeType, types.FunctionType)):
            return Describer.deep(self._anew(), value)
        if isinstance(value, (types.ModuleType, *_BUILTINS)):
            return Describer.deep(self._anew(), value)
        kind, told = type(value), []
        if isinstance(value, (dict, types.MappingProxyType)):
            told.append(str([self._key(key) for key in value]))
        elif isinstance(value, (list, tuple, collections.deque)):
            told.append(str([self._key(member) for member in value]))
        elif isinstance(value, (set, frozenset)):
            told.append(str(sorted(self._key(member) for member in value)))
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict):
            told.append(str(sorted(held)))
        return f"{self.of_class(kind)} {told}"

    def _anew(self) -> Describer:
        """Return a describer that has seen no objects, and knows the same code."""
        other = Describer()
        other.codes, other._known = self.codes, self._known
        other._classes, other._bodies, other._code_digests = self._classes, self._bodies, self._code_digests
        return other

    def _key(self, value: object) -> str:
        return _constant(value) if type(value) in CONSTANTS else f"of {_name(type(value))}"


def layout_of(tensor: torch.Tensor) -> str:
    """Return class, type, sizes, strides, device of a tensor, and whether it wants a gradient."""
    strides = tensor.stride() if tensor.layout is torch.strided else ""
    return (
        f"{_name(type(tensor))} {tensor.dtype} {tuple(tensor.shape)} {strides} {tensor.device} {tensor.layout} "
        f"{tensor.requires_grad} {tensor.is_leaf} {tensor.is_conj()} {tensor.is_neg()}"
    )


def _digest(*parts: object) -> str:
    return hashlib.sha256("\x1f".join(map(str, parts)).encode("utf-8", "backslashreplace")).hexdigest()[:32]


def _constant(value: object) -> str:
    return f"{type(value).__name__} {value!r}"


def ordered(value: object) -> str:
    """Return the text of constants within one another; members of sets are sorted: their order differs by process."""
    if isinstance(value, (frozenset, set)):
        return f"{type(value).__name__} {sorted(map(ordered, value))}"
    if isinstance(value, (tuple, list)):
        return f"{type(value).__name__} ({','.join(map(ordered, value))})"
    if isinstance(value, dict):
        return f"dict {[(ordered(key), ordered(held)) for key, held in value.items()]}"
    return _constant(value)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _builtin(value: Any) -> str:
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    of = owner.__name__ if isinstance(owner, (type, types.ModuleType)) else ""
    if owner is not None and not of:
        raise OpaqueError(f"{value!r} belongs to an object")
    return f"builtin {getattr(value, '__module__', '')} {of}.{getattr(value, '__qualname__', value.__name__)}"


def _is_bound(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _slots(kind: type) -> list[str]:
    names = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]
