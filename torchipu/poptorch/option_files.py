"""Options out of files and JSON: read as calls of setters, and never executed as code."""

from __future__ import annotations

import ast
import enum
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchipu.poptorch import enums, strategies
from torchipu.poptorch.option_groups import TensorLocationSettings
from torchipu.poptorch.option_values import OptionsDict
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
_CHAINABLE = (OptionsDict, strategies.Stage, strategies.Phase, strategies._IExecutionStrategy)


class ConfigFileError(Exception):
    """A line of an options file is no call of a setter."""


def load_file(options: OptionsDict, path: str | Path) -> None:
    """Apply a file, line by line: ``replicationFactor(2)``, ``Training.gradientAccumulation(4)``.

    Args:
        options: What the lines are applied to.
        path: The file. Empty lines and lines that begin with ``#`` are left out.

    Raises:
        ConfigFileError: A line is no Python, or more than calls of setters with constants.
    """
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
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
    """Return the value of an expression that is made of constants, the names above and calls of setters."""
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
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Name(id="options"):
            return options
        case ast.Attribute():
            return _attribute(node, options)
        case ast.Call(func=ast.Attribute() as function, args=arguments, keywords=keywords):
            return _call(function, arguments, keywords, options)
        case _:
            raise _RefusedError(f"{ast.unparse(node)!r} is neither constant nor setter")


def _attribute(node: ast.Attribute, options: OptionsDict) -> Any:
    """Return a member of an enumeration, a type of torch, a class of `_CLASSES`, or a group of options."""
    match node:
        case ast.Attribute(value=ast.Name(id="torch"), attr=name) if name in _DTYPES:
            return _DTYPES[name]
        case ast.Attribute(value=ast.Name(id="poptorch"), attr=name) if name in _CLASSES:
            return _CLASSES[name]
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="poptorch"), attr=kind), attr=name) if kind in _ENUMS:
            return getattr(_ENUMS[kind], name)
        case ast.Attribute(value=ast.Name(id="poptorch" | "torch")):
            raise _RefusedError(f"{ast.unparse(node)} is not available here")
    owner = _evaluate(node.value, options)
    if not isinstance(owner, _CHAINABLE) or node.attr.startswith("_") and node.attr != "_Popart":
        raise _RefusedError(f"{ast.unparse(node)} is no option")
    return getattr(owner, node.attr)


def _call(
    function: ast.Attribute, arguments: list[ast.expr], keywords: list[ast.keyword], options: OptionsDict
) -> Any:
    """Call a setter or a class of `_CLASSES`."""
    if any(isinstance(argument, ast.Starred) for argument in arguments) or any(word.arg is None for word in keywords):
        raise _RefusedError("it unpacks arguments")
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
