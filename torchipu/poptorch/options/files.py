"""Options out of files and JSON: read as calls of setters, and never executed as code."""

from __future__ import annotations

import ast
import enum
import json
import operator
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from torchipu.poptorch import enums
from torchipu.poptorch.options import strategies
from torchipu.poptorch.options.tensor_locations import TensorLocationSettings
from torchipu.poptorch.options.values import OptionsDict
from torchipu.poptorch.poptorch_core import createPoptorchError

# What a line may call besides setters, and what else of poptorch and torch it may name.
_CLASSES = {
    "TensorLocationSettings": TensorLocationSettings,
    **{
        name: getattr(strategies, name)
        for name in ("Phase", "PipelinedExecution", "ParallelPhasedExecution", "SerialPhasedExecution",
                     "ShardedExecution", "Stage")
    },
}
_ENUMS = {name: kind for name, kind in vars(enums).items() if isinstance(kind, type) and issubclass(kind, enum.Enum)}
_DTYPES = {name: getattr(torch, name) for name in ("float", "float16", "float32", "half")}
_BUILTINS = {kind.__name__: kind for kind in (bool, int, float, str, list, tuple, set, dict)} | {
    function.__name__: function for function in (abs, max, min, round)
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
}
LARGEST_EXPONENT = 64
"""Of a power with whole operands in a line: larger ones may need all memory, and no option is as large."""
_CHAINABLE = (OptionsDict, strategies.Stage, strategies.Phase, strategies._IExecutionStrategy)


class ConfigFileError(Exception):
    """A line of an options file is no call of a setter."""


