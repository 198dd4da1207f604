"""Products of rows that are looked up, with weights that seldom change: computed once for every row of the table.

A row of the product follows from one row of the left operand alone, so that ``embedding(table, words) @ weight`` is
``embedding(table @ weight, words)``, to the last bit where both products add up in the same order. Sums of half results
are looked up before they are rounded, each with the random bits of its place in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from torchipu.host.dead_ops import without_dead
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.random_streams import ROUNDING_STREAM
from torchipu.optable.spec import spec_of

MOST_BYTES = 64 << 20
"""What the products of all rows may take. They are kept from call to call beside the table itself."""
LEAST_WIDTH = 128
"""Of a row of the table: copying a row of products from memory takes about as long as computing it from 64 elements."""

LOOK_UP = "aten.embedding.default"
PRODUCTS = ("aten.mm.default", "aten.addmm.default")
ROUNDING = ("half_overflow", ROUNDING_STREAM)
"""Attributes of how a result is rounded to half."""
RESHAPES = ("aten.view.default", "aten._unsafe_view.default", "aten.reshape.default")
CAST = Op("cast", (), (), target="ipu.cast.default", operands=("self",))
MULTIPLY = Op("mm", (), (), target=PRODUCTS[0], operands=("self", "mat2"))
ADD = Op("add", (), (), {"alpha": 1}, target="aten.add.Tensor", operands=("self", "other"))


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
    return replace(graph, ops=without_dead(ops, graph, (LOOK_UP, "aten.transpose.int", *RESHAPES)))


def _constant(graph: Graph, frozen: Collection[Tensor]) -> set[Tensor]:
    """Return the values that follow from frozen inputs alone."""
    constant = set(frozen)
    for op in graph.ops:
        spec = spec_of(op)
        if spec is None or spec.is_random or spec.has_effect or op.bodies or ROUNDING_STREAM in op.attrs:
            continue
        if all(tensor in constant for tensor in op.inputs):
            constant.update(op.outputs)
    return constant


def _path(product: Op, makers: Mapping[Tensor, Op], constant: Collection[Tensor]) -> tuple[Op, ...] | None:
    """Return the look-up that a product reads and the views between them; None where it stays as it is."""
    if product.target not in PRODUCTS or not _has_float_sums(product):
        return None
    left = product.needed("self" if product.target == PRODUCTS[0] else "mat1")
    others = [tensor for tensor in product.inputs if tensor is not left]
    addend = product.operand("self") if product.target == PRODUCTS[1] else None
    if addend is not None and product.outputs[0].dtype is DType.HALF:
        others.remove(addend)  # is added after the look-up
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
    if table not in constant or table.dtype is not left.dtype or table.shape[1] != left.shape[1]:
        return None
    fits = 4 * table.shape[0] * product.outputs[0].shape[1] <= MOST_BYTES
    return (op, *path) if fits and 0 not in table.shape else None


def _has_float_sums(product: Op) -> bool:
    """Whether a product's sums are floats until all are added up; a half result is then rounded once."""
    if product.outputs[0].dtype is DType.HALF:
        is_plain = all(product.number(name, 1) == 1 for name in ("alpha", "beta"))
        return is_plain and product.attrs.get("partials") != "half"
    return product.outputs[0].dtype is DType.FLOAT


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
    made += _of_all_rows(product, table, lambda rows, looked_up: replace(
        look_up, inputs=tuple(rows if tensor is table else words for tensor in look_up.inputs), outputs=(looked_up,),
    ))
    return made


def _of_all_rows(product: Op, table: Tensor, look_up: Callable[[Tensor, Tensor], Op]) -> list[Op]:
    """Return the product with a table in place of its left operand, and what makes the product's own result of it.

    Args:
        product: The product.
        table: Whose rows are all multiplied.
        look_up: Returns the look-up in a first tensor that makes a second one.
    """
    result = product.outputs[0]
    rows = Tensor(f"{result.name}_of_all_rows", (table.shape[0], result.shape[1]), DType.FLOAT)
    if result.dtype is DType.HALF:
        return _rounded_late(product, table, rows, look_up)
    left = product.needed("self" if product.target == PRODUCTS[0] else "mat1")
    inputs = tuple(table if tensor is left else tensor for tensor in product.inputs)
    return [replace(product, inputs=inputs, outputs=(rows,)), look_up(rows, result)]


def _rounded_late(product: Op, table: Tensor, rows: Tensor, look_up: Callable[[Tensor, Tensor], Op]) -> list[Op]:
    """Return the same where results are half: sums are looked up, what is added is added, and the total is rounded."""
    result, right = product.outputs[0], product.needed("mat2")

    def as_floats(name: str, like: Tensor) -> Tensor:
        return Tensor(f"{result.name}_{name}", like.shape, DType.FLOAT)

    def near(op: Op, inputs: tuple[Tensor, ...], output: Tensor, **attrs: object) -> Op:
        return replace(
            op, inputs=inputs, outputs=(output,), attrs={**op.attrs, **attrs}, source=product.source,
            placement=product.placement, leg=product.leg, block=product.block,
        )

    left, factor, sums = as_floats("table", table), as_floats("factor", right), as_floats("sums", result)
    ops = [
        near(CAST, (table,), left, dtype=DType.FLOAT), near(CAST, (right,), factor, dtype=DType.FLOAT),
        near(MULTIPLY, (left, factor), rows), look_up(rows, sums),
    ]
    if product.target == PRODUCTS[1]:
        added = product.needed("self")
        addend, total = as_floats("addend", added), as_floats("total", result)
        ops += [near(CAST, (added,), addend, dtype=DType.FLOAT), near(ADD, (sums, addend), total)]
        sums = total
    rounding = {name: product.attrs[name] for name in ROUNDING if name in product.attrs}
    return [*ops, near(CAST, (sums,), result, dtype=DType.HALF, **rounding)]
