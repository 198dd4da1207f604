"""Views, copies and fills: what moves elements without computing on them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from torchipu._kernels.table.copy import (
    ARANGE,
    LINSPACE,
    ArangeInts,
    ArangeScalars,
    LinspaceInts,
    LinspaceScalars,
)
from torchipu.device.compute_sets import copy_vertices, fill_vertices, no_vertices
from torchipu.device.tilings.fills import filled, numbered
from torchipu.host.emit.copy import COPY_SHARE, emit_copy, emit_fill, emit_pieces
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.arguments import has_dim, shaped_as
from torchipu.optable.codelet import Lowering, Vertices
from torchipu.optable.host_tensor import HostTensor, broadcast, collapse, contiguous_strides
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import Constraint, OpSpec, Pieces, register
from torchipu.target import Target


# --------------------------------------------------------------------------- views without copies
def _held(op: Op, plan: HostPlanner, name: str = "self") -> HostTensor:
    return plan.value(op.needed(name), contiguous=False)


def _held_and_output(op: Op, plan: HostPlanner) -> tuple[HostTensor, HostTensor]:
    """Return where the operand lies, and storage for the result in the same order where that may be."""
    held = _held(op, plan)
    return held, plan.output_as_held(op.outputs[0], held)


def _view(held: HostTensor, shape: Sequence[int], strides: Sequence[int], offset: int = 0) -> HostTensor:
    return HostTensor(held.buffer, held.offset + offset, tuple(shape), tuple(strides), held.dtype)


def strides_of_view(shape: Sequence[int], strides: Sequence[int], new_shape: Sequence[int]) -> tuple[int, ...] | None:
    """Return the strides with which memory shows another shape, or None when no strides do.

    Dimensions that lie one after another are merged; each new dimension must come from one merged dimension.
    """
    if 0 in shape:
        return contiguous_strides(new_shape)
    merged_shape, (merged_strides,) = collapse(shape, strides)
    new_strides = [0] * len(new_shape)
    dim = len(new_shape) - 1
    for size, stride in zip(reversed(merged_shape), reversed(merged_strides), strict=True):
        taken = 1
        while dim >= 0 and (taken < size or new_shape[dim] == 1):
            new_strides[dim] = stride * taken
            taken *= new_shape[dim]
            dim -= 1
        if taken != size:
            return None
    return tuple(new_strides)


def _copied_in_order(held: HostTensor, result: Tensor, plan: HostPlanner) -> bool:
    """Copy to where the caller expects elements in another order, which shows the old shape as well; or do nothing."""
    order = plan.expected_order(result)
    if order is None:
        return False
    out = plan.expected_output(result)
    strides = strides_of_view(out.shape, out.strides, held.shape)
    if strides is None:
        whole = plan.scratch(held.shape, held.dtype)
        emit_copy(plan, whole, held)
        emit_copy(plan, out, _view(whole, out.shape, contiguous_strides(out.shape)))
    else:
        emit_copy(plan, _view(out, held.shape, strides), held)
    return True


def view(op: Op, plan: HostPlanner) -> None:
    """Show the same elements in another shape; copies first when strides cannot."""
    held, result = _held(op, plan), op.outputs[0]
    strides = strides_of_view(held.shape, held.strides, result.shape)
    if strides is None and _copied_in_order(held, result, plan):
        return
    if strides is None:
        source = op.operand("self")
        assert source is not None
        held = plan.value(source)
        strides = contiguous_strides(result.shape)
    plan.alias(result, _view(held, result.shape, strides))


def permute(op: Op, plan: HostPlanner) -> None:
    """Reorder dimensions."""
    held = _held(op, plan)
    rank = len(held.shape)
    match op.target:
        case "aten.t.default" | "aten.t_copy.default":
            dims = list(range(rank))[::-1]
        case "aten.transpose.int" | "aten.transpose_copy.int":
            dims = list(range(rank))
            if rank:
                a, b = op.integer("dim0") % rank, op.integer("dim1") % rank
                dims[a], dims[b] = dims[b], dims[a]
        case _:
            dims = [dim % rank for dim in op.integers("dims")]
    plan.alias(op.outputs[0], _view(held, [held.shape[d] for d in dims], [held.strides[d] for d in dims]))


def expand(op: Op, plan: HostPlanner) -> None:
    """Repeat dimensions of size 1."""
    plan.alias(op.outputs[0], broadcast(_held(op, plan), op.outputs[0].shape))


def unsqueeze(op: Op, plan: HostPlanner) -> None:
    """Insert a dimension of size 1."""
    held = _held(op, plan)
    dim = op.integer("dim") % (len(held.shape) + 1)
    shape, strides = list(held.shape), list(held.strides)
    shape.insert(dim, 1)
    strides.insert(dim, 1)
    plan.alias(op.outputs[0], _view(held, shape, strides))


def squeeze(op: Op, plan: HostPlanner) -> None:
    """Drop dimensions of size 1."""
    held = _held(op, plan)
    rank = len(held.shape)
    chosen = {dim % rank for dim in op.integers("dim", tuple(range(rank)))} if rank else set()
    kept = [d for d in range(rank) if d not in chosen or held.shape[d] != 1]
    plan.alias(op.outputs[0], _view(held, [held.shape[d] for d in kept], [held.strides[d] for d in kept]))


def _bound(given: int | None, size: int, default: int) -> int:
    """Return where a slice begins or ends, within a dimension.

    By comparisons, not by `slice.indices`, which needs plain numbers: one that holds for many sizes does for a `Size`.
    """
    if given is None:
        return default
    return max(0, given + size) if given < 0 else min(given, size)


def _slice_of(held: HostTensor, op: Op, rank_shape: Sequence[int]) -> HostTensor:
    dim = op.integer("dim", 0) % len(rank_shape)
    size, step = held.shape[dim], op.integer("step", 1)
    begin = _bound(op.integer("start", None), size, 0)
    stop = max(begin, _bound(op.integer("end", None), size, size))
    shape, strides = list(held.shape), list(held.strides)
    shape[dim] = stop - begin if step == 1 else -(-(stop - begin) // step)
    strides[dim] *= step
    return _view(held, shape, strides, begin * held.strides[dim] if shape[dim] else 0)


def _shape_of_slice(op: Op) -> tuple[int, ...]:
    held = of_shape(op.needed("self").shape)
    return _slice_of(held, op, held.shape).shape


def _shape_of_selected(op: Op) -> tuple[int, ...]:
    return _select_of(of_shape(op.needed("self").shape), op.integer("dim"), op.integer("index")).shape


def of_shape(shape: Sequence[int]) -> HostTensor:
    """Return a view of no buffer, for what a view of a shape looks like."""
    return HostTensor(-1, 0, tuple(shape), contiguous_strides(shape), DType.FLOAT)


def _select_of(held: HostTensor, dim: int, index: int) -> HostTensor:
    dim %= len(held.shape)
    index %= held.shape[dim]
    shape, strides = list(held.shape), list(held.strides)
    offset = index * strides[dim]
    del shape[dim], strides[dim]
    return _view(held, shape, strides, offset)


def slice_(op: Op, plan: HostPlanner) -> None:
    """Take a range of one dimension."""
    held = _held(op, plan)
    plan.alias(op.outputs[0], _slice_of(held, op, held.shape))


def select(op: Op, plan: HostPlanner) -> None:
    """Take one index of one dimension."""
    plan.alias(op.outputs[0], _select_of(_held(op, plan), op.integer("dim"), op.integer("index")))


def alias(op: Op, plan: HostPlanner) -> None:
    """The value itself."""
    plan.alias(op.outputs[0], _held(op, plan))


def diagonal(op: Op, plan: HostPlanner) -> None:
    """Take a diagonal of two dimensions as the last dimension."""
    shift, first, second = op.integer("offset", 0), op.integer("dim1", 0), op.integer("dim2", 1)
    plan.alias(op.outputs[0], diagonal_of(_held(op, plan), shift, first, second))


def diagonal_of(held: HostTensor, shift: int, first: int, second: int) -> HostTensor:
    """Return a diagonal of two dimensions as a view whose last dimension it is."""
    rank = len(held.shape)
    a, b = first % rank, second % rank
    kept = [dim for dim in range(rank) if dim not in (a, b)]
    length = max(0, min(held.shape[a] + min(0, shift), held.shape[b] - max(0, shift)))
    offset = shift * held.strides[b] if shift > 0 else -shift * held.strides[a]
    shape = [*(held.shape[dim] for dim in kept), length]
    strides = [*(held.strides[dim] for dim in kept), held.strides[a] + held.strides[b]]
    return _view(held, shape, strides, offset if 0 not in shape else 0)


def _present(op: Op, count: int) -> list[tuple[int, Tensor]]:
    """Return ``(position, result)`` for the results that exist."""
    present = op.flags("present", ()) or (True,) * count
    positions = [i for i in range(count) if present[i]]
    return list(zip(positions, op.outputs, strict=False))


def split(op: Op, plan: HostPlanner) -> None:
    """Cut one dimension into pieces."""
    held = _held(op, plan)
    dim = op.integer("dim", 0) % len(held.shape)
    size = held.shape[dim]
    if "split_sizes" in op.attrs:
        sizes = list(op.integers("split_sizes"))
    else:
        piece = op.integer("split_size")
        sizes = [min(piece, size - begin) for begin in range(0, size, piece)] if size else [0]
    begins = [0, *itertools.accumulate(sizes)]
    for position, result in _present(op, len(sizes)):
        offset = begins[position] * held.strides[dim] if result.num_elements else 0
        plan.alias(result, _view(held, result.shape, held.strides, offset))


def unbind(op: Op, plan: HostPlanner) -> None:
    """Take every index of one dimension."""
    held = _held(op, plan)
    dim = op.integer("dim", 0)
    for position, result in _present(op, held.shape[dim]):
        plan.alias(result, _select_of(held, dim, position))


# --------------------------------------------------------------------------- ops that copy
def clone(op: Op, plan: HostPlanner) -> None:
    """Copy the elements, in the order in which they lie where that is kept."""
    held = _held(op, plan)
    emit_copy(plan, plan.output_as_held(op.outputs[0], held), held)


def pieces_of_cat(op: Op, out: HostTensor) -> Iterator[tuple[Tensor, HostTensor]]:
    """Yield the pieces that are joined along a dimension, and where they lie in the result."""
    dim = op.integer("dim", 0) % len(out.shape)
    begin = 0
    for piece in op.operand_list("tensors"):
        if piece is None or piece.shape == (0,):  # eager skips these whatever their rank
            continue
        shape = list(out.shape)
        shape[dim] = piece.shape[dim]
        yield piece, _view(out, shape, out.strides, begin * out.strides[dim])
        begin += piece.shape[dim]


def pieces_of_stack(op: Op, out: HostTensor) -> Iterator[tuple[Tensor, HostTensor]]:
    """Yield the pieces that are joined along a new dimension, and where they lie in the result."""
    for index, piece in enumerate(op.operand_list("tensors")):
        assert piece is not None
        yield piece, _select_of(out, op.integer("dim", 0), index)


def concatenate(pieces_of: Pieces) -> Emitter:
    """Return an emitter that copies pieces to their places, those that do not lie there already."""
    def emit(op: Op, plan: HostPlanner) -> None:
        first = next((piece for piece in op.operand_list("tensors") if piece is not None), None)
        held = None if first is None else plan.value(first, contiguous=False)
        result = op.outputs[0]
        is_alike = held is not None and len(held.shape) == len(result.shape)
        out = plan.output_as_held(result, held) if held is not None and is_alike else plan.output(result)
        placed = [(place, plan.value(piece, contiguous=False)) for piece, place in pieces_of(op, out)]
        elsewhere = [(place, held) for place, held in placed if held != place]
        if len(elsewhere) == len(placed):
            emit_pieces(plan, out, elsewhere)
            return
        for place, held in elsewhere:
            emit_copy(plan, place, held)
    return emit


def pad(op: Op, plan: HostPlanner) -> None:
    """Surround with a constant; negative widths cut off."""
    held, out = _held_and_output(op, plan)
    surround(plan, out, held, op.integers("pad"), len(held.shape) - 1, op.number("value", 0))


def surround(
    plan: HostPlanner, out: HostTensor, held: HostTensor, widths: Sequence[int], last: int, value: float,
) -> None:
    """Emit a copy with so much more of a constant around it; negative widths cut off.

    Args:
        plan: Receives the steps.
        out: Without gaps, written.
        held: Of the same type, any strides.
        widths: Before and behind the last dimension, before and behind the one before it, and so on.
        last: Which dimension that is.
        value: The constant.
    """
    shape, read, written = list(held.shape), 0, 0
    for position in range(len(widths) // 2):
        dim, before, after = last - position, widths[2 * position], widths[2 * position + 1]
        shape[dim] += min(0, before) + min(0, after)
        read += max(0, -before) * held.strides[dim]
        written += max(0, before) * out.strides[dim]
    if any(width > 0 for width in widths):
        emit_fill(plan, out, value)
    if 0 not in shape:
        emit_copy(plan, _view(out, shape, out.strides, written), _view(held, shape, held.strides, read))


def slice_scatter(op: Op, plan: HostPlanner) -> None:
    """Copy a tensor with a range of one dimension replaced."""
    out = plan.output(op.outputs[0])
    emit_copy(plan, out, _held(op, plan))
    emit_copy(plan, _slice_of(out, op, out.shape), _held(op, plan, "src"))


def select_scatter(op: Op, plan: HostPlanner) -> None:
    """Copy a tensor with one index of one dimension replaced."""
    out = plan.output(op.outputs[0])
    emit_copy(plan, out, _held(op, plan))
    emit_copy(plan, _select_of(out, op.integer("dim"), op.integer("index")), _held(op, plan, "src"))


def slice_backward(op: Op, plan: HostPlanner) -> None:
    """Zeros with a gradient in a range of one dimension."""
    gradient = _held(op, plan, "grad_output")
    out = plan.output_as_held(op.outputs[0], gradient)
    part = _slice_of(out, op, out.shape)
    if part.num_elements != out.num_elements:
        emit_fill(plan, out, 0)
    emit_copy(plan, part, gradient)


def select_backward(op: Op, plan: HostPlanner) -> None:
    """Zeros with a gradient at one index of one dimension."""
    out = plan.output(op.outputs[0])
    part = _select_of(out, op.integer("dim"), op.integer("index"))
    if part.num_elements != out.num_elements:
        emit_fill(plan, out, 0)
    emit_copy(plan, part, _held(op, plan, "grad_output"))


def repeat(op: Op, plan: HostPlanner) -> None:
    """Repeat a tensor along each dimension."""
    held, out = _held(op, plan), plan.output(op.outputs[0])
    held = broadcast(held, (1,) * (len(out.shape) - len(held.shape)) + held.shape)
    shape, read, written = [], [], []
    for size, stride, whole, step in zip(held.shape, held.strides, out.shape, out.strides, strict=True):
        shape += [whole // size if size else 0, size]
        read += [0, stride]
        written += [size * step, step]
    emit_copy(plan, _view(out, shape, written), _view(held, shape, read))


def flip(op: Op, plan: HostPlanner) -> None:
    """Reverse dimensions."""
    held, out = _held_and_output(op, plan)
    strides, offset = list(held.strides), 0
    dims = op.integers("dims") if held.shape else ()  # a 0-d tensor has dim 0
    for dim in {d % len(held.shape) for d in dims}:
        offset += (held.shape[dim] - 1) * strides[dim]
        strides[dim] = -strides[dim]
    emit_copy(plan, out, _view(held, held.shape, strides, offset if held.num_elements else 0))


def roll(op: Op, plan: HostPlanner) -> None:
    """Shift dimensions around; each gives two pieces."""
    dims = op.integers("dims")
    held, out = _held_and_output(op, plan) if dims else (_held(op, plan), plan.output(op.outputs[0]))
    if not dims:
        count = held.num_elements
        held, out = _view(plan.value(op.needed("self")), (count,), (1,)), _view(out, (count,), (1,))
    if held.num_elements == 0:
        return
    total: dict[int, int] = {}
    for dim, shift in zip((d % len(held.shape) for d in dims or [0]), op.integers("shifts"), strict=True):
        total[dim] = (total.get(dim, 0) + shift) % held.shape[dim]
    choices = [
        [(dim, 0, shift, held.shape[dim] - shift), *([(dim, held.shape[dim] - shift, 0, shift)] if shift else [])]
        for dim, shift in total.items()
    ]
    moved = []
    for pieces in itertools.product(*choices):
        shape, read, written = list(held.shape), 0, 0
        for dim, first, target, length in pieces:
            shape[dim] = length
            read += first * held.strides[dim]
            written += target * out.strides[dim]
        moved.append((_view(out, shape, out.strides, written), _view(held, shape, held.strides, read)))
    emit_pieces(plan, out, moved)


def full(name: str | None, constant: float = 0) -> Callable[[Op, HostPlanner], None]:
    """Fill with an attribute, or with a constant."""

    def emit(op: Op, plan: HostPlanner) -> None:
        tensor = op.operand(name) if name else None
        out = plan.output(op.outputs[0])
        if tensor is not None:
            emit_copy(plan, out, broadcast(plan.value(tensor), out.shape))
        else:
            emit_fill(plan, out, op.number(name) if name else constant)

    return emit


def arange(op: Op, plan: HostPlanner) -> None:
    """Number elements from ``start`` by ``step``."""
    result = op.outputs[0]
    first, step = op.number("start", 0), op.number("step", 1)
    floating = result.dtype.is_floating
    out = plan.output(result, DType.FLOAT if floating else DType.LONG)
    ints = ArangeInts(not floating, *((0, 0) if floating else (int(first), int(step))))
    plan.step(
        ARANGE, [out], [], ints=ints, scalars=ArangeScalars(float(first), float(step)), items=result.num_elements,
        grain=COPY_SHARE,
    )


def linspace(op: Op, plan: HostPlanner) -> None:
    """Number elements from ``start`` to ``end`` at equal distances; whole numbers are rounded towards zero."""
    result, steps = op.outputs[0], op.outputs[0].num_elements
    floating = result.dtype.is_floating
    first, last = (float(op.number(name)) for name in ("start", "end"))
    if not floating:
        first, last = float(int(first)), float(int(last))
    step = (last - first) / (steps - 1) if steps > 1 else 0.0
    scalars = LinspaceScalars(first, first if steps == 1 else last, step)
    out = plan.output(result, DType.FLOAT if floating else DType.LONG)
    ints = LinspaceInts(not floating, steps)
    plan.step(LINSPACE, [out], [], ints=ints, scalars=scalars, items=steps, grain=COPY_SHARE)


# --------------------------------------------------------------------------- records
def lower_linspace(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower as a fill; whole numbers are rounded from what only the sum of all steps gives, on one tile."""
    return fill_vertices(numbered if op.outputs[0].dtype.is_floating else None)(op, target)


