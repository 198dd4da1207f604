"""Windows and diagonals: strided views of an operand, copies of them, and gradients that add where windows overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from torchipu._kernels.table.copy import TRIANGLE, TriangleInts
from torchipu._kernels.table.resample import (
    ADD_STRIDED,
    ADD_WINDOWS,
    WINDOW_ELEMENTS,
    AddStridedInts,
    AddWindowsInts,
)
from torchipu.device.codelets import FILL, vector_codelet
from torchipu.device.compute_sets import copy_set, copy_vertices, elementwise_set, no_vertices
from torchipu.device.tilings.moves import around, put_in
from torchipu.device.tilings.sums import overlaps
from torchipu.host.emit.copy import COPY_SHARE, emit_copy, emit_fill
from torchipu.host.emit.rows import row_grain
from torchipu.ir.graph import Op
from torchipu.ir.sizes import largest, least
from torchipu.ir.types import DType
from torchipu.ops.view import diagonal_of, of_shape
from torchipu.optable.arguments import at_least, shaped_as
from torchipu.optable.codelet import Lowering, Vertices
from torchipu.optable.host_tensor import HostTensor, collapse
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import Constraint, OpSpec, register
from torchipu.target import Target

WINDOW_BLOCK = 1 << 14
"""Elements of sums that a thread adds windows to at a time."""


def _held(op: Op, plan: HostPlanner, name: str = "self") -> HostTensor:
    return plan.value(op.needed(name), contiguous=False)


def _add(plan: HostPlanner, out: HostTensor, part: HostTensor) -> None:
    """Add one strided tensor to another of the same shape whose elements do not overlap."""
    if out.num_elements == 0:
        return
    shape, (written, read) = collapse(out.shape, out.strides, part.strides)
    plan.step(ADD_STRIDED, [out], [part], ints=AddStridedInts(len(shape), (*shape, *written, *read)),
              items=prod(shape[:-1]), grain=row_grain(shape[-1]), reads_outputs=True)


# --------------------------------------------------------------------------- windows along a dimension
def windows_of(held: HostTensor, dim: int, size: int, step: int) -> HostTensor:
    """Return the windows of a dimension as a view; what a window holds is the last dimension."""
    if not held.shape:
        return replace(held, shape=(size,), strides=(1,))
    dim %= len(held.shape)
    shape, strides = list(held.shape), list(held.strides)
    shape[dim] = (held.shape[dim] - size) // step + 1
    strides[dim] *= step
    return replace(held, shape=(*shape, size), strides=(*strides, held.strides[dim]))


def _emit_unfold(op: Op, plan: HostPlanner) -> None:
    held = _held(op, plan)
    plan.alias(op.outputs[0], windows_of(held, op.integer("dimension"), op.integer("size"), op.integer("step")))


def _emit_unfold_grad(op: Op, plan: HostPlanner) -> None:
    """Add up, at each position of the dimension, what the windows hold that have it."""
    dy, out = _held(op, plan, "grad_in"), plan.output(op.outputs[0], DType.FLOAT)
    dy = plan.value(op.needed("grad_in"), DType.FLOAT, contiguous=False)
    size, step, dim = op.integer("size"), op.integer("step"), op.integer("dim")
    if size <= step or not out.shape or 0 in (out.num_elements, dy.num_elements):
        emit_fill(plan, out, 0)
        emit_copy(plan, windows_of(out, dim, size, step), dy)
        return
    dim %= len(out.shape)
    steps = _around(dy, dim)
    if steps is None:
        dy = plan.value(op.needed("grad_in"), DType.FLOAT)
        steps = _around(dy, dim)
        assert steps is not None
    positions, inner = out.shape[dim], prod(out.shape[dim + 1 :])
    block = largest(1, least(positions, WINDOW_BLOCK // inner))
    ints = AddWindowsInts(
        windows=dy.shape[dim], step=step, size=size, positions=positions, inner=inner, block=block,
        from_outer=steps[0], from_window=dy.strides[dim], from_inner=steps[1], from_position=dy.strides[-1],
    )
    items = prod(out.shape[:dim]) * -(-positions // block)
    plan.step(
        ADD_WINDOWS, [out], [dy], ints=ints, items=items, grain=row_grain(largest(1, dy.num_elements // items)),
        scratch_bytes=4 * size * WINDOW_ELEMENTS,
    )


def _around(held: HostTensor, dim: int) -> tuple[int, int] | None:
    """Return the strides along all before a dimension and all behind it but the last; None if there are more."""
    before, (outer,) = collapse(held.shape[:dim], held.strides[:dim])
    behind, (inner,) = collapse(held.shape[dim + 1 : -1], held.strides[dim + 1 : -1])
    return (outer[0], inner[0]) if len(before) == len(behind) == 1 else None


# --------------------------------------------------------------------------- windows of images
def _patches(op: Op, padded: HostTensor) -> HostTensor:
    """Return ``[N, C, kernel height, kernel width, height, width]`` of a padded image as a view."""
    (kh, kw), (dh, dw), (sh, sw) = (op.integers(name) for name in ("kernel_size", "dilation", "stride"))
    n, c, height, width = padded.shape
    ns, cs, ys, xs = padded.strides
    across = ((height - dh * (kh - 1) - 1) // sh + 1, (width - dw * (kw - 1) - 1) // sw + 1)
    return replace(padded, shape=(n, c, kh, kw, *across), strides=(ns, cs, ys * dh, xs * dw, ys * sh, xs * sw))


def _batched(held: HostTensor, rank: int) -> HostTensor:
    """Return the tensor with a batch dimension."""
    if len(held.shape) == rank:
        return held
    return replace(held, shape=(1, *held.shape), strides=(0, *held.strides))


def _emit_im2col(op: Op, plan: HostPlanner) -> None:
    held, out = _batched(_held(op, plan), 4), plan.output(op.outputs[0])
    if out.num_elements == 0:
        return
    ph, pw = op.integers("padding")
    if ph or pw:
        n, c, height, width = held.shape
        padded = plan.scratch((n, c, height + 2 * ph, width + 2 * pw), held.dtype)
        emit_fill(plan, padded, 0)
        emit_copy(plan, _inside(padded, ph, pw), held)
        held = padded
    patches = _patches(op, held)
    flat = plan.scratch(patches.shape, held.dtype)
    emit_copy(plan, replace(flat, buffer=out.buffer, offset=out.offset), patches)


def _inside(padded: HostTensor, ph: int, pw: int) -> HostTensor:
    """Return a padded image without its border."""
    n, c, height, width = padded.shape
    offset = padded.offset + ph * padded.strides[2] + pw * padded.strides[3]
    return replace(padded, offset=offset, shape=(n, c, height - 2 * ph, width - 2 * pw))


def _emit_col2im(op: Op, plan: HostPlanner) -> None:
    """Add the patches one position of the window at a time: the elements of a position never overlap."""
    held = _batched(plan.value(op.needed("self"), DType.FLOAT), 3)
    out = plan.output(op.outputs[0], DType.FLOAT)
    if out.num_elements == 0:
        return
    image = _batched(out, 4)
    n, c, height, width = image.shape
    ph, pw = op.integers("padding")
    padded = plan.scratch((n, c, height + 2 * ph, width + 2 * pw)) if ph or pw else image
    emit_fill(plan, padded, 0)
    patches = _patches(op, padded)
    flat = replace(plan.scratch(patches.shape), buffer=held.buffer, offset=held.offset)
    for y in range(patches.shape[2]):
        for x in range(patches.shape[3]):
            _add(plan, _position(patches, y, x), _position(flat, y, x))
    if padded is not image:
        emit_copy(plan, image, _inside(padded, ph, pw))


def _position(patches: HostTensor, y: int, x: int) -> HostTensor:
    """Return one position of the window in all patches."""
    offset = patches.offset + y * patches.strides[2] + x * patches.strides[3]
    return replace(patches, offset=offset, shape=(*patches.shape[:2], *patches.shape[4:]),
                   strides=(*patches.strides[:2], *patches.strides[4:]))


# --------------------------------------------------------------------------- strided views
def _strided(op: Op, held: HostTensor) -> HostTensor:
    offset = held.offset + op.integer("storage_offset", 0)
    return replace(held, offset=offset, shape=op.integers("size"), strides=op.integers("stride"))


def _emit_as_strided(op: Op, plan: HostPlanner) -> None:
    plan.alias(op.outputs[0], _strided(op, plan.value(op.needed("self"))))


def _emit_as_strided_scatter(op: Op, plan: HostPlanner) -> None:
    out = plan.output(op.outputs[0])
    emit_copy(plan, out, _held(op, plan))
    emit_copy(plan, _strided(op, out), _held(op, plan, "src"))


def _lies_within(op: Op) -> bool:
    """Whether all elements of a strided view are elements of the operand."""
    shape, strides = op.integers("size"), op.integers("stride")
    if 0 in shape:
        return True
    first = op.integer("storage_offset", 0)
    last = first + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return 0 <= first <= last < op.needed("self").num_elements


def _is_injective(op: Op) -> bool:
    """Whether no element is shown twice, so that it does not matter in which order they are written."""
    pairs = sorted(zip(op.integers("stride"), op.integers("size"), strict=True))
    reach = 0
    for stride, size in pairs:
        if size > 1 and stride <= reach:
            return False
        reach += (size - 1) * stride
    return True


_WINDOWS = at_least(1, "kernel_size", "stride", "dilation"), at_least(0, "padding")
WITHIN = Constraint(
    _lies_within, "the view reaches beyond the elements of its operand",
    "take the view of the tensor that owns the memory, or use narrow, select and unfold",
)


# --------------------------------------------------------------------------- diagonals and triangles
def _diagonal_of(held: HostTensor, op: Op) -> HostTensor:
    return diagonal_of(held, op.integer("offset", 0), op.integer("dim1", 0), op.integer("dim2", 1))


def _shape_of_diagonal(op: Op) -> tuple[int, ...]:
    return _diagonal_of(of_shape(op.needed("self").shape), op).shape


def _emit_diagonal_scatter(op: Op, plan: HostPlanner) -> None:
    out = plan.output(op.outputs[0])
    emit_copy(plan, out, _held(op, plan))
    emit_copy(plan, _diagonal_of(out, op), _held(op, plan, "src"))


def _emit_on_diagonal(op: Op, plan: HostPlanner) -> None:
    """Emit diag_embed, or the gradient of a diagonal: zeros around a diagonal."""
    out = plan.output(op.outputs[0])
    emit_fill(plan, out, 0)
    emit_copy(plan, _diagonal_of(out, op), _held(op, plan, op.operands[0]))


def _emit_triangle(op: Op, plan: HostPlanner) -> None:
    held, out = plan.value(op.needed("self")), plan.output(op.outputs[0])
    rows, columns = held.shape[-2:]
    ints = TriangleInts(held.dtype.host_bytes, rows, columns, op.integer("diagonal", 0), upper="triu" in op.target)
    plan.step(TRIANGLE, [out], [held], ints=ints, items=prod(held.shape[:-1]) if columns else 0,
              grain=max(1, COPY_SHARE // max(1, columns)))


# --------------------------------------------------------------------------- device side
_SCALED_ADD = vector_codelet("popops::ScaledAdd", 3, 3, supervisor=60, worker_half=24, worker_single=24)


def _lower_zeros_and_copy(op: Op, target: Target) -> tuple[Vertices, ...]:
    """Lower what fills with zeros and copies one operand into part of them."""
    result, part = op.outputs[0], op.inputs[0]
    if result.num_elements == 0 or part.num_elements == 0:
        return ()
    filled = elementwise_set(target, FILL, result.num_elements, result.dtype)
    copied = copy_set(target, part.num_elements, part.dtype, run_elements=1)
    return replace(filled, tiling=around), replace(copied, tiling=put_in)


def _lower_overlaps(windows_of: Callable[[Op], Op]) -> Lowering:
    """Return the lowering of sums of windows: zeros, an exchange, and one addition for each element of the windows.

    Args:
        windows_of: Gives the op that takes the windows.
    """
    tilings = overlaps(windows_of)

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result, part = op.outputs[0], op.inputs[0]
        if result.num_elements == 0 or part.num_elements == 0:
            return ()
        sets = (
            elementwise_set(target, FILL, result.num_elements, result.dtype),
            copy_set(target, part.num_elements, part.dtype, run_elements=max(1, part.shape[-1])),
            elementwise_set(target, _SCALED_ADD, part.num_elements, part.dtype),
        )
        return tuple(replace(one, tiling=tiling) for one, tiling in zip(sets, tilings, strict=True))

    return lower


def _windows_of_unfold(op: Op) -> Op:
    attrs = {"dimension": op.integer("dim"), "size": op.integer("size"), "step": op.integer("step")}
    return Op("unfold", op.outputs, op.inputs, attrs, "aten.unfold.default", ("self",))


def _windows_of_image(op: Op) -> Op:
    return Op("im2col", op.outputs, op.inputs, op.attrs, "aten.im2col.default", ("self",))


def _row_of_result(op: Op) -> int:
    return max(1, op.outputs[0].shape[-1]) if op.outputs[0].shape else 1


def _is_floating(op: Op) -> bool:
    return op.outputs[0].dtype.is_floating


_MOVE, _PICK = copy_vertices(_row_of_result), copy_vertices(lambda op: 1)
for _name in ("unfold", "unfold_copy"):
    register(OpSpec(f"aten.{_name}.default", _name, no_vertices, _emit_unfold, is_view=True))
for _name in ("as_strided", "as_strided_copy"):
    register(OpSpec(f"aten.{_name}.default", _name, no_vertices, _emit_as_strided, is_view=True,
                    constraints=(WITHIN,)))
register(
    OpSpec("aten.unfold_backward.default", "unfold_backward", _lower_overlaps(_windows_of_unfold), _emit_unfold_grad,
           supports=_is_floating),
    OpSpec("aten.im2col.default", "im2col", _MOVE, _emit_im2col, constraints=_WINDOWS),
    OpSpec("aten.col2im.default", "col2im", _lower_overlaps(_windows_of_image), _emit_col2im,
           constraints=_WINDOWS, supports=_is_floating),
    OpSpec("aten.as_strided_scatter.default", "as_strided_scatter", _PICK, _emit_as_strided_scatter,
           constraints=(WITHIN,), supports=_is_injective),
    OpSpec("aten.diagonal_scatter.default", "diagonal_scatter", _PICK, _emit_diagonal_scatter,
           constraints=(shaped_as("src", _shape_of_diagonal),)),
    OpSpec("aten.diagonal_backward.default", "diagonal_backward", _lower_zeros_and_copy, _emit_on_diagonal),
    OpSpec("aten.diag_embed.default", "diag_embed", _lower_zeros_and_copy, _emit_on_diagonal),
    OpSpec("aten.tril.default", "tril", copy_vertices(moved=False), _emit_triangle, moves=True),
    OpSpec("aten.triu.default", "triu", copy_vertices(moved=False), _emit_triangle, moves=True),
)
