"""What Dynamo looked at while it captured a model, as places that another process can look at too.

Dynamo notes everything that a graph depends on as guards: each has a source, an expression such as
``L['self']._modules['fc'].weight``. Here the expressions become a table of places, each reached from one before it, and
what was found there becomes a digest. Nothing of a file is evaluated: a place is an attribute, a member or a class.
"""

from __future__ import annotations

import ast
import builtins
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._dynamo import functional_export
from torch._dynamo.convert_frame import _get_frame
from torch._guards import Source

from torchipu.cache.described import CONSTANTS, Describer, OpaqueError
from torchipu.capture.process_wide import replaced

STATES = frozenset({
    "GRAD_MODE", "DETERMINISTIC_ALGORITHMS", "DEFAULT_DEVICE", "GLOBAL_STATE", "TORCH_FUNCTION_STATE",
    "AUTOGRAD_SAVED_TENSORS_HOOKS", "SHAPE_ENV", "FSDP_TRAINING_STATE", "DUAL_LEVEL", "FUNCTORCH_STACK_MATCH",
})
"""Guards of what holds for all of torch, which the key of an entry has; sizes are fixed."""
SEEN_FROM_OUTSIDE = frozenset({
    "TYPE_MATCH", "CLASS_MATCH", "TENSOR_MATCH", "CLOSURE_MATCH", "FUNCTION_MATCH", "BUILTIN_MATCH", "MODULE_MATCH",
    "HASATTR", "DICT_CONTAINS", "DICT_NOT_CONTAINS", "NOT_PRESENT_IN_GENERIC_DICT", "EMPTY_NN_MODULE_HOOKS_DICT",
    "DICT_KEYS_MATCH", "DICT_CONST_KEYS", "SEQUENCE_LENGTH", "DUPLICATE_INPUT", "NN_MODULE", "BOOL_MATCH", "NONE_MATCH",
    "MAPPING_KEYS_CHECK", "SET_CONTAINS", "SET_NOT_CONTAINS", "OBJECT_ALIASING", "NOT_NONE_MATCH",
})
"""Guards that hold as long as an object looks the same from outside, and is the same as at the same other places."""
WHOLE = frozenset({"ID_MATCH", "CONSTANT_MATCH", "EQUALS_MATCH"})
"""Guards on an object itself, with all that it holds."""
BUILTINS = "__builtins_dict__"
NAMED_BY_DYNAMO = re.compile(r"__import_|_\d+_c\d+$")
"""Names of modules that Dynamo has put among those of the model's own."""


@contextmanager
def noting() -> Iterator[list[Any]]:
    """Yield a list that gets what Dynamo says of each capture of this thread."""
    found: list[Any] = []
    capture: Any = functional_export.fullgraph_capture  # type: ignore[attr-defined]

    def noted(*args: Any, **kwargs: Any) -> Any:
        found.append(capture(*args, **kwargs))
        return found[-1]

    with replaced(functional_export, "fullgraph_capture", noted):
        yield found


