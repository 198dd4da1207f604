"""From a call's arguments to those of ``forward``: names, defaults and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from torchipu.poptorch.arguments import structure
from torchipu.poptorch.poptorch_core import createPoptorchError

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(slots=True)
class Arguments:
    """Arguments in the order of ``forward``'s parameters.

    Attributes:
        positional: All that can be given by position, defaults included.
        keyword: The others by name, defaults included.
        names: What messages call the positional ones.
        by_position: How many of the positional ones the call gave by position; None for all.
        left_out: Names of those that the call left to their defaults.
    """

    positional: list[Any]
    keyword: dict[str, Any] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)
    by_position: int | None = None
    left_out: frozenset[str] = frozenset()

    def call(self, model: Callable[..., Any]) -> Any:
        """Call a model as the user did: what wraps its forward may tell arguments by name from those by position."""
        if self.by_position is None:
            return model(*self.positional, **self.keyword)
        named = dict(zip(self.names[self.by_position:], self.positional[self.by_position:], strict=True))
        kept = {name: value for name, value in {**named, **self.keyword}.items() if name not in self.left_out}
        return model(*self.positional[: self.by_position], **kept)

    def tensors(self) -> list[torch.Tensor]:
        """Return every tensor in order."""
        return list(structure.tensors_in((tuple(self.positional), self.keyword)))

    def named_tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Return every tensor with the name of its argument."""
        named = [*zip(self.names, self.positional, strict=True), *self.keyword.items()]
        return [(name, tensor) for name, value in named for tensor in structure.tensors_in(value)]

    def with_tensors(self, tensors: list[Any]) -> Arguments:
        """Return the same arguments with other tensors."""
        members = iter(tensors)
        positional = [structure.with_tensors(value, members) for value in self.positional]
        keyword = {name: structure.with_tensors(value, members) for name, value in self.keyword.items()}
        return Arguments(positional, keyword, self.names, self.by_position, self.left_out)

    def collect(self, other: Arguments) -> list[torch.Tensor]:
        """Return the tensors of another call in this one's order.

        Raises:
            Error: That call differs from this one in anything but the values of its tensors.
        """
        if len(self.positional) != len(other.positional):
            raise createPoptorchError(
                f"Number of positional arguments mismatch: expected {len(self.positional)} arguments but got "
                f"{len(other.positional)}.\n{structure.ADVICE}"
            )
        found: list[torch.Tensor] = []
        for name, expected, value in zip(self.names, self.positional, other.positional, strict=True):
            structure.collect(expected, value, name, found)
        if self.keyword or other.keyword:
            structure.check_keys(self.keyword, other.keyword, "keyword arguments")
            for name, expected in self.keyword.items():
                structure.collect(expected, other.keyword[name], name, found)
        return found


class ArgsParser:
    """Knows the parameters of a model.

    Args:
        model: A module or another callable.

    Raises:
        TypeError: It is not callable, or its parameters cannot be known.
    """

    def __init__(self, model: Callable[..., Any]) -> None:
        self.signature = _signature(model)
        parameters = list(self.signature.parameters.values())
        self.positional = [p for p in parameters if p.kind in _POSITIONAL]
        self.keyword_only = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
        self.variadic = next((p.name for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL), None)
        self.takes_any_keyword = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
        self.names = [p.name for p in self.positional]
        self.by_keyword = {p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD}

    def parse(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        """Sort a call's arguments.

        Raises:
            AssertionError: Too many arguments, an unknown name, or one given twice.
            Error: One that has no default is missing.
        """
        if not kwargs and len(args) == len(self.names) and not self.keyword_only:
            return Arguments(list(args), {}, self.names)
        self._check(args, kwargs)
        rest = dict(kwargs)
        values = list(args)
        for parameter in self.positional[len(args):]:
            values.append(self._take(parameter, rest, args, kwargs))
        names = self.names + [f"*{self.variadic}[{index}]" for index in range(len(values) - len(self.names))]
        keyword = {parameter.name: self._take(parameter, rest, args, kwargs) for parameter in self.keyword_only}
        if self.variadic is not None:
            return Arguments(values, {**keyword, **rest}, names)
        defaults = [p for p in (*self.positional[len(args):], *self.keyword_only) if p.name not in kwargs]
        left_out = frozenset(p.name for p in defaults if not list(structure.tensors_in(p.default)))
        return Arguments(values, {**keyword, **rest}, names, len(args), left_out)

    def _take(
        self, parameter: inspect.Parameter, rest: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any],
    ) -> Any:
        if parameter.name in rest and parameter.kind is not inspect.Parameter.POSITIONAL_ONLY:
            return rest.pop(parameter.name)
        if parameter.default is not inspect.Parameter.empty:
            return parameter.default
        if self.variadic is not None:
            self.signature.bind(*args, **kwargs)  # Python's own TypeError
        raise createPoptorchError(f"Mandatory parameter {parameter.name} missing")

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        allowed = self.names + [p.name for p in self.keyword_only]
        given = len(args) + len(kwargs)
        for name in kwargs:
            if name in self.names[: len(args)] and name in self.by_keyword:
                raise AssertionError(f"{name} was passed more than once")
            if not self.takes_any_keyword and name not in allowed:
                raise AssertionError(f"{name} is not a valid parameter. Allowed values: {', '.join(allowed)}")
        is_too_many = len(args) > len(self.names) or (given > len(allowed) and not self.takes_any_keyword)
        if self.variadic is None and is_too_many:
            raise AssertionError(
                f"Too many arguments provided: expected {allowed} ({len(allowed)}) but got {given}"
            )


def _signature(model: Callable[..., Any]) -> inspect.Signature:
    """Return the parameters of a model; of a builtin that tells none: any."""
    if isinstance(model, torch.nn.Module):
        return inspect.signature(model.forward)
    if not callable(model):
        raise TypeError(f"a model must be a torch.nn.Module or a callable, got {type(model).__name__}")
    if isinstance(model, type) and issubclass(model, torch.nn.Module):
        name = model.__name__
        raise TypeError(f"a model must be a torch.nn.Module, got the class {name} itself: make one, as by {name}()")
    try:
        return inspect.signature(model)
    except ValueError:
        return inspect.signature(lambda *args, **kwargs: None)
