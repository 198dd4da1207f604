"""Nested arguments and results: which tensors they hold, how to put others in their place, how they are compared."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from torchipu.poptorch.poptorch_core import createPoptorchError


class ICustomArgParser(ABC):
    """Says which tensors an object of a user's class holds; see `registerCustomArgParser`."""

    @abstractmethod
    def yieldTensors(self, struct: Any) -> Iterator[torch.Tensor]:
        """Yield every tensor of an object, always in the same order."""

    @abstractmethod
    def reconstruct(self, original_structure: Any, tensor_iterator: Iterator[torch.Tensor]) -> Any:
        """Return an object like another one with other tensors.

        Args:
            original_structure: The object to copy.
            tensor_iterator: Its tensors, in the order of `yieldTensors`.
        """


_PARSERS: dict[type, ICustomArgParser] = {}


def registerCustomArgParser(arg_type: type, arg_parser: ICustomArgParser | None) -> None:
    """Let objects of a class be arguments and results of models.

    Args:
        arg_type: The class; its subclasses are meant too unless they have a parser of their own.
        arg_parser: What knows their tensors; None takes the parser away.
    """
    if arg_parser is None:
        _PARSERS.pop(arg_type, None)
        return
    if not isinstance(arg_parser, ICustomArgParser):
        raise createPoptorchError("arg_parser must inherit from ICustomArgParser")
    _PARSERS[arg_type] = arg_parser


_FOLLOWERS: list[Callable[[torch.Tensor, Any], None]] = []


def followTensors(follower: Callable[[torch.Tensor, Any], None]) -> None:
    """Let a function know of each tensor of an argument, result or batch and of what takes its place.

    Args:
        follower: Called with the tensor and with its stand-in at capture, or the rows of several batches.
    """
    if follower not in _FOLLOWERS:
        _FOLLOWERS.append(follower)


def take_the_place(tensor: torch.Tensor, made: Any) -> Any:
    """Return what takes the place of a tensor, once those who asked for it know."""
    for follower in _FOLLOWERS:
        follower(tensor, made)
    return made


def registered() -> dict[type, ICustomArgParser]:
    """Return the parsers by class, for instance to give them to another process."""
    return dict(_PARSERS)


def parser_of(value: Any) -> ICustomArgParser | None:
    """Return the parser registered for an object's class, or None."""
    found = _PARSERS.get(type(value))
    if found is None and _PARSERS:
        found = next((parser for kind, parser in _PARSERS.items() if isinstance(value, kind)), None)
    return found


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a nested value in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif (parser := parser_of(value)) is not None:
        yield from parser.yieldTensors(value)
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from tensors_in(member)
    elif isinstance(value, dict):
        for member in value.values():
            yield from tensors_in(member)


def with_tensors(value: Any, tensors: Iterator[Any]) -> Any:
    """Return a nested value like another one, its tensors replaced by those of an iterator."""
    if isinstance(value, torch.Tensor):
        return take_the_place(value, next(tensors))
    if (parser := parser_of(value)) is not None:
        return parser.reconstruct(value, tensors)
    if isinstance(value, tuple):
        members = [with_tensors(member, tensors) for member in value]
        return _tuple_like(value, members)
    if isinstance(value, list):
        members = [with_tensors(member, tensors) for member in value]
        return members if type(value) is list else type(value)(members)
    if isinstance(value, dict):
        if type(value) is dict:
            return {key: with_tensors(member, tensors) for key, member in value.items()}
        twin = copy.copy(value)
        for key, member in value.items():
            twin[key] = with_tensors(member, tensors)
        return twin
    return value


def _tuple_like(value: tuple[Any, ...], members: list[Any]) -> Any:
    if type(value) is tuple or type(value).__module__ == "torch.return_types":
        return tuple(members)
    if hasattr(value, "_fields"):
        return type(value)(*members)
    return type(value)(members)


# ---------------------------------------------------------------------- comparing with what was compiled
ADVICE = (
    "This error occurred because the inputs passed at runtime don't match the inputs used to compile the model.\n"
    "To recompile the model for the new inputs create a new inferenceModel / trainingModel wrapper or call destroy() "
    "on the current one and try again."
)