class Frame:
    """Where places begin: arguments of the frame that Dynamo captures, and names of its module.

    Args:
        module: The model.
        args: Of the call.
        kwargs: Of the call.

    Raises:
        OpaqueError: Its forward is no Python function.
    """

    def __init__(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        try:
            frame = _get_frame(module, args, dict(kwargs))
        except (RuntimeError, TypeError, ValueError) as error:
            raise OpaqueError(str(error)) from error
        self.locals, self.globals, self.code = frame.locals, frame.globals, frame.code

    def root(self, kind: str, name: str) -> object:
        """Return a local, a global, a module that is loaded or the names that Python brings along."""
        names: Mapping[str, Mapping[str, object]]
        names = {"L": self.locals, "G": self.globals, "module": sys.modules, "builtins": {"": vars(builtins)}}
        held = names.get(kind, {})
        if name not in held:
            raise OpaqueError(f"there is no {kind} {name}")
        return held[name]


class Places:
    """A table of places; each is ``[how, where from, what]``, JSON data.

    Attributes:
        table: The places, those that others are reached from first.
        wanted: Numbers of those that are described, with whether the whole object is.
    """

    def __init__(self, table: Sequence[Sequence[Any]] = (), wanted: Sequence[Sequence[Any]] = ()) -> None:
        self.table: list[list[Any]] = [list(place) for place in table]
        self.wanted: list[list[Any]] = [list(one) for one in wanted]
        self._numbers: dict[str, int] = {}

    # ------------------------------------------------------------------ from guards
    @classmethod
    def of_guards(cls, guards: Sequence[Any], frame: Frame) -> Places:
        """Return the places that guards look at.

        Raises:
            OpaqueError: One of them looks at something in a way that is not known here.
        """
        places, wanted = cls(), dict[int, bool]()
        for guard in guards:
            kind = guard.create_fn_name()
            if kind in STATES:
                continue
            if kind not in SEEN_FROM_OUTSIDE and kind not in WHOLE:
                raise OpaqueError(f"guards of kind {kind} are not known")
            for source in _sources_of(guard):
                number = places._place(ast.parse(source, mode="eval").body, frame)
                wanted[number] = wanted.get(number, False) or kind in WHOLE
        places.wanted = [[number, whole] for number, whole in wanted.items()]
        return places

    def _place(self, node: ast.expr, frame: Frame) -> int:
        """Return the number of an expression's place, which is entered with those that lead there."""
        text = ast.unparse(node)
        if text not in self._numbers:
            place = self._entered(node, frame)
            self._numbers[text] = len(self.table)
            self.table.append(place)
        return self._numbers[text]

    def _entered(self, node: ast.expr, frame: Frame) -> list[Any]:
        match node:
            case ast.Subscript(value=ast.Name(id=("L" | "G") as kind), slice=ast.Constant(value=str(name))):
                return _root(kind, name, frame)
            case ast.Attribute(value=inner, attr=name):
                return ["attribute", self._place(inner, frame), name]
            case ast.Subscript(value=inner, slice=ast.Constant(value=key)) if isinstance(key, (int, str, type(None))):
                return ["member", self._place(inner, frame), key]
            case ast.Subscript(value=inner, slice=key):
                return ["member at", self._place(inner, frame), self._place(key, frame)]
            case ast.Call(func=ast.Name(id=("type" | "dict" | "list" | "tuple") as how), args=[inner], keywords=[]):
                return [how, self._place(inner, frame), None]
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id="dict"), attr="keys"), args=[inner], keywords=[],
            ):
                return ["keys", self._place(inner, frame), None]
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=("dict" | "list" | "tuple") as base), attr="__getitem__"),
                args=[inner, ast.Constant(value=key)], keywords=[],
            ) if isinstance(key, (int, str, type(None))):
                return [f"{base} member", self._place(inner, frame), key]
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=("dict" | "list" | "tuple") as base), attr="__getitem__"),
                args=[inner, key], keywords=[],
            ):
                return [f"{base} member at", self._place(inner, frame), self._place(key, frame)]
        raise OpaqueError(f"{ast.unparse(node)} is no place that can be found again")

    # ------------------------------------------------------------------ looking
    def seen(self, frame: Frame, describer: Describer) -> list[str]:
        """Return what is found at each wanted place, and which of them hold the same object.

        Raises:
            OpaqueError: A place is not there, or what is found there cannot be described.
        """
        found: list[Any] = []
        try:
            for how, source, what in self.table:
                found.append(_step(how, source, what, found, frame))
            same: dict[int, int] = {}
            told = []
            for number, whole in self.wanted:
                value = found[number]
                text = describer._anew().deep(value) if whole else describer.shallow(value)
                alias = "" if type(value) in CONSTANTS else f" ={same.setdefault(id(value), len(same))}"
                told.append(text + alias)
        except OpaqueError:
            raise
        except Exception as error:  # an attribute that is not there, or whose getter raises; a damaged table
            raise OpaqueError(f"a place is not there: {error}") from error
        return told


def _sources_of(guard: Any) -> list[str]:
    """Return the expressions that a guard looks at: one, or two that have to be the same object."""
    arguments = getattr(guard.create_fn, "keywords", {})
    others = [value.name for value in arguments.values() if isinstance(value, Source)]
    positional = [value.name for value in getattr(guard.create_fn, "args", ()) if isinstance(value, Source)]
    return [guard.name, *others, *positional]


def _root(kind: str, name: str, frame: Frame) -> list[Any]:
    """Return the place of a name; Dynamo puts names of its own among those of a module."""
    if kind == "G" and name.startswith(BUILTINS):
        return ["root", "builtins", ""]
    if kind == "G" and NAMED_BY_DYNAMO.match(name):
        module = frame.globals.get(name)
        if not isinstance(module, types.ModuleType) or sys.modules.get(module.__name__) is not module:
            raise OpaqueError(f"{name} is no module that is loaded")
        return ["root", "module", module.__name__]
    return ["root", kind, name]


def _step(how: str, source: Any, what: Any, found: Sequence[Any], frame: Frame) -> Any:
    """Return what is at a place."""
    if how == "root":
        return frame.root(source, what)
    held = found[source]
    match how:
        case "attribute":
            return getattr(held, what)
        case "member":
            return held[what]
        case "member at":
            return held[found[what]]
        case "type":
            return type(held)
        case "dict":
            return dict(held)
        case "list":
            return list(held)
        case "tuple":
            return tuple(held)
        case "keys":
            return dict.keys(held)
        case "dict member" | "dict member at":
            return dict.__getitem__(held, what if how == "dict member" else found[what])
        case "list member" | "list member at":
            return list.__getitem__(held, what if how == "list member" else found[what])
        case "tuple member" | "tuple member at":
            return tuple.__getitem__(held, what if how == "tuple member" else found[what])
    raise OpaqueError(f"{how} leads nowhere")
