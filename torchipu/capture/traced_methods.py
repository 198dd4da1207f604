"""Methods that Dynamo traces by a source of ours: of modules, and of tensors.

`torch.compiler.substitute_in_graph` covers functions that a model looks up by name. A method of a module is one that
Dynamo takes from the class, and one of a tensor has no source at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable

from torchipu.capture.known_constants import answered

_STANDS_IN = "_torchdynamo_inline"
"""Attribute of a function: what Dynamo traces when that function is called. `torch.jit.script` sets it too."""
_OF_TENSORS: dict[str, Callable[..., Any]] = {}


def register(of_modules: Mapping[Callable[..., Any], Callable[..., Any]], of_tensors: Mapping[str, Any]) -> None:
    """Tell Dynamo what to trace; eager code does not come here.

    Args:
        of_modules: For a method of a module, as its class has it, a function of the same parameters without defaults
            that differ: Dynamo guards those of the method.
        of_tensors: For the name of a method a function that takes the tensor first.
    """
    for method, ours in of_modules.items():
        setattr(method, _STANDS_IN, ours)
    if not _OF_TENSORS:
        _look_at_calls()
        _forget_where_constants_were_read()
    _OF_TENSORS.update(of_tensors)


def _look_at_calls() -> None:
    """Let Dynamo ask `_OF_TENSORS` before it puts a call of a tensor's method into the graph."""
    plain = TensorVariable.call_method

    def call_method(self: TensorVariable, tx: Any, name: str, args: Any, kwargs: Any) -> VariableTracker:
        answer = answered(tx, name, [self, *args], kwargs)
        if answer is not None:
            return answer
        ours = _OF_TENSORS.get(name)
        if ours is None:
            return plain(self, tx, name, args, kwargs)
        return VariableTracker.build(tx, ours).call_function(tx, [self, *args], kwargs)

    TensorVariable.call_method = call_method  # type: ignore[method-assign]


def _forget_where_constants_were_read() -> None:
    """Let None, true and false be from nowhere.

    Dynamo holds one of each for all programs, and notes on it where an attribute of a tensor had that value, such as
    the ``grad`` of a weight: the next function that returns None would look there, at variables of another function.
    """
    plain = TensorVariable.var_getattr

    def var_getattr(self: TensorVariable, tx: Any, name: str) -> VariableTracker:
        value = plain(self, tx, name)
        if isinstance(value, ConstantVariable) and (value.value is None or isinstance(value.value, bool)):
            value.source = None
        return value

    TensorVariable.var_getattr = var_getattr  # type: ignore[method-assign]
