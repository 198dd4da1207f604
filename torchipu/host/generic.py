"""The generic codelet's host side: an ATen op on torch views of the arena."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from torchipu.errors import ExecutionError
from torchipu.host import complex_calls, functional_calls
from torchipu.ir.graph import Op, operand_width
from torchipu.ir.types import DType
from torchipu.optable.generic import EFFECT_TOKEN

TORCH_DTYPES = {
    DType.HALF: torch.float16, DType.FLOAT: torch.float32, DType.INT: torch.int32, DType.LONG: torch.int64,
    DType.SHORT: torch.int16, DType.CHAR: torch.int8, DType.UNSIGNED_CHAR: torch.uint8, DType.BOOL: torch.bool,
    DType.BFLOAT: torch.bfloat16,
}

LARGEST_HALF = torch.finfo(torch.float16).max


@cache
def overload(target: str) -> torch._ops.OpOverload:
    """Return the torch overload that an op's target names, such as ``aten.add.Tensor``."""
    namespace, name, variant = target.split(".")
    if namespace == "torchipu" and name.startswith(complex_calls.PREFIX):
        return complex_calls.operator(name)
    if namespace == functional_calls.NAMESPACE:
        return functional_calls.operator(target)
    found: torch._ops.OpOverload = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    return found


@cache
def _function(target: str) -> Callable[..., Any]:
    """Return what is called for an op's target."""
    _, name, _ = target.split(".")
    return complex_calls.function(name) if target.startswith(f"torchipu.{complex_calls.PREFIX}") else overload(target)


@cache
def _arguments_of(target: str) -> tuple[tuple[str, bool, bool], ...]:
    """Return the arguments of an overload: name, whether it is given by that alone, whether it may be left out."""
    arguments = overload(target)._schema.arguments
    return tuple((one.name, one.kwarg_only, one.has_default_value()) for one in arguments)


def to_torch(value: object) -> object:
    """Replace our element types by torch's within an attribute."""
    return TORCH_DTYPES[value] if isinstance(value, DType) else value


def call_arguments(op: Op, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
    """Rebuild the keyword arguments of an op's ATen call.

    Args:
        op: The op; ``operands`` and ``attrs`` name its arguments by the schema.
        tensors: Values of ``op.inputs``, in order.

    Returns:
        Arguments by name; those absent from the schema are left out.
    """
    schema = _arguments_of(op.target)
    names = {name for name, _, _ in schema}
    arguments = {name: to_torch(value) for name, value in op.attrs.items() if name in names}
    position = 0
    for operand in op.operands:
        width = operand_width(operand)
        given = tensors[position : position + width]
        position += width
        if "[" in operand:
            name, marks = operand[:-1].split("[")
            members = iter(given)
            arguments[name] = [next(members) if mark == "x" else None for mark in marks]
        elif operand != EFFECT_TOKEN:
            arguments[operand] = given[0]
    for name, _, has_default in schema:
        # An optional tensor that the call leaves out has no default in some schemas.
        if name not in arguments and not has_default:
            arguments[name] = None
    return arguments


def call_aten(op: Op, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run an op through ATen and return the results that are present."""
    arguments = call_arguments(op, tensors)
    positional = []
    for name, is_by_name, _ in _arguments_of(op.target):
        if is_by_name or name not in arguments:
            break
        positional.append(arguments.pop(name))
    results = _function(op.target)(*positional, **arguments)
    listed = list(results) if isinstance(results, (list, tuple)) else [results]
    if EFFECT_TOKEN in op.operands:
        listed.insert(0, tensors[op.operands.index(EFFECT_TOKEN)])
    present = op.attrs.get("present")
    if isinstance(present, tuple) and len(present) == len(listed):
        # Some kernels compute what their mask turns off.
        listed = [result for result, is_present in zip(listed, present, strict=True) if is_present]
    return [result for result in listed if isinstance(result, torch.Tensor)]


def bind_generic(
    op: Op, inputs: Sequence[Callable[[], torch.Tensor]], outputs: Sequence[Callable[[], torch.Tensor]],
) -> Callable[[], None]:
    """Return a callable that runs an op and writes its results in place.

    It raises ExecutionError where ATen refuses the values.

    Args:
        op: The op.
        inputs: What gives each operand of a run.
        outputs: What gives the memory of each result.
    """

    def run() -> None:
        with torch.no_grad():
            try:
                results = call_aten(op, [operand() for operand in inputs])
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # torch checks a matrix, as in eager
                raise
            except (IndexError, RuntimeError, ValueError) as error:
                raise ExecutionError(
                    f"{op.target}: {str(error).splitlines()[0]}", source=op.source, block=op.placement,
                    remedy="check the values that the op reads against what it allows",
                ) from error
            for output, result in zip(outputs, results, strict=True):
                kept = output()
                kept.copy_(result)
                if kept.dtype is torch.float16:
                    _treat_overflow(kept, op.attrs.get("half_overflow"))

    return run


def _treat_overflow(result: torch.Tensor, treatment: object) -> None:
    """Make of infinities what the machine makes of results beyond 65504; see `torchipu.passes.precision`."""
    if treatment == "saturate":
        result.clamp_(-LARGEST_HALF, LARGEST_HALF)
    elif treatment == "nan":
        result.masked_fill_(result.isinf(), torch.nan)
