"""Parts of complex numbers that go through the same operators, which are one operator on the pairs as they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten


def join_parts(module: GraphModule) -> None:
    """Compute what both parts of pairs ``[..., 2]`` go through alike on the pairs, in place.

    To take parts out, every other element, and to lay them side by side again takes longer than a sum or a move does.
    Only what ends in pairs is joined: what computes with parts keeps them in registers.

    Args:
        module: ATen graph of real values; each has a fake value in ``node.meta["val"]``.
    """
    module.graph.eliminate_dead_code()
    joining = _Joining(module.graph)
    for node in module.graph.find_nodes(op="call_function", target=aten.stack.default):
        parts, dim = node.args[0], (*node.args, 0)[1]
        if len(parts) != 2 or not all(isinstance(part, Node) for part in parts):
            continue
        if dim % node.meta["val"].dim() != parts[0].meta["val"].dim():
            continue
        with module.graph.inserting_before(node):
            pairs = joining.joined(*parts)
        if pairs is not None and pairs.meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(pairs)
    module.graph.eliminate_dead_code()
    module.recompile()


class _Joining:
    """Makes operators on pairs of those on parts.

    Args:
        graph: Which they are added to, where that inserts.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def joined(self, real: Node, imaginary: Node) -> Node | None:
        """Return the pairs that two values are the parts of; None where these are computed in different ways."""
        if real is imaginary or real.target is not imaginary.target or real.op != "call_function":
            return None
        whole = _whole_of(real, imaginary)
        if whole is not None:
            return whole
        arguments = _ARGUMENTS.get(real.target)
        if arguments is None or real.kwargs != imaginary.kwargs or not real.kwargs.keys() <= _KEYWORDS:
            return None
        if real.kwargs.get("memory_format") not in (None, torch.contiguous_format, torch.preserve_format):
            return None
        if len(real.args) != len(imaginary.args) or not (real.target in _VIEWS or _is_used_here(real, imaginary)):
            return None
        given: list[Any] = []
        are_pairs = False
        for one, other in zip(real.args, imaginary.args, strict=True):
            if isinstance(one, Node) and one is not other:
                pairs = self.joined(one, other) if isinstance(other, Node) else None
                if pairs is None:
                    return None
                given.append(pairs)
                are_pairs = True
            elif isinstance(one, Node) and real.target in _ELEMENTWISE and one.meta["val"].dim():
                return None  # two elements of pairs for each one are walked to one by one
            elif one is other or (type(one) is type(other) and one == other and not _nodes_in(one)):
                given.append(one)
            else:
                return None
        target, args = arguments(real, given)
        return self._call(target, args, real) if are_pairs else None

    def _call(self, target: Any, args: tuple[Any, ...], like: Node | None = None) -> Node:
        """Add a call, with the keywords and the marks of one on parts."""
        node = self.graph.call_function(target, args, {} if like is None else like.kwargs)
        node.meta = {} if like is None else dict(like.meta)
        node.meta["val"] = target(*torch.fx.map_arg(args, lambda given: given.meta["val"]), **node.kwargs)
        return node


def _whole_of(real: Node, imaginary: Node) -> Node | None:
    """Return the pairs that two values are selected from as their parts."""
    if real.target is not aten.select.int:
        return None
    whole, dim, place = real.args
    if imaginary.args[0] is not whole or place != 0 or imaginary.args[2] != 1 or not isinstance(whole, Node):
        return None
    last = whole.meta["val"].dim() - 1
    is_last = dim % (last + 1) == imaginary.args[1] % (last + 1) == last
    return whole if is_last and whole.meta["val"].shape[last] == 2 else None


def _is_used_here(*nodes: Node) -> bool:
    """Whether nothing else needs values: they would be computed twice."""
    return all(len(node.users) == 1 for node in nodes)


def _nodes_in(argument: Any) -> list[Node]:
    found: list[Node] = []
    torch.fx.map_arg(argument, found.append)
    return found


_KEYWORDS = frozenset({"alpha", "memory_format"})
"""Which mean the same on pairs."""
_Arguments = Callable[[Node, Sequence[Any]], tuple[Any, tuple[Any, ...]]]


def _as_they_are(node: Node, given: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    return node.target, tuple(given)


def _rank(node: Node) -> int:
    """Return the rank of what an operator takes, as a part."""
    return int(node.args[0].meta["val"].dim())  # type: ignore[union-attr]


def _with_dims(count: int, more: int = 0) -> _Arguments:
    """Return what counts dimensions, the arguments behind the first, from the front."""

    def arguments(node: Node, given: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
        rank = _rank(node) + more
        taken, *dims = given
        counted = [dim if place >= count else _from_front(dim, rank) for place, dim in enumerate(dims)]
        return node.target, (taken, *(counted or [0] * count))

    return arguments


def _from_front(dims: Any, rank: int) -> Any:
    return [dim % rank for dim in dims] if isinstance(dims, (list, tuple)) else dims % rank


def _over_all(node: Node, given: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    packet = node.target.overloadpacket  # type: ignore[union-attr]
    target = packet.dim_IntList if packet is aten.sum else packet.dim
    return target, (given[0], list(range(_rank(node))))


def _over_dims(node: Node, given: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    taken, dims, *others = given
    rank = _rank(node)
    return node.target, (taken, [dim % rank for dim in dims] if dims else list(range(rank)), *others)


def _with_two(node: Node, given: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    return node.target, (given[0], [*given[1], 2])


def _with_last(node: Node, given: Sequence[Any]) -> tuple[Any, tuple[Any, ...]]:
    rank = _rank(node)
    dims = [dim % rank for dim in given[1]] if node.target is aten.permute.default else [1, 0][:rank]
    return aten.permute.default, (given[0], [*dims, rank])


_ELEMENTWISE: dict[Any, _Arguments] = dict.fromkeys((
    aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar, aten.mul.Tensor, aten.mul.Scalar,
    aten.div.Tensor, aten.div.Scalar, aten.neg.default, aten.clone.default,
), _as_they_are)
_SUMS: dict[Any, _Arguments] = {
    aten.sum.default: _over_all, aten.mean.default: _over_all, aten.sum.dim_IntList: _over_dims,
    aten.mean.dim: _over_dims,
}
_VIEWS: dict[Any, _Arguments] = {
    aten.view.default: _with_two, aten._unsafe_view.default: _with_two, aten.expand.default: _with_two,
    aten.permute.default: _with_last, aten.t.default: _with_last, aten.transpose.int: _with_dims(2),
    aten.slice.Tensor: _with_dims(1), aten.select.int: _with_dims(1), aten.unsqueeze.default: _with_dims(1, more=1),
    aten.squeeze.dim: _with_dims(1), aten.squeeze.dims: _with_dims(1), aten.alias.default: _as_they_are,
    aten.detach.default: _as_they_are,
}
_MOVES: dict[Any, _Arguments] = {
    aten.flip.default: _with_dims(1), aten.index_select.default: _with_dims(1),
}
_ARGUMENTS = _ELEMENTWISE | _SUMS | _VIEWS | _MOVES