def load_file(options: OptionsDict, path: str | Path) -> None:
    """Apply a file, line by line: ``replicationFactor(2)``, ``Training.gradientAccumulation(4)``.

    Args:
        options: What the lines are applied to.
        path: The file. Empty lines and lines that begin with ``#`` are left out.

    Raises:
        ConfigFileError: The file is no text, or a line is no Python or is more than calls of setters with constants.
        Exception: What a setter raises, with a note of the line.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is no file of options, which is text: {error}") from error
    for number, line in enumerate(content.splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        try:
            parsed = ast.parse(f"options.{text}")
        except (SyntaxError, ValueError) as error:
            raise ConfigFileError(f"SyntaxError at line {number} of {path}: {error}") from error
        try:
            _run(parsed, options)
        except _RefusedError as refusal:
            raise ConfigFileError(
                f"line {number} of {path} is not read: {refusal}; a line is a call of a setter with constants, such "
                "as Training.gradientAccumulation(4)"
            ) from None
        except Exception as error:  # a setter's own, which also say where it was called
            error.add_note(f"line {number} of {path}: {text[:200]}")
            raise


class _RefusedError(Exception):
    """What the line holds that is not read."""


def _run(parsed: ast.Module, options: OptionsDict) -> None:
    """Carry out one line."""
    if len(parsed.body) != 1:
        raise _RefusedError("it holds several statements")
    match parsed.body[0]:
        case ast.Expr(value=expression):
            _evaluate(expression, options)
        case ast.Assign(targets=[ast.Attribute(value=owner, attr=name)], value=value) if not name.startswith("_"):
            setattr(_evaluate(owner, options), name, _evaluate(value, options))
        case statement:
            raise _RefusedError(f"{type(statement).__name__} is no call")


def _evaluate(node: ast.expr, options: OptionsDict) -> Any:
    """Return the value of an expression made of constants, arithmetic, the names above and calls of setters."""
    match node:
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items):
            return [_evaluate(item, options) for item in items]
        case ast.Tuple(elts=items):
            return tuple(_evaluate(item, options) for item in items)
        case ast.Set(elts=items):
            return {_evaluate(item, options) for item in items}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {
                _evaluate(key, options): _evaluate(value, options)
                for key, value in zip(keys, values, strict=True) if key is not None
            }
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_evaluate(operand, options))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _ARITHMETIC:
            return _calculate(sign, _evaluate(left, options), _evaluate(right, options))
        case ast.Name(id="options"):
            return options
        case ast.Attribute():
            return _attribute(node, options)
        case ast.Call(func=ast.Attribute() | ast.Name() as function, args=arguments, keywords=keywords):
            return _call(function, arguments, keywords, options)
        case _:
            raise _RefusedError(f"{ast.unparse(node)!r} is neither constant nor setter")


def _calculate(sign: ast.operator, left: Any, right: Any) -> Any:
    """Return the result of an operator on numbers; ``+`` also joins texts and lists."""
    is_number = all(isinstance(value, (int, float)) for value in (left, right))
    is_joined = isinstance(sign, ast.Add) and type(left) is type(right) and isinstance(left, (str, list, tuple))
    if not is_number and not is_joined:
        raise _RefusedError(f"{left!r} and {right!r} are no numbers")
    if isinstance(sign, ast.Pow) and abs(right) > LARGEST_EXPONENT:
        raise _RefusedError(f"the exponent {right} is larger than {LARGEST_EXPONENT}")
    return _ARITHMETIC[type(sign)](left, right)


def _attribute(node: ast.Attribute, options: OptionsDict) -> Any:
    """Return a member of an enumeration, a type of torch, a class of `_CLASSES`, or a group of options."""
    match node:
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _DTYPES:
            return _DTYPES[name]
        case ast.Attribute(value=ast.Name(id="poptorch"), attr=name) if name in _CLASSES or name in _ENUMS:
            return _CLASSES.get(name) or _ENUMS[name]
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="poptorch"), attr=kind), attr=name) if kind in _ENUMS:
            return getattr(_ENUMS[kind], name)
        case ast.Attribute(value=ast.Name(id="poptorch" | "torch")):
            raise _RefusedError(f"{ast.unparse(node)} is not available here")
    owner = _evaluate(node.value, options)
    if not isinstance(owner, _CHAINABLE) or node.attr.startswith("_") and node.attr != "_Popart":
        raise _RefusedError(f"{ast.unparse(node)} is no option")
    return getattr(owner, node.attr)


def _call(
    function: ast.Attribute | ast.Name, arguments: list[ast.expr], keywords: list[ast.keyword], options: OptionsDict
) -> Any:
    """Call a setter, a class of `_CLASSES`, an enumeration or one of `_BUILTINS`."""
    if any(isinstance(argument, ast.Starred) for argument in arguments) or any(word.arg is None for word in keywords):
        raise _RefusedError("it unpacks arguments")
    if isinstance(function, ast.Name):
        if function.id not in _BUILTINS:
            raise _RefusedError(f"{function.id} is not available here")
        callee: Any = _BUILTINS[function.id]
    else:
        callee = _attribute(function, options)
    return callee(
        *(_evaluate(argument, options) for argument in arguments),
        **{str(word.arg): _evaluate(word.value, options) for word in keywords},
    )


def apply_json(options: OptionsDict, text: str) -> None:
    """Apply a JSON object of setters' names and arguments: ``{"Training.gradientAccumulation": 4}``.

    Args:
        options: What they are applied to.
        text: The JSON. A list gives several arguments; a text such as ``OutputMode.All`` gives a member.

    Raises:
        poptorch.Error: It is no JSON object, or a name is no setter.
        AttributeError: A name is unknown.
    """
    try:
        settings = json.loads(text)
    except json.JSONDecodeError as error:
        raise createPoptorchError(f"The options are not valid JSON: {error}") from error
    if not isinstance(settings, dict):
        raise createPoptorchError(f"The options must be a JSON object, not {type(settings).__name__}")
    _apply(options, settings, "")


def _apply(owner: Any, settings: Mapping[str, Any], path: str) -> None:
    for name, value in settings.items():
        accessor = owner
        for part in name.split("."):
            if part.startswith("_") and part != "_Popart":
                raise AttributeError(f"Invalid private attribute {path}{name}")
            accessor = getattr(accessor, part)
        if isinstance(accessor, OptionsDict) and isinstance(value, dict):
            _apply(accessor, value, f"{path}{name}.")
            continue
        if not callable(accessor) or isinstance(accessor, OptionsDict):
            raise createPoptorchError(f"{path}{name} is no setter")
        accessor(*map(_value, value)) if isinstance(value, list) else accessor(_value(value))


def _value(value: Any) -> Any:
    """Return a member of an enumeration or a type for its name; anything else as it is."""
    if not isinstance(value, str):
        return value
    kind, _, member = value.removeprefix("poptorch.").rpartition(".")
    if kind in _ENUMS and member in _ENUMS[kind].__members__:
        return _ENUMS[kind][member]
    if kind == "torch" and member in _DTYPES:
        return _DTYPES[member]
    return value
