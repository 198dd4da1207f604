"""Compute sets of products, as the planner cuts them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import gcd, prod
from typing import TYPE_CHECKING

from torchipu.device.codelets import CAST, STRIDED_COPY
from torchipu.device.matmul_plan import MatmulPlan, plan_matmul
from torchipu.device.matrix_unit import (
    AMP,
    AVAILABLE_MEMORY,
    COPY,
    INPUT_GROUP,
    REDUCE_PARTIALS,
    TRANSPOSE,
    conv_units,
)
from torchipu.device.single_rows import DOT, OUTER, TRANSPOSE_SHARE, plan_of_layer
from torchipu.device.tilings.cut import Cut
from torchipu.device.tilings.nothing import nothing_left
from torchipu.device.tilings.products import Describe, add_sums, multiply
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.codelet import Product, Vertices

if TYPE_CHECKING:
    from torchipu.target import Target

LAYER_PASS = "layer_pass"
"""Attribute of a product: which pass of a layer that is trained it is, as `torchipu.passes.layers` has found."""

TIME_STEPS = "time_steps"
"""Attribute of a product: how many steps of a recurrence its summands are of, each of which adds a term to it."""

PADDED_GROUP = 8
"""Channels of a group: the float units of the matrix unit, and half the inputs of a panel; ipu_hardware.md 1.2."""

SMALL_PIECE_BYTES = 8
"""Pieces up to which copies are slow on silicon; ipu_hardware.md 2.5."""

MADE_OPERANDS = "made_operands"
"""Attribute of a product: which of its operands other ops make, `LEFT` and `RIGHT` parted by a space, as
`torchipu.passes.layers` has found. States and inputs of the program are created as their product takes them."""

LEFT, RIGHT = "left", "right"

LAYER_INPUTS = "layer_inputs"
"""Attribute of an update of a weight that is a state or an input of the program: the inputs of its layer, in pieces of
which it is created."""

CALLED = "called"
"""Attribute of the backward of a layer that is one of several alike on its IPU, as `torchipu.passes.layers` has found:
their code is one function, and a call copies what it is given."""

FORWARD, BACKWARD, UPDATE = "forward", "backward", "update"
"""Passes: the product of the samples, the gradient of the input and that of the weight. The operands of the latter two
do not lie as they are wanted."""

CODELETS = {"amp": AMP, "dot": DOT, "outer": OUTER}
"""What computes a product, by the method of its plan."""


def plan_of(op: Op, target: Target, product: Product, dtype: DType) -> MatmulPlan | None:
    """Return how a product of an op is cut up; None where there is nothing to multiply."""
    if 0 in (product.groups, product.positions, product.inputs, product.outputs):
        return None
    is_half = dtype is DType.HALF
    group = _output_group_of(op, target, is_half=is_half)
    available = float(str(op.attrs.get("available_memory", AVAILABLE_MEMORY)))
    steps = int(str(op.attrs.get(TIME_STEPS, 1)))
    if steps == 1 and (single := _plan_of_row(op, target, product, group, available, is_half=is_half)) is not None:
        return single
    plan = plan_matmul(
        target, product.groups, product.positions, ceil_div(product.inputs, steps), product.outputs, is_half, group,
        available, partial_bytes=_partial_bytes_of(op, is_half=is_half),
    )
    return plan if steps == 1 else plan.for_steps(steps, product.inputs)


def _plan_of_row(
    op: Op, target: Target, product: Product, group: int, available: float, *, is_half: bool,
) -> MatmulPlan | None:
    """Return the plan of a pass of a layer that is trained on one sample, where none takes the matrix unit."""
    layer_pass = op.attrs.get(LAYER_PASS)
    row = product.inputs if layer_pass == UPDATE else product.positions
    if layer_pass is None or row > 1 or product.groups > 1 or op.attrs.get("partials") == "half":
        return None
    sides = {
        FORWARD: (product.inputs, product.outputs), BACKWARD: (product.outputs, product.inputs),
        UPDATE: (product.positions, product.outputs),
    }[str(layer_pass)]
    plan = plan_of_layer(target, *sides, is_half=is_half, output_group=group, available_memory=available)
    if plan is None:
        return None
    by_pass = {FORWARD: plan.forward, BACKWARD: plan.backward, UPDATE: plan.update}
    return by_pass[str(layer_pass)](is_half=is_half)


def _output_group_of(op: Op, target: Target, *, is_half: bool) -> int:
    return conv_units(target, is_half=is_half, half_partials=op.attrs.get("partials") == "half")


def _partial_bytes_of(op: Op, *, is_half: bool) -> int:
    return 2 if is_half and op.attrs.get("partials") == "half" else 4


def summand_tiles(op: Op, target: Target, products: Sequence[Product]) -> tuple[int, ...]:
    """Return how many tiles share the summands of each product of halves."""
    plans = (plan_of(op, target, product, DType.HALF) for product in products)
    return tuple(1 if plan is None else plan.input_split for plan in plans)


def _cut(product: Product, plan: MatmulPlan, target: Target) -> Cut:
    """Return which vertex takes what of a product that a plan cuts up."""
    rows, columns, inputs = plan.shares
    return Cut(
        (product.groups, product.positions, product.outputs, product.inputs),
        (min(product.groups, target.num_tiles), plan.row_split, plan.column_split, plan.input_split),
        (ceil_div(product.groups, target.num_tiles), rows, columns, inputs),
        (plan.calls, plan.positions, plan.outputs, plan.inputs),
    )


def product_vertices(
    op: Op, target: Target, product: Product, dtype: DType, describe: Describe | None = None,
) -> tuple[Vertices, ...]:
    """Compute sets of a product; see `matmul_vertices`."""
    sizes = product.groups, product.positions, product.inputs, product.outputs
    return matmul_vertices(op, target, *sizes, dtype, describe)


def matmul_vertices(
    op: Op, target: Target, groups: int, positions: int, inputs: int, outputs: int, dtype: DType,
    describe: Describe | None = None,
) -> tuple[Vertices, ...]:
    """Compute sets of ``groups`` products [positions, inputs] x [inputs, outputs]; one element is one vertex.

    The first multiplies; another one adds up the partials of tiles that share summands, or rounds those of one tile.

    Args:
        op: The op.
        target: The machine.
        groups: Independent products.
        positions: Rows of the left operand.
        inputs: Summands.
        outputs: Columns of the right operand.
        dtype: Of the operands.
        describe: Tells which elements meet; None where vertices are not known one by one.
    """
    product = Product(groups, positions, inputs, outputs)
    plan = plan_of(op, target, product, dtype)
    if plan is None:
        return ()
    is_half = dtype is DType.HALF
    width = _partial_bytes_of(op, is_half=is_half)
    vertices = plan.row_split * plan.column_split * plan.input_split * min(groups, target.num_tiles)
    field, channels = plan.channels
    sizes = {
        "positions": field, "inputs": plan.inputs, "outputs": channels, "is_half": int(is_half),
        "output_group": _output_group_of(op, target, is_half=is_half), "laid": plan.laid,
    }
    if plan.copied_bytes:
        sizes |= {"copied_bytes": plan.copied_bytes, "added": plan.added}
    # An outer product has one summand, and is rounded as it is made.
    is_cast = plan.input_split == 1 and is_half and width == 4 and plan.method != "outer"
    sums = plan.positions * plan.outputs * plan.calls * width * (2 if plan.added else 1)
    # What is neither added up, nor rounded, nor copied into its place has no partials beside its results.
    partial_bytes = sums if is_cast or plan.input_split > 1 or plan.copied_bytes else 0
    if plan.method != "amp":  # what other vertices write may lie anywhere
        partial_bytes = 0
    cut = _cut(product, plan, target)
    first = Vertices(
        CODELETS[plan.method], vertices, lambda count: {**sizes, "calls": plan.calls * max(1, count)},
        gathered_bytes=plan.received_bytes, fragments=plan.calls * 2,
        temporary_bytes=max(0, plan.temporary_bytes - sums) + partial_bytes, partial_bytes=partial_bytes,
        max_tiles=vertices, repeats=plan.repeats,
        tiling=None if describe is None else partial(multiply, describe, cut, finishes=not is_cast),
    )
    if plan.input_split == 1 and not is_cast:
        return (first,)
    at_once = plan.positions * plan.outputs * plan.calls
    share = ceil_div(at_once, plan.input_split)
    fixed = {"vector_width": 4} if is_cast else {"partials": plan.input_split, "partial_bytes": width}
    finish = Vertices(
        CAST if is_cast else REDUCE_PARTIALS, vertices, lambda count: {"elements": share * max(1, count), **fixed},
        gathered_bytes=share * (plan.input_split - 1) * width, fragments=plan.input_split,
        temporary_bytes=at_once * width * (1 if is_cast else 2), max_tiles=vertices, repeats=plan.finishes,
        tiling=None if describe is None else partial(add_sums, describe, cut),
    )
    return (first, finish)


def layer_vertices(
    op: Op, target: Target, product: Product, dtype: DType, describe: Describe | None = None,
) -> tuple[Vertices, ...]:
    """Compute sets of a product that may be a pass of a layer that is trained.

    Weights and samples lie as the forward takes them, but for operands that other ops have made: these lie as the op
    has left them, and are rearranged before tiles receive them. Channels that do not fill groups are padded, which lays
    weights out anew. For the backward the weights are rearranged; for the update both operands, whose samples become
    input channels, and the result, which has to lie as the weights do: in the pieces that states are created in.

    Where layers alike are one function, the backward's call takes a view of the layer's weight with rows and columns
    exchanged, and copies it, element by element, into the weight of the function.

    Args:
        op: The op.
        target: The machine.
        product: Its sizes.
        dtype: Of its operands.
        describe: Tells which elements meet; None where vertices are not known one by one.

    Source: the planner of PopLibs counts operands of an update, and those that it pads, as rearranged; ipu_hardware.md
    3.1. Operands whose layout is another one are copied once, and not by every tile that receives them, which PopLibs
    does where these are many. That a call copies its operands is PopART's way (CallOpx); that its weight is turned
    outside of the function, and not within, is an estimate.
    """
    plan = plan_of(op, target, product, dtype)
    if plan is not None and plan.method != "amp":
        return _without_unit(op, target, product, plan, dtype, describe)
    before = _laid_anew(op, product)
    is_ragged = product.inputs % (INPUT_GROUP // (dtype.device_bytes // 2)) > 0 and product.positions > 1
    padded = (_padded(target, product, dtype),) if _is_padded(op, product) else ()
    copied: tuple[Vertices, ...] = ()
    if op.attrs.get(CALLED) and product.positions > 1:
        copied = (_copied_into_call(target, before.pop(), dtype),)
    return (
        *_rearranged(target, product.groups, before, dtype, is_ragged=is_ragged),
        *padded,
        *copied,
        *product_vertices(op, target, product, dtype, describe),
        *(_placed(op, target, product, dtype) if op.attrs.get(LAYER_PASS) == UPDATE else ()),
    )


def _without_unit(
    op: Op, target: Target, product: Product, plan: MatmulPlan, dtype: DType, describe: Describe | None,
) -> tuple[Vertices, ...]:
    """Compute sets of a pass of a layer that is trained on one sample: tiles transpose what they have of the weight.

    What the update makes is also put where the weight lies, as the result of any update is, to be added to it.
    """
    rows, columns, inputs = plan.shares
    if op.attrs.get(LAYER_PASS) == BACKWARD:
        rows = inputs
    is_half = int(dtype is DType.HALF)
    tiles = plan.row_split * plan.column_split * plan.input_split
    turned = Vertices(
        TRANSPOSE_SHARE, tiles, lambda _: {"rows": rows, "columns": columns, "is_half": is_half},
        temporary_bytes=rows * columns * dtype.device_bytes, max_tiles=tiles, tiling=nothing_left,
    )
    sets = product_vertices(op, target, product, dtype, describe)
    if op.attrs.get(LAYER_PASS) == UPDATE:
        vectors = [(product.positions, 1), (1, product.outputs)]
        # What a tile has made is its own share of the weight, and is put where it lies without an exchange.
        result = 1, product.positions, product.outputs
        placed = replace(_put_together(target, result, _inputs_of_layer(op), dtype), gathered_bytes=0)
        return *_rearranged(target, 1, vectors, dtype, is_ragged=False), *sets, turned, placed
    return (turned, *sets) if op.attrs.get(LAYER_PASS) == BACKWARD else sets


def _laid_anew(op: Op, product: Product) -> list[tuple[int, int]]:
    """Return rows and columns of the matrices that are rearranged before a product."""
    layer_pass = str(op.attrs.get(LAYER_PASS))
    # One sample is no work for the matrix unit: PopLibs takes vertices that need no groups.
    sides = set(str(op.attrs.get(MADE_OPERANDS, "")).split()) if product.positions > 1 else set()
    if layer_pass in (BACKWARD, UPDATE):
        sides.add(RIGHT)
    if layer_pass == UPDATE:
        sides.add(LEFT)
    sizes = {LEFT: (product.positions, product.inputs), RIGHT: (product.inputs, product.outputs)}
    return [matrix for side, matrix in sizes.items() if side in sides]


def _placed(op: Op, target: Target, product: Product, dtype: DType) -> tuple[Vertices, ...]:
    """Return the compute sets that transpose the result of an update, and put it where the weight lies."""
    turned = _rearranged(target, product.groups, [(product.positions, product.outputs)], dtype, is_ragged=False)[:-1]
    result = product.groups, product.positions, product.outputs
    return *turned, _put_together(target, result, _inputs_of_layer(op), dtype)


def _inputs_of_layer(op: Op) -> int:
    """Return the inputs of the layer that a product is the update of; a whole group where its weight is no state."""
    return int(str(op.attrs.get(LAYER_INPUTS, INPUT_GROUP)))


def _is_padded(op: Op, product: Product) -> bool:
    """Return whether weights are padded to whole groups of channels, and lie as the product takes them but for that."""
    if product.positions == 1 or RIGHT in str(op.attrs.get(MADE_OPERANDS, "")).split():
        return False
    is_forward = op.attrs.get(LAYER_PASS) not in (BACKWARD, UPDATE)
    return is_forward and any(size % PADDED_GROUP for size in (product.inputs, product.outputs))


def _padded(target: Target, product: Product, dtype: DType) -> Vertices:
    """Return the compute set that pads weights to whole groups of channels; every tile takes a share.

    Source: ipu_hardware.md 3.1. That they are copied once, and not by every tile that receives them, is an estimate.
    """
    weights = product.groups, product.inputs, product.outputs
    return _put_together(target, weights, product.inputs, dtype)


def _put_together(target: Target, weights: tuple[int, int, int], inputs: int, dtype: DType) -> Vertices:
    """Return the compute set that copies a weight from or to the pieces it is created in; every tile takes a share.

    Weights are created in pieces of as many input channels as divide these and a group alike. Pieces of 16 bytes and
    more are copied as any other operand is, smaller ones piece by piece.

    Args:
        target: The machine.
        weights: Groups, rows and columns.
        inputs: Of the layer.
        dtype: Of the weight.

    Source: PopLibs' createWeights; ipu_hardware.md 2.5 for copies of small pieces, 3.1 for others.
    """
    piece = gcd(inputs, INPUT_GROUP) * dtype.device_bytes
    elements = prod(weights)
    share = ceil_div(elements, target.num_tiles)
    moved = share * dtype.device_bytes
    if piece > SMALL_PIECE_BYTES:
        codelet, work = COPY, {"elements": share, "element_bytes": dtype.device_bytes, "is_ragged": 0}
    else:
        codelet, work = STRIDED_COPY, {"bytes": moved, "rows": max(2, moved // piece), "element_bytes": piece}
    return Vertices(
        codelet, elements, lambda count: work, gathered_bytes=moved, fragments=2, temporary_bytes=2 * moved,
        tiling=nothing_left,
    )


def _copied_into_call(target: Target, matrix: tuple[int, int], dtype: DType) -> Vertices:
    """Return the compute set that copies a weight with rows and columns exchanged; every tile takes a share."""
    elements = matrix[0] * matrix[1]
    moved = ceil_div(elements, target.num_tiles) * dtype.device_bytes
    work = {"bytes": moved, "rows": moved // dtype.device_bytes, "element_bytes": dtype.device_bytes}
    return Vertices(
        STRIDED_COPY, elements, lambda count: work, gathered_bytes=moved, fragments=2, temporary_bytes=2 * moved,
        tiling=nothing_left,
    )


def _rearranged(
    target: Target, groups: int, matrices: Sequence[tuple[int, int]], dtype: DType, *, is_ragged: bool,
) -> tuple[Vertices, ...]:
    """Compute sets that transpose matrices, of which every tile takes a share, and put them where they are wanted.

    One row is its own transpose, and is only put there. The vertices of the product take elements wherever they are:
    these have nothing left to do.
    """
    fixed = {"element_bytes": dtype.device_bytes, "is_ragged": int(is_ragged)}
    sets = []
    for rows, columns in matrices:
        elements = rows * columns
        moved = ceil_div(groups * elements, target.num_tiles) * dtype.device_bytes
        for codelet in (TRANSPOSE, COPY) if min(rows, columns) > 1 else (COPY,):
            sets.append(Vertices(
                codelet, groups * elements, lambda count: {"elements": count, **fixed},
                gathered_bytes=moved if codelet is COPY else 0, fragments=2, temporary_bytes=2 * moved,
                tiling=nothing_left,
            ))
    return tuple(sets)
