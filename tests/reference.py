"""The judge of meaning: evaluates a graph op by op with torch on the host, floating types in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType

TORCH_DTYPES = {
    DType.HALF: torch.float64, DType.FLOAT: torch.float64, DType.INT: torch.int32, DType.LONG: torch.int64,
    DType.SHORT: torch.int16, DType.CHAR: torch.int8, DType.UNSIGNED_CHAR: torch.uint8, DType.BOOL: torch.bool,
}

# What our own ops mean, by target: (op, values of its inputs) -> results.
OURS: dict[str, Callable[[Op, list[torch.Tensor]], Sequence[torch.Tensor]]] = {
    "ipu.cast.default": lambda op, values: [values[0].to(torch_dtype(op.outputs[0].dtype))],
}


def torch_dtype(dtype: DType) -> torch.dtype:
    """Return the type a tensor has here: float64 for every floating type."""
    return TORCH_DTYPES[dtype]


def evaluate(
    graph: Graph, values: Mapping[Tensor, torch.Tensor],
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Evaluate a graph.

    Args:
        graph: The graph.
        values: A value for each of its inputs.

    Returns:
        The outputs, and the next value of each updated state in the order of ``graph.updates``.
    """
    known = {tensor: values[tensor].to(torch_dtype(tensor.dtype)) for tensor in graph.inputs}
    for op in graph.ops:
        results = run_op(op, [known[tensor] for tensor in op.inputs])
        for tensor, result in zip(op.outputs, results, strict=True):
            assert tuple(result.shape) == tensor.shape, f"{op.kind} gave {tuple(result.shape)}, not {tensor.shape}"
            assert result.dtype == torch_dtype(tensor.dtype), f"{op.kind} gave {result.dtype}, not {tensor.dtype}"
            known[tensor] = result
    return [known[tensor] for tensor in graph.outputs], [known[value] for _, value in graph.updates]


def random_values(graph: Graph, seed: int = 0) -> dict[Tensor, torch.Tensor]:
    """Draw a value for each floating input of a graph."""
    generator = torch.Generator().manual_seed(seed)
    return {t: torch.randn(t.shape, dtype=torch.float64, generator=generator) for t in graph.inputs}


def assert_same_values(graph: Graph, other: Graph) -> None:
    """Assert that two graphs of the same inputs give the same outputs and updates, bit for bit."""
    values = random_values(graph)
    for before, after in zip(evaluate(graph, values), evaluate(other, values), strict=True):
        torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True)


def run_op(op: Op, values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Run one op and return those of its results that are present."""
    if op.target in OURS:
        return list(OURS[op.target](op, values))
    namespace, name, variant = op.target.split(".")
    function = getattr(getattr(getattr(torch.ops, namespace), name), variant)
    arguments, keywords = _arguments(op, function._schema, values)
    results = function(*arguments, **keywords)
    return [results] if isinstance(results, torch.Tensor) else [result for result in results if result is not None]


def _arguments(op: Op, schema: Any, values: list[torch.Tensor]) -> tuple[list[object], dict[str, object]]:
    """Bind operands and attributes to the schema; attributes that it lacks are notes of our passes."""
    bound = _bound_operands(op, values)
    bound.update({name: _to_torch(value) for name, value in op.attrs.items()})
    given = [(argument, bound[argument.name]) for argument in schema.arguments if argument.name in bound]
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    assert [argument.name for argument, _ in given if not argument.kwarg_only] == [
        argument.name for argument in positional[: sum(not argument.kwarg_only for argument, _ in given)]
    ], f"{op.target} lacks an argument"
    return (
        [value for argument, value in given if not argument.kwarg_only],
        {argument.name: value for argument, value in given if argument.kwarg_only},
    )


def _bound_operands(op: Op, values: list[torch.Tensor]) -> dict[str, object]:
    rest = iter(values)
    bound: dict[str, object] = {}
    for operand in op.operands:
        name, bracket, marks = operand.partition("[")
        bound[name] = [next(rest) if mark == "x" else None for mark in marks[:-1]] if bracket else next(rest)
    assert next(rest, None) is None, f"{op.kind} has more inputs than operands"
    return bound


def _to_torch(value: object) -> object:
    return torch_dtype(value) if isinstance(value, DType) else value
