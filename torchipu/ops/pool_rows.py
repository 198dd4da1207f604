"""The windows of pools as tables along each dimension, and pooling of values that have their channels last.

Such values are pooled as they lie, in programs that keep their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torchipu._kernels.table import window_rows as kernels
from torchipu._kernels.table.kernel import Kernel, Nothing
from torchipu.host.emit.items import grain_for
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.emission import emit_cast
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.random_streams import rounding_stream

LEAST_CHUNK_READS = 20_000  # window elements that make a chunk worth a thread
CHANNELS_TOGETHER = 64  # that an item puts to their places: their cache lines are whole

Triple = tuple[int, int, int]
Window = tuple[int, int, int]  # first position, end, divisor


# --------------------------------------------------------------------------- windows along each dimension
def sizes_of(tensor: Tensor, dimensions: int) -> Triple:
    """Return depth, height and width; the depth of an image is 1."""
    first, second, third = (1,) * (3 - dimensions) + tensor.shape[len(tensor.shape) - dimensions :]
    return first, second, third


def triple(op: Op, name: str, default: Triple = (1, 1, 1), dimensions: int = 3) -> Triple:
    """Return an argument for each of some dimensions as one of depth, height and width; of the others its default."""
    values = op.integers(name, ()) or default[3 - dimensions :]
    first, second, third = default[: 3 - dimensions] + (values * dimensions if len(values) == 1 else values)
    return first, second, third


def fixed_windows(
    op: Op, image: Triple, pooled: Triple, *, averages: bool, dimensions: int = 3,
) -> list[list[Window]]:
    """Windows of a fixed size; a divisor that the user gives belongs to the depth."""
    window = triple(op, "kernel_size", dimensions=dimensions)
    padding, stride = triple(op, "padding", (0, 0, 0), dimensions), triple(op, "stride", window, dimensions)
    dilation = triple(op, "dilation", dimensions=dimensions)
    override = op.integer("divisor_override", None)
    tables = []
    for dim in range(3):
        table = []
        for i in range(pooled[dim]):
            begin = i * stride[dim] - padding[dim]
            first = begin + -(min(begin, 0) // dilation[dim]) * dilation[dim]
            end = min(begin + (window[dim] - 1) * dilation[dim] + 1, image[dim])
            counted = min(begin + window[dim], image[dim] + padding[dim]) - begin
            divisor = counted if averages and op.flag("count_include_pad") else end - first
            table.append((first, end, max(1, divisor) if override is None else override if dim == 0 else 1))
        tables.append(table)
    return tables


def adaptive_windows(image: Triple, pooled: Triple) -> list[list[Window]]:
    """Windows that cover the image evenly."""
    return [
        [(i * size // count, -(-(i + 1) * size // count), -(-(i + 1) * size // count) - i * size // count)
         for i in range(count)]
        for size, count in zip(image, pooled, strict=True)
    ]


def volumes_of(tensor: Tensor, dimensions: int) -> int:
    """Return how many images of so many dimensions there are, one for each channel."""
    return prod(tensor.shape[: len(tensor.shape) - dimensions])


def reads_of(tables: Sequence[Sequence[Window]]) -> int:
    """Elements that the windows of one volume hold."""
    return prod(sum(max(0, end - first) for first, end, _ in table) for table in tables)


# --------------------------------------------------------------------------- channels last
def _may_be_rows(*values: HostTensor) -> bool:
    """Whether values lie with their channels last; where there is one position they lie row-major as well."""
    return all(
        len(held.shape) > 2 and held.permuted((0, *range(2, len(held.shape)), 1)).is_contiguous for held in values
    )


def _are_rows(*values: HostTensor) -> bool:
    """Whether values lie with their channels last, and not all of them row-major as well."""
    return _may_be_rows(*values) and any(held.has_channels_last for held in values)


def _is_served(op: Op, result: Tensor) -> bool:
    """Whether a result is of floats, or of halves that are the nearest: random bits are drawn in row-major order."""
    is_nearest = rounding_stream(op, result) is None and op.text("half_overflow", "infinity") == "infinity"
    is_of_type = result.dtype is DType.FLOAT or (result.dtype is DType.HALF and is_nearest)
    return is_of_type and bool(result.num_elements)


def _computed(held: HostTensor, plan: HostPlanner) -> HostTensor:
    """Return where the floats of a result are computed: where it is held, or beside its halves, in their order."""
    if held.dtype is DType.FLOAT:
        return held
    return plan.scratch([held.shape[dim] for dim in held.order])


def _store(held: HostTensor, computed: HostTensor, plan: HostPlanner) -> None:
    """Make halves of what was computed beside them."""
    if held.dtype is not DType.FLOAT:
        emit_cast(plan, held.permuted(held.order), computed)


def _windows_step(
    plan: HostPlanner, kernel: Kernel[kernels.WindowRowsInts, Nothing], outputs: Sequence[HostTensor], x: HostTensor,
    ints: kernels.WindowRowsInts, tables: Sequence[Sequence[Window]], rows: int,
) -> None:
    held = [plan.constant([value for row in table for value in row], DType.LONG) for table in tables]
    reads = x.shape[0] * ints.channels * max(prod(ints.size), reads_of(tables))
    plan.step(kernel, outputs, [x, *held], ints=ints, items=rows, grain=grain_for(rows, reads, LEAST_CHUNK_READS))


def emit_max_of_rows(
    op: Op, plan: HostPlanner, dimensions: int, tables: Sequence[Sequence[Window]], step: Triple,
) -> bool:
    """Emit a max-pool whose operand and results have their channels last.

    Args:
        op: With the largest values and their places as results.
        plan: The planner.
        dimensions: Of the images.
        tables: The windows.
        step: From one position of a window to the next.

    Returns:
        Whether they lie so; nothing is emitted otherwise.
    """
    result, places = op.outputs
    if not _is_served(op, result):
        return False
    x = plan.value_as_held(op.inputs[0], DType.FLOAT)
    if not _may_be_rows(x):
        return False
    y = plan.output_as_held(result, x)
    is_wanted = plan.wanted(places)
    index = plan.output_as_held(places, x, DType.LONG) if is_wanted else plan.scratch((1,), DType.LONG)
    if not _are_rows(x, y) or (is_wanted and not _may_be_rows(index)):
        return False
    image, pooled = sizes_of(op.inputs[0], dimensions), sizes_of(result, dimensions)
    ints = kernels.WindowRowsInts(image, pooled, step, x.shape[1], has_indices=is_wanted)
    rows = x.shape[0] * pooled[0] * pooled[1]
    computed = _computed(y, plan)
    _windows_step(plan, kernels.WINDOW_ROWS_MAX, [computed, index], x, ints, tables, rows)
    _store(y, computed, plan)
    return True


def emit_mean_of_rows(
    op: Op, plan: HostPlanner, dimensions: int, tables: Sequence[Sequence[Window]], *, is_backward: bool,
    in_floats: bool,
) -> bool:
    """Emit an average pool, or its gradient, whose operand and result have their channels last.

    Args:
        op: The pool.
        plan: The planner.
        dimensions: Of the images.
        tables: The windows.
        is_backward: Whether it is the gradient.
        in_floats: Whether it sums in float, as the kernel of planes does.

    Returns:
        Whether they lie so; nothing is emitted otherwise.
    """
    result = op.outputs[0]
    if not _is_served(op, result):
        return False
    x = plan.value_as_held(op.inputs[0], DType.FLOAT)
    if not _may_be_rows(x):
        return False
    y = plan.output_as_held(result, x)
    if not _are_rows(x, y):
        return False
    sides = (result, op.inputs[0]) if is_backward else (op.inputs[0], result)
    image, pooled = (sizes_of(side, dimensions) for side in sides)
    ints = kernels.WindowRowsInts(image, pooled, (1, 1, 1), x.shape[1], in_floats=in_floats)
    kernel = kernels.WINDOW_ROWS_MEAN_BACKWARD if is_backward else kernels.WINDOW_ROWS_MEAN
    depth, height, _ = image if is_backward else pooled
    computed = _computed(y, plan)
    _windows_step(plan, kernel, [computed], x, ints, tables, x.shape[0] * depth * height)
    _store(y, computed, plan)
    return True


def emit_places_of_rows(op: Op, plan: HostPlanner, dimensions: int) -> bool:
    """Emit the gradient of a max-pool whose operands and result have their channels last.

    Args:
        op: The gradient.
        plan: The planner.
        dimensions: Of the images.

    Returns:
        Whether they lie so; nothing is emitted otherwise.
    """
    data, indices, result = op.needed("grad_output"), op.needed("indices"), op.outputs[0]
    if not _is_served(op, result):
        return False
    x, places = plan.value_as_held(data, DType.FLOAT), plan.value_as_held(indices, DType.LONG)
    if not _may_be_rows(x, places):
        return False
    y = plan.output_as_held(result, x)
    if not _are_rows(x, y):
        return False
    channels, positions = x.shape[1], prod(sizes_of(result, dimensions))
    items = x.shape[0] * ceil_div(channels, CHANNELS_TOGETHER)
    computed = _computed(y, plan)
    plan.step(
        kernels.WINDOW_ROWS_ADD, [computed], [x, places],
        ints=kernels.PlacingRowsInts(positions, prod(sizes_of(data, dimensions)), channels, CHANNELS_TOGETHER),
        items=items, grain=grain_for(items, result.num_elements, LEAST_CHUNK_READS),
    )
    _store(y, computed, plan)
    return True
