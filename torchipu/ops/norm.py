"""Layer, group and batch normalisation, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from torchipu._kernels.table import norm as kernels
from torchipu._kernels.table.convert import Stored
from torchipu._kernels.table.kernel import AnyKernel
from torchipu.device.codelets import reduction_codelet, vector_codelet
from torchipu.device.reductions import chain_sets
from torchipu.device.tilings import norm as tilings
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.host.emit.stored import STORED, stored_alike, type_of_all, value_as_stored
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.sizes import largest, of_numbers
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Lowering, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import Emitter, HostPlanner
from torchipu.optable.samples import Samples
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.target import Target

ROWS_GRAIN_ELEMENTS = 16384
ROW_CHUNK_ELEMENTS = 8192  # of rows taken together: they stay in a first-level cache from pass to pass
LEAST_CHUNK_ROWS, MOST_CHUNK_ROWS = 32, 256  # partial sums are few beside the data; sums in float stay short
_NO_STATISTICS = "aten._native_batch_norm_legit.no_stats"

# --------------------------------------------------------------------------- device side
# Poplibs has no special vertices for norms: they are reductions and broadcast operations (ipu_hardware.md 2.6).
_REDUCE = reduction_codelet("popops::Reduce<add,float>")
_REDUCE_SQUARES = reduction_codelet("popops::Reduce<square-add,float>")
_STATISTICS = vector_codelet("popnn::NormStatisticsInverse", 19, 8, source="estimate")
_BROADCAST = vector_codelet("popops::BroadcastVectorInner", 2, 2, supervisor=15)
_SCALE = vector_codelet("popops::BroadcastScaledAdd", 2, 2, supervisor=15)
_MULTIPLY = vector_codelet("popops::BinaryOp<multiply>", 3, 3)

_FORWARD = (
    (_REDUCE, "reduce"), (_REDUCE_SQUARES, "reduce"), (_STATISTICS, "rows"), (_BROADCAST, "map"), (_SCALE, "map"),
)
_APPLY = ((_STATISTICS, "rows"), (_BROADCAST, "map"), (_SCALE, "map"))
# Whitened activations again, their products with the gradient, two sums, and the gradient of the input.
_BACKWARD = (
    (_BROADCAST, "map"), (_MULTIPLY, "map"), (_REDUCE, "reduce"), (_REDUCE, "reduce"), (_SCALE, "map"), (_SCALE, "map"),
)


def _lower(
    chain: tuple[tuple[Codelet, str], ...], geometry: tilings.Geometry, computed: tilings.Computed,
) -> Lowering:
    def lower(op: Op, target: Target) -> tuple[Vertices, ...]:
        data = op.operand("input")
        if data is None or data.num_elements == 0:
            return ()
        return chain_sets(target, chain, geometry(op).shape, (0, 2), data.dtype, computed)

    return lower


def _layer_width(op: Op) -> int:
    """Return the elements of one row of a layer norm."""
    return prod(op.integers("normalized_shape"))


def _layers(op: Op) -> tilings.Normed:
    data, width = op.needed("input"), _layer_width(op)
    return tilings.Normed(data.num_elements, width, data.num_elements // max(1, width), 1, width)


def _groups(op: Op) -> tilings.Normed:
    samples, depth, positions, groups = _group_sizes(op)
    elements = op.needed("input").num_elements
    return tilings.Normed(elements, depth * positions, samples * groups, positions, depth * groups)


def _channels(op: Op) -> tilings.Normed:
    data = op.needed("input")
    positions, channels = prod(data.shape[2:]), data.shape[1]
    return tilings.Normed(data.num_elements, positions, channels, positions, channels)


def _gradients(op: Op) -> list[Tensor | None]:
    return present_outputs(op, 3)


def _forward(geometry: tilings.Geometry) -> Lowering:
    return _lower(_FORWARD, geometry, tilings.forward(geometry))


def _backward(geometry: tilings.Geometry) -> Lowering:
    """Lower the gradient of a norm whose weights go across its rows."""
    return _lower(_BACKWARD, geometry, tilings.backward(geometry, _gradients))


# --------------------------------------------------------------------------- host side
def present_outputs(op: Op, count: int) -> list[Tensor | None]:
    """Return the results in schema order, None for those that torch does not return."""
    present = op.flags("present", ()) or (True,) * count
    assert isinstance(present, (list, tuple))
    results = iter(op.outputs)
    return [next(results) if there else None for there in present]


def _floats(plan: HostPlanner, tensor: Tensor | None, absent: HostTensor) -> HostTensor:
    """Return a float value; for an absent argument any storage, which the kernel does not read."""
    return absent if tensor is None else plan.value(tensor, DType.FLOAT)


def _result(plan: HostPlanner, tensor: Tensor | None, shape: Sequence[int]) -> HostTensor:
    """Return float storage for a result, scratch where nobody asked for it."""
    return plan.scratch(shape) if tensor is None else plan.output(tensor, DType.FLOAT)


def _data(op: Op, plan: HostPlanner, name: str) -> HostTensor:
    tensor = op.operand(name)
    assert tensor is not None, f"{op.target} without {name}"
    return plan.value(tensor, DType.FLOAT)


def _has(op: Op, name: str) -> bool:
    return op.operand(name) is not None


def _eps(op: Op) -> kernels.NormScalars:
    return kernels.NormScalars(float(op.number("eps")))


def _for_rows(emit: Emitter) -> Emitter:
    """Return an emitter that for an empty batch has no statistics and gradients of 0 for weight and bias."""

    def emit_any(op: Op, plan: HostPlanner) -> None:
        data = op.operand("input")
        assert data is not None
        if data.num_elements:
            emit(op, plan)
            return
        for result in op.outputs:
            emit_fill(plan, plan.output(result), 0)

    return emit_any


def _emit_layer_norm(op: Op, plan: HostPlanner) -> None:
    x = value_as_stored(plan, op.needed("input"))
    width = _layer_width(op)
    outputs = [plan.output(result, DType.FLOAT) for result in op.outputs]
    operands = [x, _floats(plan, op.operand("weight"), x), _floats(plan, op.operand("bias"), x)]
    rows = x.num_elements // width if width else 0
    plan.step(kernels.LAYER_NORM, outputs, operands,
              ints=kernels.LayerNormInts(width, _has(op, "weight"), _has(op, "bias"), STORED[x.dtype]),
              scalars=_eps(op), items=rows, scratch_bytes=0 if x.dtype is DType.FLOAT else 4 * width,
              grain=max(1, ROWS_GRAIN_ELEMENTS // max(1, width)),
              writes=[Blocks.rows(rows, held) for held in outputs],
              samples=Samples.of(rows, *outputs, *(held if held is x else None for held in operands)))


def _emit_layer_norm_grad(op: Op, plan: HostPlanner) -> None:
    dy, x = stored_alike(plan, op.needed("grad_out"), op.needed("input"))
    width = _layer_width(op)
    rows = x.num_elements // width if width else 0
    dx, dweight, dbias = present_outputs(op, 3)
    wants = dweight is not None or dbias is not None
    chunk, chunks = _chunks_of_rows(rows, has_partials=wants)
    partials = plan.scratch((largest(1, chunks) if wants else 1, 2, width))
    statistics = [_data(op, plan, "mean"), _data(op, plan, "rstd")]
    weight = op.operand("weight")
    to, factor = _result(plan, dx, x.shape), _floats(plan, weight, x)
    plan.step(kernels.LAYER_NORM_GRAD, [to, partials],
              [dy, x, *statistics, factor],
              ints=kernels.LayerNormGradInts(rows, width, chunk, weight is not None, wants, STORED[x.dtype]),
              items=chunks, scratch_bytes=0 if x.dtype is DType.FLOAT else 8 * width,
              writes=[Blocks.runs(chunk * width, x)],
              samples=Samples.of(rows, to, None, dy, x, *statistics, x if factor is x else None, each=chunk))
    if wants:
        plan.step(kernels.SUM_PARTIALS, [_result(plan, dweight, (width,)), _result(plan, dbias, (width,))], [partials],
                  ints=kernels.SumPartialsInts(chunks, width), items=width, grain=64,
                  writes=[Blocks.of((width,), (1,))] * 2)


@of_numbers
def _chunks_of_rows(rows: int, *, has_partials: bool) -> tuple[int, int]:
    """Return the length and the number of chunks of rows, from the shape alone.

    Args:
        rows: All of them.
        has_partials: Whether each chunk holds a partial sum of the weights: then they are at most 64 while they stay
            short.
    """
    chunk = min(256, max(16 if has_partials else 1, ceil_div(rows, 64)))
    return chunk, ceil_div(rows, chunk)


def _group_sizes(op: Op) -> tuple[int, int, int, int]:
    """Return samples, channels of a group, positions and groups."""
    samples, channels, positions, groups = (op.integer(name) for name in ("N", "C", "HxW", "group"))
    return samples, channels // groups, positions, groups


class _GroupRows:
    """A group normalisation of values with their channels last, and how its rows are cut into chunks.

    Args:
        op: The normalisation, or its gradient.
    """

    def __init__(self, op: Op) -> None:
        samples, depth, self.positions, groups = _group_sizes(op)
        self.channels = depth * groups
        self.rows = min(MOST_CHUNK_ROWS, max(LEAST_CHUNK_ROWS, ROW_CHUNK_ELEMENTS // max(1, self.channels)))
        self.samples, self.groups = samples, samples * groups
        present = (_has(op, "weight"), _has(op, "bias"))
        self.ints = kernels.GroupRowsInts(depth, self.positions, groups, self.rows, *present)

    def step(
        self, plan: HostPlanner, kernel: AnyKernel, outputs: list[HostTensor], operands: list[HostTensor],
        writes: Sequence[Blocks] = (),
    ) -> None:
        """Add a step whose items are chunks."""
        chunks = ceil_div(self.positions, self.rows)
        elements = min(self.rows, self.positions) * self.channels
        plan.step(kernel, outputs, operands, ints=self.ints, items=self.samples * chunks,
                  grain=max(1, ROWS_GRAIN_ELEMENTS // max(1, elements)), samples=self.of_samples(*outputs, *operands),
                  writes=writes)

    def of_samples(self, *arguments: HostTensor) -> Samples:
        """Return the samples of a step; what has a number for each channel alone is not divided."""
        return Samples.of(self.samples, *(None if held.num_elements == self.channels else held for held in arguments))

    @property
    def chunks(self) -> Blocks:
        """What items write that are chunks, of the data."""
        return Blocks.of((self.samples, self.positions, self.channels), (1, self.rows, self.channels))

    def partials(self, plan: HostPlanner) -> HostTensor:
        """Return room for two numbers for each channel of each chunk."""
        return plan.scratch((self.samples, ceil_div(self.positions, self.rows), 2, self.channels))


def _emit_group_norm_of_rows(op: Op, plan: HostPlanner, x: HostTensor, y: HostTensor) -> None:
    rows, mean, rstd = _GroupRows(op), *(plan.output(result, DType.FLOAT) for result in op.outputs[1:])
    partials = rows.partials(plan)
    rows.step(plan, kernels.GROUP_ROW_MOMENTS, [partials], [x])
    plan.step(kernels.GROUP_ROW_STATISTICS, [mean, rstd], [partials], ints=rows.ints, scalars=_eps(op),
              items=rows.groups, samples=rows.of_samples(mean, rstd, partials))
    factors = [_floats(plan, op.operand(name), x) for name in ("weight", "bias")]
    rows.step(plan, kernels.GROUP_ROW_APPLY, [y], [x, mean, rstd, *factors], [rows.chunks])


def _emit_group_norm_grad_of_rows(
    op: Op, plan: HostPlanner, x: HostTensor, dx: HostTensor, dy: HostTensor, grads: Sequence[Tensor | None],
) -> None:
    rows, mean, rstd = _GroupRows(op), _data(op, plan, "mean"), _data(op, plan, "rstd")
    weight, partials = _floats(plan, op.operand("weight"), x), rows.partials(plan)
    rows.step(plan, kernels.GROUP_ROW_GRAD_SUMS, [partials], [dy, x, mean])
    factors, gradients = plan.scratch((rows.groups, 2)), plan.scratch((rows.samples, 2, rows.channels))
    plan.step(kernels.GROUP_ROW_GRAD_STATISTICS, [factors, gradients], [rstd, partials, weight], ints=rows.ints,
              items=rows.groups, samples=rows.of_samples(factors, gradients, rstd, partials, weight))
    rows.step(plan, kernels.GROUP_ROW_GRAD_APPLY, [dx], [dy, x, mean, rstd, factors, weight], [rows.chunks])
    _add_over_samples(plan, gradients, grads)


def _add_over_samples(plan: HostPlanner, partials: HostTensor, grads: Sequence[Tensor | None]) -> None:
    """Add gradients of weight and bias up, of ``[samples, 2, channels]``, where somebody asks for them."""
    samples, _, channels = partials.shape
    if any(grad is not None for grad in grads):
        plan.step(kernels.SUM_PARTIALS, [_result(plan, grad, (channels,)) for grad in grads], [partials],
                  ints=kernels.SumPartialsInts(samples, channels), items=channels, grain=64,
                  writes=[Blocks.of((channels,), (1,))] * 2)


def _emit_group_norm(op: Op, plan: HostPlanner) -> None:
    samples, depth, positions, groups = _group_sizes(op)
    x, y, _ = _in_and_out(op, plan, op.outputs[0], op.outputs[0])
    if len(x.shape) == 2 < len(op.needed("input").shape):
        _emit_group_norm_of_rows(op, plan, x, y)
        return
    outputs = [y, *(plan.output(result, DType.FLOAT) for result in op.outputs[1:])]
    operands = [x, _floats(plan, op.operand("weight"), x), _floats(plan, op.operand("bias"), x)]
    plan.step(kernels.GROUP_NORM, outputs, operands,
              ints=kernels.GroupNormInts(depth, positions, groups, _has(op, "weight"), _has(op, "bias")),
              scalars=_eps(op), items=samples * groups,
              grain=max(1, ROWS_GRAIN_ELEMENTS // max(1, depth * positions)),
              writes=[Blocks.rows(samples * groups, held) for held in outputs],
              samples=Samples.of(samples * groups, *outputs, *(held if held is x else None for held in operands)))


def _emit_group_norm_grad(op: Op, plan: HostPlanner) -> None:
    samples, depth, positions, groups = _group_sizes(op)
    grads = present_outputs(op, 3)
    x, dx, alike = _in_and_out(op, plan, grads[0], op.outputs[0])
    dy = alike(op.needed("grad_out"))
    if len(x.shape) == 2 < len(op.needed("input").shape):
        _emit_group_norm_grad_of_rows(op, plan, x, dx, dy, grads[1:])
        return
    channels = depth * groups
    partials = plan.scratch((samples, 2, channels))
    weight = op.operand("weight")
    operands = [dy, x, _data(op, plan, "mean"), _data(op, plan, "rstd"), _floats(plan, weight, x)]
    plan.step(kernels.GROUP_NORM_GRAD, [dx, partials], operands,
              ints=kernels.GroupNormInts(depth, positions, groups, weight is not None), items=samples * groups,
              grain=max(1, ROWS_GRAIN_ELEMENTS // max(1, depth * positions)), writes=[Blocks.rows(samples * groups, x)])
    _add_over_samples(plan, partials, grads[1:])


class Batch:
    """Sizes of a batch normalisation, and how its channels are cut.

    Args:
        shape: Of what is normalised, ``[N, C, ...]``.
        stored: As what it lies in memory.

    Attributes:
        samples: N of ``[N, C, L]``.
        channels: C.
        positions: L.
        rows: Samples of a split, or of a chunk of rows where there is one position.
        splits: Pieces of a channel that are summed on their own.
        whole: Whether one item takes a whole channel: there are enough of them and each stays in a cache.
        per_item: Items of one row-wise step that are worth a chunk.
    """

    def __init__(self, shape: Sequence[int], stored: Stored = Stored.FLOATS) -> None:
        self.samples, self.channels, self.stored = shape[0], shape[1], stored
        self.positions = prod(shape[2:])
        self.rows = max(1, kernels.BATCH_SPLIT // max(1, self.positions))
        if self.positions == 1:
            self.rows = min(MOST_CHUNK_ROWS, max(LEAST_CHUNK_ROWS, ROW_CHUNK_ELEMENTS // max(1, self.channels)))
        self.piece = max(1, min(self.positions, kernels.BATCH_SPLIT))
        self.splits = ceil_div(self.samples, self.rows) * ceil_div(self.positions, self.piece)
        each = self.samples * self.positions
        fits = each <= 8192 or (each <= 131072 and self.channels >= 32)
        self.whole = fits and self.stored is Stored.FLOATS
        self.by_rows = (self.samples if self.positions == 1 else self.samples * self.channels)
        row = self.channels if self.positions == 1 else self.positions
        # Of rows, each chunk finds the scales of all channels anew.
        grain = 2 * ROWS_GRAIN_ELEMENTS if self.positions == 1 else ROWS_GRAIN_ELEMENTS
        self.per_item = max(1, grain // max(1, row))
        self.channels_per_chunk = max(1, ROWS_GRAIN_ELEMENTS // max(1, each))

    @property
    def statistics(self) -> Blocks:
        """What items write that are channels, of a value for each channel."""
        return Blocks.of((self.channels,), (1,))

    @property
    def planes(self) -> Blocks:
        """What items write that are channels, of the data."""
        return Blocks.of((self.samples, self.channels, self.positions), (self.samples, 1, self.positions))

    @property
    def chunks(self) -> int:
        """Chunks of rows, where there is one position."""
        return ceil_div(self.samples, self.rows)

    @property
    def chunks_per_grain(self) -> int:
        """Chunks of rows that are worth a thread."""
        return max(1, ROWS_GRAIN_ELEMENTS // max(1, self.rows * self.channels))

    @property
    def ints(self) -> kernels.BatchInts:
        return kernels.BatchInts(self.samples, self.channels, self.positions, self.rows, self.piece,
                                 stored=self.stored)

    def scratch_bytes(self, operands: int) -> int:
        """Return the bytes in which a split, or a chunk of rows, of so many operands becomes floats."""
        elements = min(self.rows, self.samples) * (self.channels if self.positions == 1 else self.piece)
        return 0 if self.stored is Stored.FLOATS else 4 * operands * elements


def _as_rows(held: HostTensor) -> HostTensor:
    """Return what has its channels last as ``[N, C]``, a row for each position."""
    channels = held.shape[1]
    return HostTensor(held.buffer, held.offset, (held.num_elements // channels, channels), (channels, 1), held.dtype)


def _in_and_out(
    op: Op, plan: HostPlanner, result: Tensor | None, rounded_as: Tensor, dtype: DType = DType.FLOAT,
) -> tuple[HostTensor, HostTensor, Callable[[Tensor], HostTensor]]:
    """Return where the input lies, and the result goes, of a batch normalisation of ``[N, C, ...]``, as floats.

    Where channels lie last, both are ``[N, C]``, with a row for each position.

    Args:
        op: The normalisation or its gradient.
        plan: The planner.
        result: Of the shape of the input; None for one that nobody asked for.
        rounded_as: By whose rounding it becomes half.
        dtype: Of the input, and of what is brought into its order.

    Returns:
        The input, the result, and what brings other values of the same shape into the same order.
    """
    data = op.needed("input")
    held = plan.value_as_held(data, dtype if dtype is DType.BFLOAT else None)
    if held.has_channels_last and (result is None or result.dtype is rounded_as.dtype):
        y = plan.scratch(_as_rows(held).shape) if result is None else plan.output_as_held(
            result, held, DType.FLOAT, rounded_as=rounded_as)
        if result is None or y.has_channels_last:
            x = plan.value(data, dtype, contiguous=False)
            return _as_rows(x), y if result is None else _as_rows(y), partial(_rows_of, plan, dtype)
    else:
        y = _result(plan, result, data.shape) if result is None or result is rounded_as else plan.output(
            result, DType.FLOAT, rounded_as=rounded_as)
    return plan.value(data, dtype), y, lambda other: plan.value(other, dtype)


def _rows_of(plan: HostPlanner, dtype: DType, tensor: Tensor) -> HostTensor:
    """Return a value of ``[N, C, ...]`` with its channels last, as ``[N, C]``, copied there if need be."""
    held = plan.value(tensor, dtype, contiguous=False)
    if not held.has_channels_last:
        order = (0, *range(2, len(held.shape)), 1)
        lying = plan.scratch([held.shape[dim] for dim in order], dtype)
        emit_copy(plan, lying, held.permuted(order))
        return HostTensor(lying.buffer, 0, (lying.num_elements // lying.shape[-1], lying.shape[-1]),
                          (lying.shape[-1], 1), lying.dtype)
    return _as_rows(held)


def _emit_batch_norm(op: Op, plan: HostPlanner) -> None:
    emit_batch_norm(op, plan, op.outputs[0])


def emit_batch_norm(
    op: Op, plan: HostPlanner, result: Tensor, addend: Tensor | None = None, *, is_relu: bool = False
) -> None:
    """Normalise by the batch's statistics; keep running ones where the op has them.

    Args:
        op: The normalisation.
        plan: The planner.
        result: What comes of it, after the sum and the ReLU.
        addend: Added to the normalised values.
        is_relu: Whether negative results become 0.
    """
    dtype = DType.FLOAT if addend is not None else plan.stored_type(op.needed("input"))
    x, y, alike = _in_and_out(op, plan, result, op.outputs[0], dtype)
    sizes = Batch(x.shape, STORED[x.dtype])
    weight, bias = (_floats(plan, op.operand(name), x) for name in ("weight", "bias"))
    running = [op.operand("running_mean"), op.operand("running_var")]
    old = [_floats(plan, tensor, x) for tensor in running]
    added = [] if addend is None else [alike(addend)]
    mean, rstd = (plan.output(tensor, DType.FLOAT) for tensor in op.outputs[1:3])
    has_running = running[0] is not None and len(op.outputs) == 5
    new = [plan.output(tensor, DType.FLOAT) for tensor in op.outputs[3:]] if has_running else [mean, rstd]
    ints = sizes.ints._replace(
        has_weight=_has(op, "weight"), has_bias=_has(op, "bias"), has_running=has_running,
        has_addend=addend is not None, has_relu=is_relu,
    )
    scalars = kernels.BatchScalars(float(op.number("eps")), float(op.number("momentum")))
    if sizes.whole and sizes.positions > 1:
        plan.step(kernels.BATCH_NORM, [y, mean, rstd, *new], [*old, x, weight, bias, *added], ints=ints,
                  scalars=scalars, items=sizes.channels, grain=sizes.channels_per_chunk,
                  writes=[sizes.planes, *[sizes.statistics] * (2 + len(new))])
        return
    statistics = [mean, rstd, *new]
    if sizes.positions == 1:
        partials = plan.scratch((sizes.chunks, 2, sizes.channels))
        plan.step(kernels.BATCH_ROW_MOMENTS, [partials], [x], ints=ints, items=sizes.chunks,
                  grain=sizes.chunks_per_grain, scratch_bytes=sizes.scratch_bytes(1))
        plan.step(kernels.BATCH_ROW_STATISTICS, statistics, [*old, partials], ints=ints, scalars=scalars,
                  items=sizes.channels, grain=64, writes=[sizes.statistics] * len(statistics))
    else:
        partials = plan.scratch((sizes.channels, sizes.splits, 2))
        plan.step(kernels.BATCH_MOMENTS, [partials], [x], ints=ints, items=sizes.channels * sizes.splits,
                  scratch_bytes=sizes.scratch_bytes(1))
        plan.step(kernels.BATCH_STATISTICS, statistics, [*old, partials], ints=ints, scalars=scalars,
                  items=sizes.channels,
                  grain=64, writes=[sizes.statistics] * len(statistics))
    plan.step(kernels.BATCH_APPLY, [y], [x, mean, rstd, weight, bias, *added], ints=ints, scalars=_eps(op),
              items=sizes.by_rows, grain=sizes.per_item, writes=[Blocks.rows(sizes.by_rows, y)])


def _emit_batch_norm_inference(op: Op, plan: HostPlanner) -> None:
    """Normalise by the running statistics; the saved ones are empty."""
    x, y, _ = _in_and_out(op, plan, op.outputs[0], op.outputs[0], plan.stored_type(op.needed("input")))
    sizes = Batch(x.shape, STORED[x.dtype])
    weight, bias = (_floats(plan, op.operand(name), x) for name in ("weight", "bias"))
    for empty in op.outputs[1:]:
        plan.output(empty, DType.FLOAT)
    plan.step(kernels.BATCH_APPLY, [y], [x, _data(op, plan, "running_mean"), _data(op, plan, "running_var"), weight,
                                         bias],
              ints=sizes.ints._replace(has_weight=_has(op, "weight"), has_bias=_has(op, "bias"), from_running=True),
              scalars=_eps(op), items=sizes.by_rows, grain=sizes.per_item, writes=[Blocks.rows(sizes.by_rows, y)],
              samples=Samples.of(sizes.by_rows, y, x, None, None, *(x if f is x else None for f in (weight, bias))))


def _emit_batch_norm_grad(op: Op, plan: HostPlanner) -> None:
    grads = present_outputs(op, 3)
    dtype = type_of_all(plan, op.needed("input"), op.needed("grad_out"))
    x, dx, alike = _in_and_out(op, plan, grads[0], op.outputs[0], dtype)
    dy, sizes = alike(op.needed("grad_out")), Batch(x.shape, STORED[x.dtype])
    train = op.flag("train")
    names = ("save_mean", "save_invstd") if train else ("running_mean", "running_var")
    mean, spread = (_data(op, plan, name) for name in names)
    weight = op.operand("weight")
    ints, scalars = sizes.ints._replace(has_weight=weight is not None, from_running=not train), _eps(op)
    dweight, dbias = (_result(plan, grad, (sizes.channels,)) for grad in grads[1:])
    factor = _floats(plan, weight, x)
    if sizes.whole and sizes.positions > 1:
        plan.step(kernels.BATCH_NORM_GRAD, [dx, dweight, dbias], [dy, x, mean, spread, factor], ints=ints,
                  scalars=scalars,
                  items=sizes.channels, grain=sizes.channels_per_chunk,
                  writes=[sizes.planes, sizes.statistics, sizes.statistics])
        return
    if sizes.positions == 1:
        partials = plan.scratch((sizes.chunks, 2, sizes.channels))
        plan.step(kernels.BATCH_ROW_GRAD_SUMS, [partials], [dy, x, mean], ints=ints, items=sizes.chunks,
                  grain=sizes.chunks_per_grain, scratch_bytes=sizes.scratch_bytes(2))
        plan.step(kernels.BATCH_ROW_GRAD_STATISTICS, [dweight, dbias], [spread, partials], ints=ints, scalars=scalars,
                  items=sizes.channels, grain=64, writes=[sizes.statistics] * 2)
    else:
        partials = plan.scratch((sizes.channels, sizes.splits, 2))
        plan.step(kernels.BATCH_GRAD_SUMS, [partials], [dy, x, mean], ints=ints, items=sizes.channels * sizes.splits,
                  scratch_bytes=sizes.scratch_bytes(2))
        plan.step(kernels.BATCH_GRAD_STATISTICS, [dweight, dbias], [spread, partials], ints=ints, scalars=scalars,
                  items=sizes.channels, grain=64, writes=[sizes.statistics] * 2)
    plan.step(kernels.BATCH_GRAD_APPLY, [dx], [dy, x, mean, spread, factor, dweight, dbias], ints=ints, scalars=scalars,
              items=sizes.by_rows, grain=sizes.per_item, writes=[Blocks.rows(sizes.by_rows, dx)],
              samples=Samples.of(sizes.by_rows, dx, dy, x, *(x if f is x else None for f in (mean, spread, factor)),
                                 None, None))


def _is_not_empty(op: Op) -> bool:
    return all(tensor.num_elements > 0 for tensor in op.inputs)


def _has_rows(op: Op) -> bool:
    """Whether there are elements, or an empty batch; of rows without elements eager makes NaN."""
    data = op.operand("input")
    return data is not None and (data.num_elements > 0 or data.shape[0] == 0) and all(
        tensor.num_elements > 0 for tensor in (op.operand("weight"), op.operand("bias")) if tensor is not None
    )


def trains(op: Op) -> bool:
    """Whether a batch normalisation is by the batch's statistics, which the kernels then compute."""
    data = op.operand("input")
    return op.flag("training", True) and data is not None and len(data.shape) >= 2 and _is_not_empty(op)