def _records(
    targets: str, emit: Callable[[Op, HostPlanner], None], lower: Lowering, *, is_view: bool = False,
    constraints: tuple[Constraint, ...] = (), pieces: Pieces | None = None, shape_only: tuple[str, ...] = (),
) -> None:
    for target in targets.split():
        name, _, overload = target.partition(".")
        register(OpSpec(f"aten.{name}.{overload or 'default'}", name, lower, emit, is_view=is_view,
                        moves=is_view or lower in (MOVE, FLIP), constraints=constraints, pieces=pieces,
                        shape_only=shape_only))


def _run_of_clone(op: Op) -> int | None:
    """A clone mostly makes a permuted view row-major; whether it does is known to the planner alone."""
    return None


MOVE = copy_vertices(_run_of_clone)
FLIP = copy_vertices(lambda op: 1)
_VIEWS: tuple[tuple[str, Callable[[Op, HostPlanner], None]], ...] = (
    ("view view_copy _unsafe_view reshape _reshape_alias", view),
    ("permute permute_copy transpose.int transpose_copy.int t t_copy", permute),
    ("expand expand_copy", expand),
    ("unsqueeze unsqueeze_copy", unsqueeze),
    ("squeeze squeeze.dim squeeze.dims squeeze_copy squeeze_copy.dim squeeze_copy.dims", squeeze),
    ("slice.Tensor slice_copy.Tensor", slice_),
    ("select.int select_copy.int", select),
    ("alias alias_copy detach detach_copy", alias),
    ("diagonal diagonal_copy", diagonal),
    ("split.Tensor split_copy.Tensor unsafe_split.Tensor", split),
    ("split_with_sizes split_with_sizes_copy unsafe_split_with_sizes", split),
    ("unbind.int unbind_copy.int", unbind),
)
for _targets, _emit in _VIEWS:
    _records(_targets, _emit, no_vertices, is_view=True)
