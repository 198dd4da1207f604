"""Runs a Graph op by op through ATen, as a judge that shares nothing with the host planner."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from torchipu.ir.graph import Graph, Op, Tensor, operand_width
from torchipu.ir.types import DType

TORCH = {
    DType.HALF: torch.float16, DType.FLOAT: torch.float32, DType.INT: torch.int32, DType.LONG: torch.int64,
    DType.SHORT: torch.int16, DType.CHAR: torch.int8, DType.UNSIGNED_CHAR: torch.uint8, DType.BOOL: torch.bool,
}


def evaluate(graph: Graph, given: Mapping[Tensor, torch.Tensor]) -> dict[Tensor, torch.Tensor]:
    """Return the value of every tensor of a graph."""
    values = {tensor: value.detach().to(TORCH[tensor.dtype]) for tensor, value in given.items()}
    for op in graph.ops:
        results = call(op, values)
        listed = results if isinstance(results, (list, tuple)) else [results]
        present = [result for result in listed if isinstance(result, torch.Tensor)]
        for tensor, result in zip(op.outputs, present, strict=True):
            assert tuple(result.shape) == tensor.shape, (op.target, result.shape, tensor.shape)
            assert result.dtype == TORCH[tensor.dtype], (op.target, result.dtype, tensor.dtype)
            values[tensor] = result.contiguous()
    return values


def call(op: Op, values: Mapping[Tensor, torch.Tensor]) -> object:
    """Call the ATen overload of an op by the names of its schema."""
    namespace, name, variant = op.target.split(".")
    overload = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    arguments = {key: TORCH[v] if isinstance(v, DType) else v for key, v in op.attrs.items() if key != "present"}
    position = 0
    for operand in op.operands:
        members = iter(op.inputs[position : position + operand_width(operand)])
        position += operand_width(operand)
        if "[" in operand:
            key, marks = operand[:-1].split("[")
            arguments[key] = [values[next(members)] if mark == "x" else None for mark in marks]
        else:
            arguments[operand] = values[next(members)]
    positional = [
        arguments.get(a.name) for a in overload._schema.arguments if not a.kwarg_only and a.name != "memory_format"
    ]
    named = {a.name: arguments[a.name] for a in overload._schema.arguments if a.kwarg_only and a.name in arguments}
    with torch.no_grad():
        return overload(*positional, **named)
