"""Max and average pooling over two dimensions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING

from torchipu._kernels.table import pool as kernels
from torchipu._kernels.table.kernel import I, Kernel, Nothing
from torchipu.device.codelets import busiest_elements
from torchipu.device.matrix_unit import AVAILABLE_MEMORY
from torchipu.device.tilings import windows
from torchipu.host.emit.items import grain_for
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ir.vertices import Tiling
from torchipu.ops.pool_rows import (
    LEAST_CHUNK_READS,
    adaptive_windows,
    emit_max_of_rows,
    emit_mean_of_rows,
    emit_places_of_rows,
    fixed_windows,
    sizes_of,
    triple,
)
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.samples import Samples
from torchipu.optable.spec import FLOATING, OpSpec, register

if TYPE_CHECKING:
    from torchipu.target import Target


# --------------------------------------------------------------------------- device side
PARTIAL_BYTES = 4  # of what a piece of a window comes to
CHANNELS_TOGETHER = 8  # channels that lie beside each other; poplibs' tests of pools group so
ROW_CYCLES, ITEM_CYCLES = 13, 20  # of each row, for each element of the window; poplibs, ipu_hardware.md 2.6


def _pool_cycles(per_vector: int, target: Target, work: Mapping[str, int]) -> int:
    """Workers walk rows of positions once for each element of the window (poplibs, ipu_hardware.md 2.6).

    A worker begins and ends within a row, which makes two of what it has at least.
    """
    positions = ceil_div(work["elements"], CHANNELS_TOGETHER * target.num_workers)
    rows = min(positions, ceil_div(positions, work["row"]) + 1)
    vectors = positions * ceil_div(CHANNELS_TOGETHER, work["vector_width"])
    walks = work["window"] * rows * (ROW_CYCLES + ITEM_CYCLES)
    return 33 + target.num_workers * (33 + walks + work["met"] * vectors * per_vector)


FORWARD = Codelet("popnn::Pooling", partial(_pool_cycles, 3), 560, "poplibs estimator, ipu_hardware.md 2.6")
BACKWARD = Codelet("popnn::PoolingGrad", partial(_pool_cycles, 5), 720, "poplibs estimator, ipu_hardware.md 2.6")


def lowering(
    codelet: Codelet, window: Callable[[Op], int], tiling: Tiling | None = None,
    taps: Callable[[Op], int] | None = None, in_pieces: windows.InPieces | None = None,
) -> Lowering:
    """Return the lowering of a pool.

    Args:
        codelet: What runs.
        window: Tells how many elements go into one result.
        tiling: Of the vertices.
        taps: Tells how many elements a window has, each of which is a walk over all results; None where as many go
            into each result.
        in_pieces: Tilings of windows that are cut up, where a tile's are more than it may have at a time; None where
            they never are.
    """

    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        result = op.outputs[0]
        if result.num_elements == 0:
            return ()
        element_bytes, reads = result.dtype.device_bytes, window(op)
        walks = taps(op) if taps else reads
        mine = busiest_elements(target, result.num_elements, CHANNELS_TOGETHER)
        received = min(mine * reads, op.inputs[0].num_elements) * element_bytes
        whole = replace(_pool_set(target, codelet, op, reads, walks, element_bytes), tiling=tiling)
        if in_pieces is None or received <= AVAILABLE_MEMORY * target.tile_memory_bytes:
            return (whole,)
        pieces = min(reads, max(2, ceil_div(target.num_tiles, result.num_elements)))
        begin, finish = in_pieces(pieces)
        walks = ceil_div(walks, pieces)
        first = _pool_set(target, codelet, op, ceil_div(reads, pieces), walks, element_bytes, pieces)
        return (
            replace(first, tiling=begin),
            replace(_pool_set(target, codelet, op, pieces, pieces, PARTIAL_BYTES * len(op.outputs)), tiling=finish),
        )

    return lower


def _pool_set(
    target: Target, codelet: Codelet, op: Op, reads: int, walks: int, element_bytes: int, pieces: int = 1,
) -> Vertices:
    """Return the set of a pool.

    Args:
        target: The machine.
        codelet: What runs.
        op: The pool.
        reads: Elements that go into one result.
        walks: Over all results.
        element_bytes: Of what it reads.
        pieces: Results of each window.
    """
    result = op.outputs[0]
    grain = CHANNELS_TOGETHER if pieces == 1 else 1
    mine = busiest_elements(target, result.num_elements * pieces, grain)
    received = min(mine * reads, op.inputs[0].num_elements) * element_bytes
    width = target.vector_width(result.dtype.device_bytes)
    work = {"vector_width": width, "met": reads, "window": walks, "row": max(1, result.shape[-1])}
    return Vertices(
        codelet,
        result.num_elements * pieces,
        lambda count: {"elements": count, **work},
        grain=grain,
        gathered_bytes=received,
        fragments=max(1, min(reads, 16)),
        temporary_bytes=received,
    )


def _window(op: Op) -> int:
    kh, kw = pair(op, "kernel_size")
    return kh * kw


def _overlap(op: Op) -> int:
    """Windows that an input element lies in, at most."""
    (kh, kw), (sh, sw) = pair(op, "kernel_size"), strides_of(op)
    return -(-kh // sh) * -(-kw // sw)


def _walks(op: Op) -> int:
    """Walks over the input's gradient: elements of the window, of whose rows a stride leaves a part for each row."""
    (kh, kw), (sh, _) = pair(op, "kernel_size"), strides_of(op)
    return ceil_div(kh, sh) * kw


