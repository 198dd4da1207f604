"""Graphs as plain data that JSON can hold, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.types import DType, Leg, Role, Source


def graph_to_data(graph: Graph) -> dict[str, Any]:
    """Return a graph as dicts, lists, numbers and text.

    Tensors are listed once and named by their number; so are the user's lines, which most ops share with others.
    """
    tensors: dict[Tensor, int] = {}
    sources: dict[Source, int] = {}

    def number(tensor: Tensor) -> int:
        return tensors.setdefault(tensor, len(tensors))

    def line(source: Source) -> int:
        return sources.setdefault(source, len(sources))

    data = _graph_to_data(graph, number, line)
    return {
        **data, "tensors": [[t.name, list(t.shape), t.dtype.name, t.role.name] for t in tensors],
        "sources": [list(asdict(source).values()) for source in sources],
    }


def graph_from_data(data: Mapping[str, Any]) -> Graph:
    """Return the graph that `graph_to_data` has written.

    Raises:
        KeyError: The data is of another kind.
    """
    tensors = [Tensor(name, tuple(shape), DType[dtype], Role[role]) for name, shape, dtype, role in data["tensors"]]
    return _graph_from_data(data, tensors, list(map(_source, data.get("sources", ()))))


def _graph_to_data(
    graph: Graph, number: Callable[[Tensor], int], line: Callable[[Source], int],
) -> dict[str, Any]:
    return {
        "name": graph.name,
        "inputs": [number(tensor) for tensor in graph.inputs],
        "ops": [_op_to_data(op, number, line) for op in graph.ops],
        "outputs": [number(tensor) for tensor in graph.outputs],
        "updates": [[number(state), number(value)] for state, value in graph.updates],
    }


def _graph_from_data(data: Mapping[str, Any], tensors: list[Tensor], sources: list[Source]) -> Graph:
    return Graph(
        data["name"], tuple(tensors[n] for n in data["inputs"]), tuple(tensors[n] for n in data["outputs"]),
        tuple(_op_from_data(op, tensors, sources) for op in data["ops"]),
        tuple((tensors[state], tensors[value]) for state, value in data["updates"]),
    )


def _op_to_data(op: Op, number: Callable[[Tensor], int], line: Callable[[Source], int]) -> dict[str, Any]:
    return {
        "kind": op.kind, "target": op.target, "inputs": [number(tensor) for tensor in op.inputs],
        "outputs": [number(tensor) for tensor in op.outputs], "operands": list(op.operands),
        "attrs": {name: plain(value) for name, value in op.attrs.items()}, "leg": op.leg.name,
        "source": line(op.source), "block": None if op.block is None else list(op.block),
        "placement": None if op.placement is None else [
            op.placement.block, op.placement.ipu, op.placement.stage, op.placement.leg.name,
        ],
        "bodies": [_graph_to_data(body, number, line) for body in op.bodies],
    }


def _op_from_data(data: Mapping[str, Any], tensors: list[Tensor], sources: list[Source]) -> Op:
    place, block, source = data["placement"], data["block"], data["source"]
    return Op(
        data["kind"], tuple(tensors[n] for n in data["inputs"]), tuple(tensors[n] for n in data["outputs"]),
        {name: _value(value) for name, value in data["attrs"].items()}, data["target"], tuple(data["operands"]),
        # Files of earlier versions have the line with each op.
        sources[source] if isinstance(source, int) else _source(source),
        None if place is None else Placement(place[0], place[1], place[2], Leg[place[3]]),
        Leg[data["leg"]],
        None if block is None else (block[0], block[1]),
        tuple(_graph_from_data(body, tensors, sources) for body in data["bodies"]),
    )


def _source(data: Sequence[Any]) -> Source:
    """Return where an op was written; files of earlier versions have no callers."""
    callers = tuple((str(file), int(line), str(code)) for file, line, code in data[4]) if len(data) > 4 else ()
    file, line, code, module = data[:4]
    return Source(file, line, code, module, callers)


def plain(value: object) -> object:
    """Return an attribute as JSON can hold it: tuples and element types are marked.

    Raises:
        TypeError: It is no data.
    """
    if isinstance(value, DType):
        return {"dtype": value.name}
    if isinstance(value, tuple):
        return {"tuple": [plain(member) for member in value]}
    if isinstance(value, list):
        return [plain(member) for member in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an attribute of type {type(value).__name__} cannot be written to a file")


def _value(data: Any) -> object:
    if isinstance(data, dict):
        return DType[data["dtype"]] if "dtype" in data else tuple(_value(member) for member in data["tuple"])
    if isinstance(data, list):
        return [_value(member) for member in data]
    return data