register(OpSpec("torchipu.checkpoint.default", "checkpoint", no_vertices, alias, is_view=True, moves=True))
_records("clone lift_fresh_copy", clone, MOVE)
_records("cat", concatenate(pieces_of_cat), MOVE, pieces=pieces_of_cat)
_records("stack", concatenate(pieces_of_stack), MOVE, pieces=pieces_of_stack)
_records("constant_pad_nd", pad, MOVE)
_records("slice_scatter", slice_scatter, MOVE, constraints=(has_dim(), shaped_as("src", _shape_of_slice)))
_records("select_scatter", select_scatter, MOVE, constraints=(shaped_as("src", _shape_of_selected),))
_records("slice_backward", slice_backward, MOVE)
_records("select_backward", select_backward, MOVE)
_records("repeat", repeat, MOVE)
_records("flip", flip, FLIP)
_records("roll", roll, MOVE)
_records("full full_like new_full", full("fill_value"), fill_vertices(filled("fill_value")),
         shape_only=("self",))
_records("scalar_tensor", full("s"), fill_vertices(filled("s")))
_records("fill.Scalar fill.Tensor", full("value"), fill_vertices(filled("value")), shape_only=("self",))
_records("ones ones_like new_ones", full(None, 1), fill_vertices(filled(None, 1)), shape_only=("self",))
_records(
    "zeros zeros_like new_zeros zero empty.memory_format empty_permuted empty_like new_empty new_empty_strided "
    "empty_strided _efficientzerotensor",
    full(None, 0), fill_vertices(filled(None, 0)), shape_only=("self",),
)
_records("arange arange.start arange.start_step", arange, fill_vertices(numbered))
_records("linspace", linspace, lower_linspace)
