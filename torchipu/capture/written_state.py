"""Bodies of control flow that write into tensors of the model: what is written becomes a result of the body.

Dynamo leaves a write into a buffer within a body as it is. AOT autograd finds it, and wraps the call so that the
buffer's last value is returned beside the results; here that wrapper is taken off again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from torchipu.capture.fx_source import source_of
from torchipu.capture.mutating_ops import unwrap_mutation
from torchipu.errors import UnsupportedOpError

higher_order = torch.ops.higher_order
WRAPPER = higher_order.auto_functionalized_v2
CONTROL = frozenset({higher_order.cond, higher_order.while_loop, higher_order.scan, higher_order.map_impl})
WRITERS = frozenset({higher_order.cond, higher_order.while_loop})
MUTATED = "mutated_arg_indices"
COPY = torch.ops.aten.copy_.default
_PLAIN = frozenset({"_all_bases", "_op_schema"})


# ---------------------------------------------------------------------- before AOT autograd
def batch_norm(
    input: torch.Tensor, running_mean: torch.Tensor | None, running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> torch.Tensor:
    """Normalise as `torch.nn.functional.batch_norm` does, by a call that says what it writes into.

    Within a body torch's own call keeps it to itself, and the running statistics would stay as they were.
    """
    if not training or running_mean is None or running_var is None:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    called = torch.ops.aten._native_batch_norm_legit.default
    result: torch.Tensor = called(input, weight, bias, running_mean, running_var, True, momentum, eps)[0]
    return result


def tell_writes(module: GraphModule) -> set[Node]:
    """Let batch normalisations in bodies of control flow say that they write into their statistics.

    Args:
        module: A torch-level graph; those that its calls of control flow run are changed.

    Returns:
        What is written into by these calls.

    Raises:
        UnsupportedOpError: One is in the body of a call that cannot write.
    """
    written: set[Node] = set()
    for node in module.graph.nodes:
        if node.op != "call_function" or node.target not in CONTROL:
            continue
        operands = [value for value in pytree.tree_leaves(node.args) if not _is_graph(module, value)]
        operands = operands[1:] if node.target is higher_order.cond else operands
        places = {place for body in _bodies(module, node) for place in _tell(body)}
        if places and node.target not in WRITERS:
            raise UnsupportedOpError(
                f"{_name(node)}: its body normalises a batch and writes running statistics, {operands[min(places)]}",
                op=node.format_node(), source=source_of(node),
                remedy="write them in a loop that torch lets write, torch.while_loop, or call eval() of the layer",
            )
        if places and node.target is higher_order.while_loop:
            known = {int(place) for place in node.kwargs.get("mutated_arg_indices", "").split(",") if place}
            node.kwargs = {**node.kwargs, MUTATED: ",".join(map(str, sorted(known | places)))}
        written |= {operands[place] for place in places}
    module.recompile()
    return written


def has_loops(module: torch.nn.Module) -> bool:
    """Whether a torch-level graph, or one within it, calls torch.while_loop."""
    parts = [part for part in module.modules() if isinstance(part, GraphModule)]
    return any(node.target is higher_order.while_loop for part in parts for node in part.graph.nodes)


def _tell(body: GraphModule) -> set[int]:
    """Change a body; return the places of the inputs that it writes statistics into."""
    written = tell_writes(body)
    for node in body.graph.nodes:
        if node.op == "call_function" and node.target is F.batch_norm:
            node.target = batch_norm
            bound = inspect.signature(batch_norm).bind(*node.args, **node.kwargs).arguments
            if bound.get("training"):
                written |= {bound[name] for name in ("running_mean", "running_var") if bound[name] is not None}
    body.recompile()
    return {place for place, node in enumerate(_placeholders(body)) if node in written}


def _bodies(module: GraphModule, node: Node) -> list[GraphModule]:
    return [_body(module, operand) for operand in node.all_input_nodes if _is_graph(module, operand)]


# ---------------------------------------------------------------------- after AOT autograd
def unwrap_writes(module: GraphModule) -> None:
    """Turn each wrapped call into a plain one that returns what is written: by bodies of cond or while_loop, or an op.

    Raises:
        UnsupportedOpError: A body writes through a view, or into a tensor of which it is given a view too.
    """
    for node in list(module.graph.nodes):
        if node.target is WRAPPER and node.args[0] in WRITERS:
            _unwrap(module, node)
        elif node.target is WRAPPER and isinstance(node.args[0], torch._ops.OpOverload):
            unwrap_mutation(module, node)


def _unwrap(module: GraphModule, node: Node) -> None:
    bases: Sequence[Node] = node.kwargs["_all_bases"]  # type: ignore[assignment]
    kwargs = _whole(module, node, bases)
    names = [argument.name for argument in _schema(module, node).arguments]
    values = [kwargs[name] for name in names]
    bodies = [value for value in values if _is_graph(module, value)]
    operands = [value for value in values if value not in bodies]
    called: Any = node.args[0]
    if called is higher_order.cond:
        test, operands = operands[0], operands[1:]
        places = [operands.index(base) for base in bases]
        for body in bodies:
            _return_writes(_body(module, body), places, node)
        arguments: tuple[Any, ...] = (test, *bodies, operands)
    else:
        num_carried = sum(name.startswith("carried_input") for name in names)
        places = [operands.index(base, num_carried) for base in bases]
        rest = [place for place in range(num_carried, len(operands)) if place not in places]
        order = [*range(num_carried), *places, *rest]
        for body in bodies:
            _reorder(_body(module, body), order)
        carried = range(num_carried, num_carried + len(bases))
        _return_writes(_body(module, bodies[1]), carried, node)
        operands = [operands[place] for place in order]
        arguments = (*bodies, operands[:carried.stop], operands[carried.stop:])
    with module.graph.inserting_before(node):
        plain = module.graph.call_function(called, arguments)
    plain.meta = dict(node.meta)
    node.replace_all_uses_with(plain)
    module.graph.erase_node(node)


def _schema(module: GraphModule, node: Node) -> Any:
    spec: Any = node.kwargs["_op_schema"]
    if isinstance(spec, Node):
        spec = getattr(module, str(spec.target))
    return pytree.tree_unflatten([], spec).schema


def _whole(module: GraphModule, node: Node, bases: Sequence[Node]) -> Mapping[str, Any]:
    """Return the arguments by name, with the tensors that are written into.

    Raises:
        UnsupportedOpError: One of them is a view, or there is a view of one among the others.
    """
    kwargs: dict[str, Any] = {}
    marks: dict[str, Any] = {}
    for name, value in node.kwargs.items():
        if name in _PLAIN:
            continue
        if name.startswith("_") and name.endswith("_base_index"):
            marks[name.removeprefix("_").removesuffix("_base_index")] = value
        elif not name.startswith("_"):
            kwargs[name] = value
    for name, index in marks.items():
        details = [key for key in node.kwargs if key.startswith(f"_{name}_") and not key.endswith("_base_index")]
        if any(not key.endswith("_alias") for key in details):
            raise _refusal(node, bases[index])
        kwargs[name] = bases[index]
    written = set(bases)
    for value in kwargs.values():
        if isinstance(value, Node) and value not in written and _shown(value) in written:
            raise _refusal(node, _shown(value))
    if len([name for name, value in kwargs.items() if value in written]) != len(written):
        raise _refusal(node, bases[0])
    return kwargs


def _shown(node: Node) -> Node:
    """Return the tensor that a node is a view of, or the node itself."""
    while isinstance(node.target, torch._ops.OpOverload) and node.all_input_nodes:
        returned = node.target._schema.returns
        if len(returned) != 1 or returned[0].alias_info is None or returned[0].alias_info.is_write:
            break
        node = node.all_input_nodes[0]
    return node


def _refusal(node: Node, base: Node) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"{_name(node)}: its body writes into {base.name} while a view of it that was taken outside goes in too",
        op=node.format_node(), source=source_of(node), remedy="index the tensor within the body instead",
    )


def _name(node: Node) -> str:
    """Return the name of a call, or of what it wraps."""
    target: Any = node.args[0] if node.target is WRAPPER else node.target
    return getattr(target, "__name__", str(target))


def _is_graph(module: GraphModule, node: Any) -> bool:
    if not isinstance(node, Node) or node.op != "get_attr":
        return False
    return isinstance(getattr(module, str(node.target), None), GraphModule)


def _body(module: GraphModule, node: Node) -> GraphModule:
    found = getattr(module, str(node.target))
    assert isinstance(found, GraphModule)
    return found


def _placeholders(body: GraphModule) -> list[Node]:
    return [node for node in body.graph.nodes if node.op == "placeholder"]


def _return_writes(body: GraphModule, places: Iterable[int], node: Node) -> None:
    """Return the last values of inputs beside the results, instead of copying them back.

    Raises:
        UnsupportedOpError: There is an input that is written into beside those.
    """
    inputs = _placeholders(body)
    wanted = [inputs[place] for place in places]
    last: dict[Node, Node] = {}
    for write in list(body.graph.nodes):
        if write.target is COPY and write.args[0] in inputs:
            if write.args[0] not in wanted:
                raise UnsupportedOpError(
                    f"{_name(node)}: its body writes into {write.args[0].name}, which torch does not give back",
                    op=node.format_node(), source=source_of(node), remedy="return the value from the body",
                )
            last[write.args[0]] = write.args[1]
            write.replace_all_uses_with(write.args[1])
            body.graph.erase_node(write)
    end = body.graph.output_node()
    results = end.args[0] if isinstance(end.args[0], (list, tuple)) else [end.args[0]]
    end.args = ((*results, *(last.get(tensor, tensor) for tensor in wanted)),)
    body.recompile()


def _reorder(body: GraphModule, order: Sequence[int]) -> None:
    """Take inputs in another order."""
    inputs = _placeholders(body)
    first = next(node for node in body.graph.nodes if node.op != "placeholder")
    for place in order:
        first.prepend(inputs[place])
    body.recompile()
