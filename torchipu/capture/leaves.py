"""Values that forward makes to differentiate by, however it says so: Dynamo itself takes ``requires_grad_()`` alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.variables import builtin
from torch._dynamo.variables.base import VariableTracker
from torch._dynamo.variables.constant import ConstantVariable
from torch._dynamo.variables.tensor import TensorVariable
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._dynamo.variables.user_defined import UserDefinedClassVariable

MAKERS: Sequence[Callable[..., Any]] = (
    torch.arange, torch.empty, torch.empty_like, torch.eye, torch.full, torch.full_like, torch.linspace, torch.logspace,
    torch.ones, torch.ones_like, torch.rand, torch.rand_like, torch.randn, torch.randn_like, torch.tensor, torch.zeros,
    torch.zeros_like,
)
"""Functions of torch that take ``requires_grad``."""


def register() -> None:
    """Let Dynamo trace ``x.requires_grad = True``, ``requires_grad=True`` of `MAKERS` and `torch.autograd.Variable`."""
    handlers = TorchInGraphFunctionVariable._get_handlers()
    for maker in MAKERS:
        handlers[maker] = _made(handlers.get(maker))
    if hasattr(builtin, "SetAttrBuiltinVariable"):
        builtin.SetAttrBuiltinVariable._call_setattr = _set(  # type: ignore[method-assign]
            builtin.SetAttrBuiltinVariable._call_setattr,
        )
    UserDefinedClassVariable.call_function = _variable(  # type: ignore[method-assign]
        UserDefinedClassVariable.call_function,
    )


def of_arguments_too(self: TensorVariable, tx: Any, requires_grad: Any = True) -> VariableTracker:
    """Trace ``requires_grad_``; what was an argument is, from then on, a value that forward has made of it."""
    wanted = requires_grad if isinstance(requires_grad, bool) else requires_grad.as_python_constant()
    is_parameter = issubclass(self.python_type(), torch.nn.Parameter)  # which a step would have to train then
    if not self.source or not wanted or self.requires_grad or is_parameter:
        return _PLAIN(self, tx, requires_grad)
    made = self.call_method(tx, "detach", [], {})
    self.proxy = made.as_proxy()
    made.call_method(tx, "requires_grad_", [ConstantVariable.create(True)], {})
    self.requires_grad = True
    return self


_PLAIN = TensorVariable.method_requires_grad_


def _asked(kwargs: Mapping[str, VariableTracker]) -> bool:
    asked = kwargs.get("requires_grad")
    return asked is not None and asked.is_constant_match(True)


def _made(plain: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return what makes a tensor, and then asks for its gradient."""

    def handle(handled: Any, tx: Any, *args: VariableTracker, **kwargs: VariableTracker) -> VariableTracker | None:
        if not _asked(kwargs):
            return None if plain is None else plain(handled, tx, *args, **kwargs)
        others = {name: value for name, value in kwargs.items() if name != "requires_grad"}
        made = handled.call_function(tx, list(args), others)
        leaf: VariableTracker = made.call_method(tx, "requires_grad_", [ConstantVariable.create(True)], {})
        return leaf

    return handle


def _set(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what sets an attribute: ``requires_grad`` by its method, and ``data`` unless nothing changes by that."""

    def call_setattr(
        self: Any, tx: Any, obj: VariableTracker, name: VariableTracker, value: VariableTracker,
    ) -> VariableTracker | None:
        if isinstance(obj, TensorVariable) and name.is_constant_match("requires_grad") and value.is_python_constant():
            obj.call_method(tx, "requires_grad_", [value], {})
            return value
        if name.is_constant_match("data") and _is_itself(obj, value):
            return value
        result: VariableTracker | None = plain(self, tx, obj, name, value)
        return result

    return call_setattr


def _is_itself(obj: VariableTracker, value: VariableTracker) -> bool:
    """Whether a tensor has what it is given for its data already, as in ``weight.data *= mask``."""
    if not (isinstance(obj, TensorVariable) and isinstance(value, TensorVariable)):
        return False
    own, given = (one.as_proxy().node.meta["example_value"] for one in (obj, value))
    return (
        own.untyped_storage()._cdata == given.untyped_storage()._cdata and own.dtype == given.dtype
        and (own.shape, own.stride(), own.storage_offset()) == (given.shape, given.stride(), given.storage_offset())
    )


def _variable(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Return what calls a class, and makes a leaf of a tensor for `torch.autograd.Variable`."""

    def call_function(
        self: UserDefinedClassVariable, tx: Any, args: Sequence[VariableTracker], kwargs: Mapping[str, VariableTracker],
    ) -> VariableTracker:
        result: VariableTracker
        if self.value is not torch.autograd.Variable or len(args) != 1 or kwargs.keys() - {"requires_grad"}:
            result = plain(self, tx, args, kwargs)
            return result
        result = args[0].call_method(tx, "detach", [], {})
        asked = kwargs.get("requires_grad", ConstantVariable.create(False))
        return result.call_method(tx, "requires_grad_", [asked], {})

    return call_function