def _without_running_statistics(op: Op) -> Op:
    """Return the same normalisation, which is by the batch's statistics, but does not keep running ones."""
    kept = [
        (name, tensor) for name, tensor in zip(op.operands, op.inputs, strict=True)
        if name not in ("running_mean", "running_var")
    ]
    return replace(
        op, target=_NO_STATISTICS, inputs=tuple(tensor for _, tensor in kept), operands=tuple(name for name, _ in kept),
        outputs=op.outputs[:3],
    )


def _applies(op: Op) -> bool:
    data = op.operand("input")
    return data is not None and len(data.shape) >= 2 and data.num_elements > 0


def _applies_to_rows(op: Op) -> bool:
    data = op.operand("input")
    return _applies(op) or (data is not None and len(data.shape) >= 2 and data.shape[0] == 0)


register(
    OpSpec("aten.native_layer_norm.default", "layer_norm", _forward(_layers), _for_rows(_emit_layer_norm),
           dtypes=FLOATING, supports=_has_rows),
    OpSpec("aten.native_layer_norm_backward.default", "layer_norm_grad", _backward(_layers),
           _for_rows(_emit_layer_norm_grad), dtypes=FLOATING, supports=_has_rows),
    OpSpec("aten.native_group_norm.default", "group_norm", _forward(_groups), _for_rows(_emit_group_norm),
           dtypes=FLOATING, supports=_has_rows),
    OpSpec("aten.native_group_norm_backward.default", "group_norm_grad", _backward(_groups),
           _for_rows(_emit_group_norm_grad), dtypes=FLOATING, supports=_has_rows),
    OpSpec("aten._native_batch_norm_legit_functional.default", "batch_norm", _forward(_channels),
           _emit_batch_norm, dtypes=FLOATING, supports=trains, without_states=_without_running_statistics),
    OpSpec(_NO_STATISTICS, "batch_norm", _forward(_channels),
           _emit_batch_norm, dtypes=FLOATING, supports=trains),
    OpSpec("aten._native_batch_norm_legit_no_training.default", "batch_norm_inference",
           _lower(_APPLY, _channels, tilings.by_running(_channels)), _for_rows(_emit_batch_norm_inference),
           dtypes=FLOATING, supports=_applies_to_rows),
    OpSpec("aten.native_batch_norm_backward.default", "batch_norm_grad",
           _lower(_BACKWARD, _channels, tilings.batch_backward(_channels, _gradients)),
           _emit_batch_norm_grad, dtypes=FLOATING, supports=_applies),
)