def collect(expected: Any, value: Any, name: str, found: list[torch.Tensor]) -> None:
    """Check that a value is like the one the model was compiled with, and gather its tensors.

    Args:
        expected: The value at compilation; its tensors need no memory.
        value: The value of this call.
        name: What messages call it.
        found: Receives the tensors, in the order of ``expected``.

    Raises:
        Error: They differ in type, length, keys, element type, shape or value.
    """
    if isinstance(expected, torch.Tensor):
        if not isinstance(value, torch.Tensor):
            raise _type_mismatch(name, expected, value)
        if value.dtype != expected.dtype:
            raise _mismatch(f"Data type mismatch for {name}: expected {expected.dtype} but got {value.dtype}")
        if value.shape != expected.shape:
            raise _mismatch(f"Shape mismatch for {name}: expected {expected.shape} but got {value.shape}")
        found.append(value)
        return
    if type(expected) is not type(value) and not _is_parsed_alike(expected, value):
        raise _type_mismatch(name, expected, value)
    if isinstance(expected, dict) and parser_of(expected) is None:
        _collect_dict(expected, value, name, found)
    elif isinstance(expected, (tuple, list)) or parser_of(expected) is not None:
        _collect_members(expected, value, name, found)
    elif expected is not value and not _equal(expected, value):
        raise _mismatch(f"Value mismatch for {name}: expected {expected} but got {value}")


def _is_parsed_alike(expected: Any, value: Any) -> bool:
    """Whether a value is of a subclass that its parser has turned into the class at compilation."""
    parser = parser_of(expected)
    return parser is not None and parser_of(value) is parser and isinstance(value, type(expected))


def _collect_members(expected: Any, value: Any, name: str, found: list[torch.Tensor]) -> None:
    # Tuples and lists are compared member by member; of custom objects only the tensors count.
    is_known = isinstance(expected, (tuple, list)) and parser_of(expected) is None
    wanted = list(expected) if is_known else list(tensors_in(expected))
    given = list(value) if is_known else list(tensors_in(value))
    if len(wanted) != len(given):
        raise _mismatch(f"Length mismatch for {name}: expected {len(wanted)} elements but got {len(given)}")
    for index, (one, other) in enumerate(zip(wanted, given, strict=True)):
        collect(one, other, f"{name}[{index}]", found)


def _collect_dict(expected: dict[Any, Any], value: dict[Any, Any], name: str, found: list[torch.Tensor]) -> None:
    check_keys(expected, value, name)
    for key, member in expected.items():
        collect(member, value[key], f"{name}[{key}]", found)


def check_keys(expected: dict[Any, Any], value: dict[Any, Any], name: str) -> None:
    """Raise Error unless two dictionaries have the same keys, in any order."""
    extra = [str(key) for key in value if key not in expected]
    missing = [str(key) for key in expected if key not in value]
    if extra or missing:
        parts = [f"Unexpected arguments: {', '.join(extra)}."] if extra else []
        parts += [f"Missing arguments: {', '.join(missing)}."] if missing else []
        raise _mismatch(f"Keys mismatch for {name}: {' '.join(parts)}")


def _equal(expected: Any, value: Any) -> bool:
    try:
        return bool(expected == value)
    except (TypeError, ValueError, RuntimeError):
        return False


def _type_mismatch(name: str, expected: Any, value: Any) -> Exception:
    wanted = torch.Tensor if isinstance(expected, torch.Tensor) else type(expected)
    return _mismatch(f"Type mismatch for {name}: expected {wanted} but got {type(value)}")


def _mismatch(message: str) -> Exception:
    return createPoptorchError(f"{message.removesuffix('.')}.\n{ADVICE}")


def flattenTensorStructure(tensors: Any) -> list[torch.Tensor]:
    """Return the tensors of a nested value in order.

    Args:
        tensors: Tuples, lists, dicts and objects of classes that `registerCustomArgParser` knows, nested at will.
    """
    return list(tensors_in(tensors))


def reconstructTensorStructure(original_structure: Any, values: Iterable[torch.Tensor]) -> Any:
    """Return a nested value like another one, with other tensors.

    Args:
        original_structure: The value to copy.
        values: Its tensors, in the order of `flattenTensorStructure`.
    """
    return with_tensors(original_structure, iter(values))