def once(op: Op) -> int:
    """Of windows that do not overlap."""
    return 1


def _adaptive_window(op: Op) -> int:
    large, small = sorted((op.inputs[0], op.outputs[0]), key=lambda t: -t.num_elements)
    return max(1, -(-large.num_elements // max(1, small.num_elements)))


def of_operand(op: Op) -> Tensor:
    """Return the first operand: the image that is pooled, or the gradient of what it was pooled to."""
    return op.inputs[0]


def of_result(op: Op) -> Tensor:
    """Return the first result: what an image is pooled to, or its gradient."""
    return op.outputs[0]


FIXED, FIXED_BACKWARD = (windows.fixed(*sides, 2) for sides in ((of_operand, of_result), (of_result, of_operand)))
ADAPTIVE, ADAPTIVE_BACKWARD = (
    windows.adaptive(*sides, 2) for sides in ((of_operand, of_result), (of_result, of_operand))
)


# --------------------------------------------------------------------------- host side
def pair(op: Op, name: str) -> tuple[int, int]:
    """Return an argument of one or two integers as two."""
    values = op.integers(name)
    return values[0], values[-1]


def strides_of(op: Op) -> tuple[int, int]:
    """Return the strides; the window where none are given."""
    return pair(op, "stride") if op.integers("stride", ()) else pair(op, "kernel_size")


def _planes(tensor: Tensor) -> int:
    count = 1
    for size in tensor.shape[:-2]:
        count *= size
    return count


def _ints(op: Op, image: Tensor, result: Tensor) -> kernels.PoolInts:
    dilation = pair(op, "dilation") if op.given("dilation") else (1, 1)
    return kernels.PoolInts(
        image.shape[-2],
        image.shape[-1],
        result.shape[-2],
        result.shape[-1],
        *pair(op, "kernel_size"),
        *strides_of(op),
        *pair(op, "padding"),
        *dilation,
    )


def _step(
    plan: HostPlanner,
    kernel: Kernel[I, Nothing],
    outputs: list[HostTensor],
    inputs: list[HostTensor],
    ints: I,
    planes: int,
    reads: int,
    scratch_bytes: int = 0,
) -> None:
    """Emit a step over planes that reads ``reads`` elements in all."""
    if planes and reads:
        plan.step(kernel, outputs, inputs, ints=ints, items=planes, grain=grain_for(planes, reads, LEAST_CHUNK_READS),
                  writes=[Blocks.rows(planes, held) for held in outputs],
                  samples=Samples.of(planes, *outputs, *inputs), scratch_bytes=scratch_bytes)


def _emit_max(op: Op, plan: HostPlanner) -> None:
    x = op.needed("self")
    tables = fixed_windows(op, sizes_of(x, 2), sizes_of(op.outputs[0], 2), averages=False, dimensions=2)
    if emit_max_of_rows(op, plan, 2, tables, triple(op, "dilation", dimensions=2)):
        return
    value = plan.value(x, DType.FLOAT)
    y = plan.output(op.outputs[0], DType.FLOAT)
    reads = op.outputs[0].num_elements * _window(op)
    if not plan.wanted(op.outputs[1]):
        scratch_bytes = 8 * prod(op.outputs[0].shape[-2:])
        ints = _ints(op, x, op.outputs[0])
        _step(plan, kernels.MAX_POOL_VALUES, [y], [value], ints, _planes(x), reads, scratch_bytes)
        return
    indices = plan.output(op.outputs[1], DType.LONG)
    _step(plan, kernels.MAX_POOL, [y, indices], [value], _ints(op, x, op.outputs[0]), _planes(x), reads)


def _emit_max_backward(op: Op, plan: HostPlanner) -> None:
    if emit_places_of_rows(op, plan, 2):
        return
    dy, indices, dx = op.operand("grad_output"), op.operand("indices"), op.outputs[0]
    assert dy is not None
    assert indices is not None
    inputs = [plan.value(dy, DType.FLOAT), plan.value(indices, DType.LONG)]
    ints = kernels.PlacingInts(dx.shape[-2] * dx.shape[-1], dy.shape[-2] * dy.shape[-1])
    _step(plan, kernels.MAX_POOL_BACKWARD, [plan.output(dx, DType.FLOAT)], inputs, ints, _planes(dx), dx.num_elements)


def _emit_average(op: Op, plan: HostPlanner) -> None:
    x, result = op.inputs[0], op.outputs[0]
    is_backward = op.kind == "avg_pool2d_backward"
    image, pooled = (result, x) if is_backward else (x, result)
    tables = fixed_windows(op, sizes_of(image, 2), sizes_of(pooled, 2), averages=True, dimensions=2)
    if emit_mean_of_rows(op, plan, 2, tables, is_backward=is_backward, in_floats=True):
        return
    ints = kernels.AveragePoolInts(
        _ints(op, image, pooled), op.flag("count_include_pad"),
        op.integer("divisor_override", 0),
    )
    kernel = kernels.AVG_POOL_BACKWARD if is_backward else kernels.AVG_POOL
    value = plan.value(x, DType.FLOAT)
    reads = max(image.num_elements, pooled.num_elements * _window(op))
    rows = 4 * (image.shape[-1] + pooled.shape[-1]) if is_backward else 0
    _step(plan, kernel, [plan.output(result, DType.FLOAT)], [value], ints, _planes(x), reads, rows)


def _emit_adaptive(op: Op, plan: HostPlanner) -> None:
    x, result = op.inputs[0], op.outputs[0]
    is_backward = op.kind == "adaptive_avg_pool2d_backward"
    image, pooled = (result, x) if is_backward else (x, result)
    tables = adaptive_windows(sizes_of(image, 2), sizes_of(pooled, 2))
    if emit_mean_of_rows(op, plan, 2, tables, is_backward=is_backward, in_floats=False):
        return
    kernel = kernels.ADAPTIVE_POOL_BACKWARD if is_backward else kernels.ADAPTIVE_POOL
    value = plan.value(x, DType.FLOAT)
    ints = kernels.AdaptivePoolInts(*image.shape[-2:], *pooled.shape[-2:])
    _step(plan, kernel, [plan.output(result, DType.FLOAT)], [value], ints, _planes(x), image.num_elements)


def _fits_index(op: Op) -> bool:
    """Indices within a plane are held in 32 bits while a window is searched."""
    return op.inputs[0].shape[-1] * op.inputs[0].shape[-2] < 2**31 if len(op.inputs[0].shape) >= 2 else False


register(
    OpSpec(
        "aten.max_pool2d_with_indices.default",
        "max_pool2d",
        lowering(FORWARD, _window, windows.maximum(FIXED), in_pieces=windows.maximum_in_pieces(FIXED)),
        _emit_max,
        dtypes=FLOATING,
        supports=_fits_index,
    ),
    OpSpec(
        "aten.max_pool2d_with_indices_backward.default",
        "max_pool2d_backward",
        lowering(BACKWARD, _overlap, windows.maximum_backward(FIXED_BACKWARD), _walks),
        _emit_max_backward,
        dtypes=(*FLOATING, DType.LONG),
        shape_only=("self",),
    ),
    OpSpec(
        "aten.avg_pool2d.default",
        "avg_pool2d",
        lowering(FORWARD, _window, windows.average(FIXED), in_pieces=windows.average_in_pieces(FIXED)),
        _emit_average,
        dtypes=FLOATING,
    ),
    OpSpec(
        "aten.avg_pool2d_backward.default",
        "avg_pool2d_backward",
        lowering(BACKWARD, _overlap, windows.average_backward(FIXED_BACKWARD), _walks),
        _emit_average,
        dtypes=FLOATING,
    ),
    OpSpec(
        "aten._adaptive_avg_pool2d.default",
        "adaptive_avg_pool2d",
        lowering(FORWARD, _adaptive_window, windows.average(ADAPTIVE), once, windows.average_in_pieces(ADAPTIVE)),
        _emit_adaptive,
        dtypes=FLOATING,
    ),
    OpSpec(
        "aten._adaptive_avg_pool2d_backward.default",
        "adaptive_avg_pool2d_backward",
        lowering(BACKWARD, once, windows.average_backward(ADAPTIVE_BACKWARD), once),
        _emit_adaptive,
        dtypes=FLOATING,
    ),
)
