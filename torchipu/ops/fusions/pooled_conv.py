"""A convolution, the max-pool that alone reads it and a ReLU after that: the host computes them at once, both ways."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torchipu._kernels.table import sparse_conv as sparse
from torchipu._kernels.table.conv import CONV_MAX_POOL, ConvMaxPoolInts
from torchipu._kernels.table.pool import PoolInts
from torchipu._kernels.table.round_blocks import HalfOverflow
from torchipu.host.emit.conv import LEAST_ITEMS, turned
from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.items import grain_for
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.convolution import present_results, problem_of
from torchipu.ops.pool import pair, strides_of
from torchipu.optable.blocks import Blocks
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.planner import HostPlanner, Joined, more_items
from torchipu.optable.random_streams import ROUNDING_STREAM
from torchipu.optable.samples import Samples

MAX_IMAGE = 64 * 1024  # floats of an image and of its convolution that stay in the second-level cache
COPIES_AT_HAND = 16 * 1024  # floats of images and of their gradients that stay near the first-level cache
LEAST_WINDOW = 4  # elements of a window; with fewer, most gradients are not zero


def _operands(convolution: Op) -> tuple[Tensor, Tensor, Shape]:
    x, weight = convolution.operand("input"), convolution.operand("weight")
    assert x is not None
    assert weight is not None
    return x, weight, problem_of(convolution).planar


def _is_small(s: Shape, result: Tensor) -> bool:
    largest = max(s.ic * s.h * s.w, s.expanded(s.oh, s.ow), s.oc * s.oh * s.ow)
    return len(result.shape) == 4 and s.g == 1 and largest <= MAX_IMAGE


# --------------------------------------------------------------------------- forward
def _forward_applies(ops: Sequence[Op]) -> bool:
    return problem_of(ops[0]).is_plain and _is_small(_operands(ops[0])[2], ops[0].outputs[0])


def _is_rounded_alike(convolution: Op) -> bool:
    """Whether the largest of some results is rounded to what the largest of the rounded ones is.

    It is where all are rounded to nearest, and not where each has random bits of its own or may become NaN.
    """
    if convolution.outputs[0].dtype is not DType.HALF:
        return True
    overflow = convolution.text("half_overflow", "infinity")
    return ROUNDING_STREAM not in convolution.attrs and overflow != "nan"


def _emit_forward(ops: Sequence[Op], plan: HostPlanner) -> None:
    convolution, pool = ops[:2]
    x, weight, s = _operands(convolution)
    bias, result = convolution.operand("bias"), ops[-1].outputs[0]
    inputs = [plan.value(x, DType.FLOAT), turned(plan, s, plan.value(weight, DType.FLOAT))]
    inputs += [plan.value(bias, DType.FLOAT)] if bias is not None else []
    kernel, padding, dilation = (pair(pool, name) for name in ("kernel_size", "padding", "dilation"))
    oh, ow = result.shape[-2:]
    window = PoolInts(s.oh, s.ow, oh, ow, *kernel, *strides_of(pool), *padding, *dilation)
    offsets = -(-s.summands // 16) * 16
    rounding = None if _is_rounded_alike(convolution) else plan.rounding(convolution, convolution.outputs[0])
    ints = ConvMaxPoolInts(
        s.of_kernel(s.oh, s.ow, direct=s.reads_in_place), has_bias=bias is not None, has_relu=ops[-1].kind == "relu",
        is_rounded=rounding is not None, is_random=rounding is not None and rounding.random is not None,
        overflow=HalfOverflow.INFINITY if rounding is None else rounding.overflow,
        pool=window,
    )
    if rounding is not None and rounding.random is not None:
        inputs.append(rounding.random)
    grain, held = -(-s.n // LEAST_ITEMS), result.num_elements
    strides = (4 * held, 8 * held, 4 * s.input_elements, 0, *([0] if bias is not None else []))
    plan.step(
        CONV_MAX_POOL, [plan.output(result, DType.FLOAT), plan.output(pool.outputs[1], DType.LONG)], inputs,
        ints=ints, items=s.n, grain=grain,
        joining=partial(more_items, strides, ints, s.n, grain) if rounding is None else None,
        scratch_bytes=4 * (s.oc * s.oh * s.ow + 16 + offsets + s.expanded(s.oh, s.ow)),
        writes=[Blocks.of((s.n, result.num_elements // max(1, s.n)), (1, result.num_elements // max(1, s.n)))],
        samples=Samples(s.n, (*(stride // s.n for stride in strides), *[0] * (len(inputs) + 2 - len(strides)))),
    )


# --------------------------------------------------------------------------- backward
def _backward_applies(ops: Sequence[Op]) -> bool:
    """Whether most of the gradient between the two is zero: disjoint windows pass one value of each on."""
    pool, convolution = ops[-2:]
    if not problem_of(convolution).is_plain:
        return False
    s = _operands(convolution)[2]
    (kh, kw), (sh, sw) = pair(pool, "kernel_size"), strides_of(pool)
    present = present_results(convolution)
    disjoint = sh >= kh and sw >= kw and kh * kw >= LEAST_WINDOW
    is_handed_on = convolution.operand("grad_output") is pool.outputs[0] and _is_small(s, pool.outputs[0])
    is_relu = len(ops) == 2 or ops[0].attrs["threshold"] == 0
    return is_relu and disjoint and is_handed_on and present[1] and present[2] and (s.dh, s.dw) == (1, 1)


def _lanes(s: Shape) -> int:
    """Floats kept for the channels of a pixel: whole vectors, unless loads that cross cache lines are cheaper still."""
    padded = -(-s.ic // 16) * 16
    crossing = 2 * -(-s.kw * s.ic // 16)  # a load that crosses a line counts for two
    return padded if s.kw * padded // 16 <= crossing else s.ic


def _evenly(images: int, most: int) -> int:
    """Return how many of the images go together, at most so many but at least one, in groups of nearly one size."""
    return -(-images // -(-images // max(1, most)))


def _emit_backward(ops: Sequence[Op], plan: HostPlanner) -> None:
    pool, convolution = ops[-2:]
    x, weight, s = _operands(convolution)
    dy, indices = ops[0].operand("grad_output"), pool.operand("indices")
    passed = ops[0].operand("self") if len(ops) == 3 else None  # what the ReLU let pass
    assert dy is not None
    assert indices is not None
    present = present_results(convolution)
    results = iter(convolution.outputs)
    dx, dw, db = (next(results) if given else None for given in present)
    assert dw is not None
    assert db is not None
    lanes = _lanes(s)
    run = -(-s.kw * lanes // 16) * 16
    # Each chunk leaves a sum to be added up: with many micro-batches or replicas two, equally long, keep threads busy.
    halves = s.n // 2 if s.n % 2 == 0 else s.n
    images = halves if plan.runs >= LEAST_ITEMS else -(-s.n // LEAST_ITEMS)
    chunks = -(-s.n // images)
    window = sparse.SparseWindow(s.oc, s.ic, s.kh, s.kw, run, lanes)
    packed, partial_db = plan.scratch((s.oc, s.kh, run)), plan.scratch((chunks, s.oc))
    partial_dw = plan.scratch((chunks, s.oc, s.kh, run))
    plan.step(sparse.SPARSE_CONV_PACK, [packed], [plan.value(weight, DType.FLOAT)], ints=window, items=s.oc, grain=s.oc)
    wants_dx = dx is not None and plan.wanted(dx)
    dx_value = plan.output(dx, DType.FLOAT) if dx is not None and wants_dx else partial_db
    slack = sparse.SPARSE_SLACK + 16  # the kernel rounds up
    image = (s.h + 2 * s.ph) * (s.w + 2 * s.pw) * lanes + s.kw * lanes + slack
    together = _evenly(images, COPIES_AT_HAND // (2 * image)) if wants_dx else 1
    listed = together * s.oc * s.oh * s.ow + slack
    pooled = dy.shape[-2] * dy.shape[-1]
    ints = sparse.SparseConvInts(
        window, s.n, s.h, s.w, s.oh, s.ow, s.sh, s.sw, s.ph, s.pw, images, together, wants_dx, pooled,
        has_relu=passed is not None,
    )
    given = 4 * s.n * s.oc * pooled
    strides = (
        4 * s.input_elements if wants_dx else 4 * chunks * s.oc, 4 * chunks * s.oc * s.kh * run, 4 * chunks * s.oc,
        given, 2 * given, 4 * s.input_elements, 0, *([given] if passed is not None else []),
    )
    plan.step(
        sparse.SPARSE_CONV_BACKWARD, [dx_value, partial_dw, partial_db],
        [
            plan.value(dy, DType.FLOAT), plan.value(indices, DType.LONG), plan.value(x, DType.FLOAT), packed,
            *([plan.value(passed, DType.FLOAT)] if passed is not None else []),
        ],
        ints=ints, items=chunks,
        joining=partial(_join_backward, strides, ints, chunks) if s.n == chunks * images else None,
        writes=[Blocks.of((s.n, s.ic * s.h * s.w), (images, s.ic * s.h * s.w))] if wants_dx else [],
        samples=Samples(s.n, (strides[0] // s.n if wants_dx else 0, 0, 0, *(at // s.n for at in strides[3:])), images),
        scratch_bytes=4 * (2 * together * image + 4 * listed + 2 * together * s.oh * s.ow + s.oc + 16),
    )
    plan.step(
        sparse.SPARSE_CONV_REDUCE,
        [plan.output(dw, DType.FLOAT), plan.output(db, DType.FLOAT)],
        [partial_dw, partial_db],
        ints=sparse.SparseConvReduceInts(window, chunks), items=s.oc,
        grain=grain_for(s.oc, s.oc * s.kh * run * chunks, 32768),
        scratch_bytes=4 * s.kh * run,
        writes=[Blocks.of((s.oc, s.summands), (1, s.summands)), Blocks.of((s.oc,), (1,))],
    )


def _join_backward(strides: tuple[int, ...], ints: sparse.SparseConvInts, chunks: int, runs: int) -> Joined:
    """Make the call for the images of several runs, whose chunks are all of the same size."""
    return more_items(strides, ints._replace(n=runs * ints.n), chunks, 1, runs)


FORWARD = ("aten.convolution.default", "aten.max_pool2d_with_indices.default")
BACKWARD = ("aten.max_pool2d_with_indices_backward.default", "aten.convolution_backward.default")
register_fusion(
    Fusion(FORWARD, _forward_applies, _emit_forward),
    Fusion((*FORWARD, "aten.relu.default"), _forward_applies, _emit_forward),
    Fusion(BACKWARD, _backward_applies, _emit_backward),
    Fusion(("aten.threshold_backward.default", *BACKWARD), _backward_applies, _emit_backward),
)
