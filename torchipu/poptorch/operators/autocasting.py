"""``poptorch.autocast`` of PopTorch 2.1 to 3.0: regions whose ops are computed in the type that a policy says."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Self

import torch
from torch.overrides import TorchFunctionMode

from torchipu.poptorch.capturing import isRunningOnIpu

HALF = (
    "addbmm", "addmm", "addmv", "addr", "baddbmm", "bmm", "conv1d", "conv2d", "conv3d", "conv_tbc",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution", "linear", "matmul", "mm", "mv",
)
PROMOTED = (
    "addcdiv", "addcmul", "atan2", "bilinear", "cat", "cross", "dot", "equal", "index_put", "stack", "tensordot",
)
FLOATS = (torch.float16, torch.float32)


class Policy:
    """In which type ops are computed within `autocast`.

    Args:
        fp16: Ops whose operands become half, by name or as functions; None for products and convolutions.
        fp32: Ops whose operands become float; None for no ops.
        promote: Ops whose operands take the widest type among them; None for such as add up or join several.
        demote: Ops whose operands take the narrowest type among them; None for no ops.
    """

    def __init__(
        self, fp16: Iterable[Any] | None = None, fp32: Iterable[Any] | None = None,
        promote: Iterable[Any] | None = None, demote: Iterable[Any] | None = None,
    ) -> None:
        self.fp16 = _names(HALF if fp16 is None else fp16)
        self.fp32 = _names(() if fp32 is None else fp32)
        self.promote = _names(PROMOTED if promote is None else promote)
        self.demote = _names(() if demote is None else demote)

    def __repr__(self) -> str:
        return f"Policy({', '.join(f'{name}={sorted(ops)}' for name, ops in vars(self).items())})"

    def dtype_of(self, name: str, dtypes: set[torch.dtype]) -> torch.dtype | None:
        """Return the type for the operands of an op, or None to leave them.

        Args:
            name: Of the function that is called.
            dtypes: Types of its floating-point operands.
        """
        if name in self.fp32:
            return torch.float32
        if name in self.fp16:
            return torch.float16
        if name in self.promote and torch.float32 in dtypes:
            return torch.float32
        if name in self.demote and torch.float16 in dtypes:
            return torch.float16
        return None


def _names(ops: Iterable[Any]) -> frozenset[str]:
    return frozenset(_name(op) if callable(op) else str(op).rpartition(".")[2] for op in ops)


def _name(function: Callable[..., Any]) -> str:
    return {"__matmul__": "matmul", "__rmatmul__": "matmul"}.get(function.__name__, function.__name__)


class autocast(contextlib.ContextDecorator):
    """A region in which ops are computed as the policy of ``Options.Precision.autocastPolicy`` says.

    It takes effect while a model is captured for the IPU, and not in a plain call of the same code.

    Args:
        enabled: False for a region within another one that computes as it is written.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def __enter__(self) -> Self:
        if isRunningOnIpu():
            _REGIONS.set((*_REGIONS.get(), self.enabled))
        return self

    def __exit__(self, *error: object) -> None:
        if isRunningOnIpu():
            _REGIONS.set(_REGIONS.get()[:-1])


_REGIONS: ContextVar[tuple[bool, ...]] = ContextVar("regions", default=())
"""Of this thread, outermost first: whether each computes as the policy says."""


@contextlib.contextmanager
def casting(policy: Policy | None) -> Iterator[None]:
    """Let regions of `autocast` take effect; an executor wraps this around each run of a model that is captured.

    Args:
        policy: None where `Options.Precision.autocastEnabled` has switched them off.
    """
    token = _REGIONS.set(())
    try:
        if policy is None:
            yield
        else:
            with _Casts(policy):
                yield
    finally:
        _REGIONS.reset(token)


class _Casts(TorchFunctionMode):
    """Casts the operands of calls into torch that are made in a region."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if not any(_REGIONS.get()[-1:]):
            return function(*args, **kwargs)
        dtypes = set(_dtypes((args, kwargs)))
        wanted = self.policy.dtype_of(_name(function), dtypes) if dtypes else None
        if wanted is not None and dtypes != {wanted}:
            args, kwargs = _cast(args, wanted), _cast(kwargs, wanted)
        return function(*args, **kwargs)


def _dtypes(value: Any) -> Iterator[torch.dtype]:
    if isinstance(value, torch.Tensor):
        if value.dtype in FLOATS:
            yield value.dtype
    elif isinstance(value, (tuple, list)):
        for member in value:
            yield from _dtypes(member)
    elif isinstance(value, dict):
        for member in value.values():
            yield from _dtypes(member)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype in FLOATS else value
    if type(value) in (tuple, list):
        return type(value)(_cast(member, dtype) for member in value)
    if isinstance(value, dict):
        return {name: _cast(member, dtype) for name, member in value.items()}
    return value


def cast_module(module: torch.nn.Module, enabled: bool = True) -> torch.nn.Module:
    """Let the forward of a module be a region of `autocast`: ``Module.autocast`` of PopTorch 2.1 to 3.0.

    Args:
        module: Changed in place.
        enabled: As for `autocast`.

    Returns:
        The module.
    """
    forward = module.forward

    def within(*args: Any, **kwargs: Any) -> Any:
        with autocast(enabled and isRunningOnIpu()):
            return forward(*args, **kwargs)

    within.__signature__ = _signature(forward)  # type: ignore[attr-defined]
    module.forward = within
    return module


def _signature(function: Callable[..., Any]) -> Any:
    import inspect

    return inspect.signature(function)
