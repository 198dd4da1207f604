"""Control flow that Dynamo emits as higher-order operators: cond, while_loop, scan and map become ops with bodies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from torchipu.capture.bodies import choose, repeat
from torchipu.errors import UnsupportedOpError
from torchipu.ir.graph import Graph, Op, Tensor, walk_ops
from torchipu.ir.types import Leg, Role, Source
from torchipu.optable.control import COND, REPEAT, WHILE
from torchipu.optable.random_streams import draws

higher_order = torch.ops.higher_order


def keep_operands_apart(module: GraphModule) -> None:
    """Copy in a torch-level graph what a loop would be given twice: what it carries changes, and torch refuses both.

    Args:
        module: The graph around; those of bodies are not looked at.
    """
    for node in [one for one in module.graph.nodes if one.target in (higher_order.while_loop, higher_order.scan)]:
        seen: set[Node] = set()

        def once(operand: Node, node: Node = node, seen: set[Node] = seen) -> Node:
            if operand not in seen:
                seen.add(operand)
                return operand
            with module.graph.inserting_before(node):
                copy: Node = module.graph.call_method("clone", (operand,))
            copy.meta.update(operand.meta)
            return copy

        node.args = map_arg(node.args, once)


@dataclass(frozen=True, slots=True)
class Body:
    """A graph that an op runs, as imported.

    Attributes:
        ops: Its ops.
        formals: Its inputs, those that hold constants last.
        results: What it returns: tensors, or Python constants.
        constants: Value of each formal that holds one.
    """

    ops: tuple[Op, ...]
    formals: tuple[Tensor, ...]
    results: tuple[object, ...]
    constants: dict[Tensor, torch.Tensor]


class Importer(Protocol):
    """What is needed of the import of the graph around; implemented in ``capture.fx_import``."""

    def read(self, argument: Any) -> Any:
        """Return what an FX argument stands for."""
        ...

    def body(self, module: GraphModule, name: str, leg: Leg, source: Source, numbers: Mapping[int, object]) -> Body:
        """Import a graph that a node runs; some of its placeholders stand for numbers."""
        ...

    def constant(self, like: Tensor, value: torch.Tensor) -> Tensor:
        """Enter a constant of a body as an input of the whole graph."""
        ...

    def control(self, node: Node, op: Op, slots: list[object]) -> None:
        """Append an op of control flow."""
        ...

    def outputs(self, node: Node, results: object) -> tuple[tuple[Tensor, ...], object, list[bool]]:
        """Return the output tensors, what the node's readers see, and which results are present."""
        ...

    def note_leg(self, node: Node) -> Leg:
        """Return the leg of a node and remember it for its readers."""
        ...

    def line(self, node: Node) -> tuple[Source, tuple[str, int | None] | None]:
        """Return the user's line of a node, and its block."""
        ...


def _cond(node: Node, read: Callable[[Any], Any]) -> _Call:
    pred, then, otherwise, operands = (read(argument) for argument in node.args)
    if not isinstance(pred, Tensor):
        raise _refusal(node, "a condition that is a number at capture", "take the branch in Python, without torch.cond")
    return _Call(COND, {"pred": [pred], "operands": list(operands)}, {"then": then, "else": otherwise})


def _while(node: Node, read: Callable[[Any], Any]) -> _Call:
    test, body, carried, operands = (read(argument) for argument in node.args)
    return _Call(WHILE, {"carried": list(carried), "operands": list(operands)}, {"while": test, "do": body})


def _scan(node: Node, read: Callable[[Any], Any]) -> _Call:
    body, init, xs, operands = (read(argument) for argument in node.args)
    return _Call(REPEAT, {"init": list(init), "xs": list(xs), "operands": list(operands)}, {"do": body})


def _map(node: Node, read: Callable[[Any], Any]) -> _Call:
    body, xs, operands = (read(argument) for argument in node.args)
    return _Call(REPEAT, {"init": [], "xs": list(xs), "operands": list(operands)}, {"do": body})


def _choose(node: Node, read: Callable[[Any], Any]) -> _Call:
    (then, otherwise), _, head, operands = (read(argument) for argument in node.args)
    return _Call(COND, {"pred": list(head), "operands": list(operands)}, {"then": then, "else": otherwise})


def _repeat(node: Node, read: Callable[[Any], Any]) -> _Call:
    (body,), trips, carried, operands = (read(argument) for argument in node.args)
    return _Call(REPEAT, {"init": list(carried), "xs": [], "operands": list(operands)}, {"do": body}, trips)


