"""Products of rows that are looked up, with weights that seldom change: computed once for every row of the table.

A row of the product follows from one row of the left operand alone, so that ``embedding(table, words) @ weight`` is
``embedding(table @ weight, words)``, to the last bit where both products add up in the same order.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.spec import spec_of

MOST_BYTES = 64 << 20
"""What the products of all rows may take. They are kept from call to call beside the table itself."""
LEAST_WIDTH = 128
"""Of a row of the table: copying a row of products from memory takes about as long as computing it from 64 elements."""

LOOK_UP = "aten.embedding.default"
PRODUCTS = ("aten.mm.default", "aten.addmm.default")
RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")


def with_late_look_ups(graph: Graph, frozen: Collection[Tensor]) -> Graph:
    """Return the graph with products of looked-up rows of a frozen table looked up instead.

    Args:
        graph: Of inference: it updates nothing.
        frozen: Inputs that seldom change.
    """
    makers = {tensor: op for op in graph.ops for tensor in op.outputs}
    constant = _constant(graph, frozen)
    ops: list[Op] = []
    for op in graph.ops:
        path = _path(op, makers, constant)
        ops += [op] if path is None else _looked_up_late(op, path)
    if len(ops) == len(graph.ops):
        return graph
    return replace(graph, ops=_without_dead(ops, graph))


def _constant(graph: Graph, frozen: Collection[Tensor]) -> set[Tensor]:
    """Return the values that follow from frozen inputs alone."""
    constant = set(frozen)
    for op in graph.ops:
        spec = spec_of(op)
        if spec is None or spec.is_random or spec.has_effect or op.bodies:
            continue
        if all(tensor in constant for tensor in op.inputs):
            constant.update(op.outputs)
    return constant


def _path(product: Op, makers: Mapping[Tensor, Op], constant: Collection[Tensor]) -> tuple[Op, ...] | None:
    """Return the look-up that a product reads and the views between them; None where it stays as it is."""
    if product.target not in PRODUCTS or product.outputs[0].dtype is not DType.FLOAT:
        return None
    left = product.needed("self" if product.target == PRODUCTS[0] else "mat1")
    others = [tensor for tensor in product.inputs if tensor is not left]
    addend = product.operand("self") if product.target == PRODUCTS[1] else None
    if left in constant or any(tensor not in constant for tensor in others) or left.shape[1] < LEAST_WIDTH:
        return None
    if addend is not None and len(addend.shape) == 2 and addend.shape[0] != 1:
        return None  # rows of its own
    path: list[Op] = []
    op = makers.get(left)
    while op is not None and _keeps_rows(op):
        path.insert(0, op)
        op = makers.get(op.inputs[0])
    if op is None or op.target != LOOK_UP:
        return None
    table = op.needed("weight")
    if table not in constant or table.dtype is not DType.FLOAT or table.shape[1] != left.shape[1]:
        return None
    fits = 4 * table.shape[0] * product.outputs[0].shape[1] <= MOST_BYTES
    return (op, *path) if fits and 0 not in table.shape else None


def _keeps_rows(op: Op) -> bool:
    """Whether an op moves rows as they are: their elements stay side by side, in the last dimension."""
    if op.target in RESHAPES:
        return op.inputs[0].shape[-1:] == op.outputs[0].shape[-1:]
    if op.target == "aten.transpose.int":
        return len(op.inputs[0].shape) - 1 not in _turned(op)
    return False


def _turned(op: Op) -> tuple[int, int]:
    """Return the dimensions that a transpose exchanges, counted from the first."""
    rank = len(op.inputs[0].shape)
    return int(op.number("dim0")) % rank, int(op.number("dim1")) % rank


def _looked_up_late(product: Op, path: tuple[Op, ...]) -> list[Op]:
    """Return the product of all rows of the table, and its look-up by the words in the order of the product's rows."""
    look_up, *views = path
    table, words = look_up.needed("weight"), look_up.needed("indices")
    made: list[Op] = []
    result = product.outputs[0]
    for number, view in enumerate(views):
        moved = Tensor(f"{result.name}_words_{number}", view.outputs[0].shape[:-1], words.dtype)
        if view.target in RESHAPES:
            attrs: dict[str, object] = {"size": list(moved.shape)}
        else:
            attrs = dict(zip(("dim0", "dim1"), _turned(view), strict=True))
        made.append(replace(view, inputs=(words,), outputs=(moved,), attrs={**view.attrs, **attrs}))
        words = moved
    rows = Tensor(f"{result.name}_of_all_rows", (table.shape[0], result.shape[1]), result.dtype)
    left = product.needed("self" if product.target == PRODUCTS[0] else "mat1")
    inputs = tuple(table if tensor is left else tensor for tensor in product.inputs)
    made.append(replace(product, inputs=inputs, outputs=(rows,)))
    inputs = tuple(rows if tensor is table else words for tensor in look_up.inputs)
    made.append(replace(look_up, inputs=inputs, outputs=product.outputs))
    return made


def _without_dead(ops: list[Op], graph: Graph) -> tuple[Op, ...]:
    """Leave out what only products read that are looked up now."""
    read = {*graph.outputs, *(value for _, value in graph.updates)}
    kept: list[Op] = []
    for op in reversed(ops):
        is_known = op.target in (LOOK_UP, "aten.transpose.int", *RESHAPES)
        if is_known and not read.intersection(op.outputs):
            continue
        read.update(op.inputs)
        read.update(tensor for body in op.bodies for inner in body.ops for tensor in inner.inputs)
        kept.append(op)
    return tuple(reversed(kept))
