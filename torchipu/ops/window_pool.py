"""Pooling that the two-dimensional kernels do not serve: three dimensions, adaptive maxima, and undone max-pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from torchipu._kernels.table import pool as pool_kernels
from torchipu._kernels.table import window as kernels
from torchipu._kernels.table.kernel import Kernel, Nothing
from torchipu._kernels.table.pool import PlacingInts
from torchipu.device.row_access import lower_update
from torchipu.device.tilings import windows
from torchipu.device.tilings.indexed import unpooled
from torchipu.host.emit.items import grain_for
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ops.pool import BACKWARD, FORWARD, lowering, of_operand, of_result, once
from torchipu.ops.pool_rows import (
    LEAST_CHUNK_READS,
    Triple,
    Window,
    adaptive_windows,
    emit_max_of_rows,
    emit_mean_of_rows,
    emit_places_of_rows,
    fixed_windows,
    reads_of,
    sizes_of,
    triple,
    volumes_of,
)
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register


# --------------------------------------------------------------------------- host side
def _windows_step(
    plan: HostPlanner, kernel: Kernel[kernels.WindowInts, Nothing], outputs: Sequence[HostTensor], x: HostTensor,
    image: Triple, pooled: Triple, step: Triple, tables: Sequence[Sequence[Window]], volumes: int,
) -> None:
    if not volumes or not prod(image) or not prod(pooled):
        return
    held = [plan.constant([value for row in table for value in row], DType.LONG) for table in tables]
    plan.step(
        kernel, outputs, [x, *held], ints=kernels.WindowInts(image, pooled, step), items=volumes,
        grain=grain_for(volumes, volumes * max(prod(image), reads_of(tables)), LEAST_CHUNK_READS),
        writes=[Blocks.rows(volumes, held) for held in outputs],
    )


def _emit_max(dimensions: int, *, adaptive: bool) -> Emitter:
    def emit(op: Op, plan: HostPlanner) -> None:
        x, result = op.inputs[0], op.outputs[0]
        image, pooled = sizes_of(x, dimensions), sizes_of(result, dimensions)
        tables = adaptive_windows(image, pooled) if adaptive else fixed_windows(op, image, pooled, averages=False)
        step = (1, 1, 1) if adaptive else triple(op, "dilation")
        if emit_max_of_rows(op, plan, dimensions, tables, step):
            return
        outputs = [plan.output(result, DType.FLOAT), plan.output(op.outputs[1], DType.LONG)]
        _windows_step(plan, kernels.WINDOW_MAX, outputs, plan.value(x, DType.FLOAT), image, pooled, step, tables,
                      volumes_of(x, dimensions))

    return emit


def _emit_mean(*, adaptive: bool, backward: bool) -> Emitter:
    kernel = kernels.WINDOW_MEAN_BACKWARD if backward else kernels.WINDOW_MEAN

    def emit(op: Op, plan: HostPlanner) -> None:
        x, result = op.inputs[0], op.outputs[0]
        image, pooled = (sizes_of(t, 3) for t in ((result, x) if backward else (x, result)))
        tables = adaptive_windows(image, pooled) if adaptive else fixed_windows(op, image, pooled, averages=True)
        if emit_mean_of_rows(op, plan, 3, tables, is_backward=backward, in_floats=False):
            return
        _windows_step(plan, kernel, [plan.output(result, DType.FLOAT)], plan.value(x, DType.FLOAT), image, pooled,
                      (1, 1, 1), tables, volumes_of(x, 3))

    return emit


def _emit_by_index(dimensions: int, kernel: Kernel[PlacingInts, Nothing], values: str) -> Emitter:
    """Put values, or add gradients, where the indices say."""

    def emit(op: Op, plan: HostPlanner) -> None:
        if values == "grad_output" and emit_places_of_rows(op, plan, dimensions):
            return
        data, indices, result = op.operand(values), op.operand("indices"), op.outputs[0]
        assert data is not None
        assert indices is not None
        volumes = volumes_of(result, dimensions)
        sizes = PlacingInts(prod(sizes_of(result, dimensions)), prod(sizes_of(data, dimensions)))
        inputs = [plan.value(data, DType.FLOAT), plan.value(indices, DType.LONG)]
        out = plan.output(result, DType.FLOAT)
        if result.num_elements:
            plan.step(kernel, [out], inputs, ints=sizes, items=volumes,
                      grain=grain_for(volumes, result.num_elements, LEAST_CHUNK_READS),
                      writes=[Blocks.rows(volumes, out)])

    return emit


# --------------------------------------------------------------------------- device side
def _window(op: Op) -> int:
    return prod(triple(op, "kernel_size"))


def _overlap(op: Op) -> int:
    """Windows that an input element lies in, at most."""
    window = triple(op, "kernel_size")
    return prod(-(-size // stride) for size, stride in zip(window, triple(op, "stride", window), strict=True))


def _ratio(op: Op) -> int:
    large, small = sorted((op.inputs[0], op.outputs[0]), key=lambda t: -t.num_elements)
    return max(1, -(-large.num_elements // max(1, small.num_elements)))


_LOWER_PLACING = lower_update(unpooled)


def _fixed_windows(*, backward: bool) -> windows.Geometry:
    return windows.fixed(*((of_result, of_operand) if backward else (of_operand, of_result)), 3)


def _adaptive_windows(dimensions: int, *, backward: bool) -> windows.Geometry:
    return windows.adaptive(*((of_result, of_operand) if backward else (of_operand, of_result)), dimensions)


def _backward_of_max(
    name: str, kind: str, dimensions: int, window: Callable[[Op], int], geometry: windows.Geometry,
) -> OpSpec:
    return OpSpec(
        f"aten.{name}_backward.default", f"{kind}_backward",
        lowering(BACKWARD, window, windows.maximum_backward(geometry)),
        _emit_by_index(dimensions, pool_kernels.MAX_POOL_BACKWARD, "grad_output"), dtypes=(*FLOATING, DType.LONG),
        shape_only=("self",),
    )


register(
    OpSpec("aten.max_pool3d_with_indices.default", "max_pool3d",
           lowering(FORWARD, _window, windows.maximum(_fixed_windows(backward=False)),
                    in_pieces=windows.maximum_in_pieces(_fixed_windows(backward=False))),
           _emit_max(3, adaptive=False), dtypes=FLOATING),
    _backward_of_max("max_pool3d_with_indices", "max_pool3d", 3, _overlap, _fixed_windows(backward=True)),
    *(OpSpec(f"aten.adaptive_max_pool{dimensions}d.default", f"adaptive_max_pool{dimensions}d",
             lowering(FORWARD, _ratio, windows.maximum(_adaptive_windows(dimensions, backward=False)), once,
                      windows.maximum_in_pieces(_adaptive_windows(dimensions, backward=False))),
             _emit_max(dimensions, adaptive=True), dtypes=FLOATING)
      for dimensions in (2, 3)),
    *(_backward_of_max(f"adaptive_max_pool{dimensions}d", f"adaptive_max_pool{dimensions}d", dimensions, _ratio,
                       _adaptive_windows(dimensions, backward=True))
      for dimensions in (2, 3)),
    OpSpec("aten.avg_pool3d.default", "avg_pool3d",
           lowering(FORWARD, _window, windows.average(_fixed_windows(backward=False)),
                    in_pieces=windows.average_in_pieces(_fixed_windows(backward=False))),
           _emit_mean(adaptive=False, backward=False), dtypes=FLOATING),
    OpSpec("aten.avg_pool3d_backward.default", "avg_pool3d_backward",
           lowering(BACKWARD, _overlap, windows.average_backward(_fixed_windows(backward=True))),
           _emit_mean(adaptive=False, backward=True), dtypes=FLOATING),
    OpSpec("aten._adaptive_avg_pool3d.default", "adaptive_avg_pool3d",
           lowering(FORWARD, _ratio, windows.average(_adaptive_windows(3, backward=False)), once,
                    windows.average_in_pieces(_adaptive_windows(3, backward=False))),
           _emit_mean(adaptive=True, backward=False), dtypes=FLOATING),
    OpSpec("aten._adaptive_avg_pool3d_backward.default", "adaptive_avg_pool3d_backward",
           lowering(BACKWARD, _ratio, windows.average_backward(_adaptive_windows(3, backward=True)), once),
           _emit_mean(adaptive=True, backward=True), dtypes=FLOATING),
    *(OpSpec(f"aten.max_unpool{dimensions}d.default", f"max_unpool{dimensions}d", _LOWER_PLACING,
             _emit_by_index(dimensions, kernels.WINDOW_PLACE, "self"), dtypes=(*FLOATING, DType.LONG))
      for dimensions in (2, 3)),
)