@dataclass(frozen=True, slots=True)
class _Call:
    """A higher-order call as an op of ours: operands by name in their order, graphs by name, and known trips."""

    target: str
    operands: dict[str, list[Any]]
    modules: dict[str, Any]
    trips: int | None = None


READERS: dict[object, Callable[[Node, Callable[[Any], Any]], _Call]] = {
    higher_order.cond: _cond, higher_order.while_loop: _while, higher_order.scan: _scan, higher_order.map_impl: _map,
    choose: _choose, repeat: _repeat,
}
"""How the arguments of each operator are to be read."""


REMEDIES = {
    "while_loop_stack_output": "the gradient of while_loop needs memory for as many trips as its test will ask for, "
    "which nobody knows before: use scan, whose trips are as many as its rows, or call it under torch.no_grad()",
}
"""What to do about operators that are not served, by name."""


def is_control(target: object) -> bool:
    """Whether an FX target is control flow that becomes an op."""
    return target in READERS


def import_control(node: Node, importer: Importer) -> None:
    """Append the op of a call of control flow.

    Raises:
        UnsupportedOpError: A loop carries a number, or the backward would have to repeat random draws.
    """
    call = READERS[node.target](node, importer.read)
    given = [operand for name, group in call.operands.items() if name != "pred" for operand in group]
    numbers = {place: operand for place, operand in enumerate(given) if not isinstance(operand, Tensor)}
    call.operands["operands"] = [operand for operand in call.operands["operands"] if isinstance(operand, Tensor)]
    carried = [operand for group in call.operands.values() for operand in group if not isinstance(operand, Tensor)]
    if carried:
        raise _refusal(node, f"{carried[0]!r} among what a loop carries", "give it as a tensor: torch.tensor(...)")
    leg, (source, block) = importer.note_leg(node), importer.line(node)
    bodies = {
        name: importer.body(module, f"{node.name}.{name}", leg, source, numbers)
        for name, module in call.modules.items()
    }
    if leg is Leg.BACKWARD and any(_draws(body) for body in bodies.values()):
        raise _refusal(
            node, "random draws within control flow that is differentiated",
            "draw before the call and hand the numbers in: the backward would draw others than the forward",
        )
    constants = [(formal, value) for body in bodies.values() for formal, value in body.constants.items()]
    extra = [importer.constant(formal, value) for formal, value in constants]
    outputs, slots, present = importer.outputs(node, _listed(node.meta.get("val")))
    graphs = []
    for position, (name, body) in enumerate(bodies.items()):
        results: Sequence[object] = body.results
        if not (call.target == WHILE and position == 0):
            results = [result for result, there in zip(results, present, strict=True) if there]
        wrong = next((result for result in results if not isinstance(result, Tensor)), None)
        if any(not isinstance(result, Tensor) for result in results):
            raise _refusal(node, f"a body that returns {wrong!r}", "return a tensor: torch.tensor(...)")
        formals = [formal for formal in body.formals if formal not in body.constants]
        formals += [formal if formal in body.constants else _unread(formal, body, position) for formal, _ in constants]
        graphs.append(Graph(name, tuple(formals), tuple(r for r in results if isinstance(r, Tensor)), body.ops))
    groups = {**call.operands, "operands": [*call.operands["operands"], *extra]}
    op = Op(
        _kind(call.target), tuple(tensor for group in groups.values() for tensor in group), outputs,
        {"trips": _trips(call, groups)} if call.target == REPEAT else {}, call.target,
        tuple(name if name == "pred" else f"{name}[{'x' * len(group)}]" for name, group in groups.items()),
        source, None, leg, block, tuple(graphs),
    )
    importer.control(node, op, slots if isinstance(slots, list) else [slots])


def _kind(target: str) -> str:
    return target.split(".")[1]


def _trips(call: _Call, groups: dict[str, list[Any]]) -> int:
    if call.trips is not None:
        return call.trips
    return int(groups["xs"][0].shape[0]) if groups["xs"] else 0


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def _unread(formal: Tensor, body: Body, position: int) -> Tensor:
    """Return the input of a body that stands for a constant of another one."""
    return Tensor(f"{formal.name}.unread{position}", formal.shape, formal.dtype, Role.CONSTANT)


def _draws(body: Body) -> bool:
    return any(draws(op) for op in walk_ops(body.ops))


def _refusal(node: Node, what: str, remedy: str) -> UnsupportedOpError:
    name = getattr(node.target, "__name__", str(node.target))
    return UnsupportedOpError(f"{name}: {what} cannot be captured", op=node.format_node(), remedy=remedy)
