"""Images taken at the places that a grid says, as spatial transformers take them, and their gradients."""

from __future__ import annotations

from torchipu._kernels.table.grid_sample import (
    GRID_SAMPLE,
    GRID_SAMPLE_GRID,
    GRID_SAMPLE_IMAGES,
    SAMPLED_CHANNELS,
    SAMPLED_POINTS,
    GridSampleInts,
    Interpolation,
    Outside,
)
from torchipu.device.codelets import element_codelet
from torchipu.device.compute_sets import elementwise_set, in_first
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Vertices
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.target import Target

MOST_PIXELS = 1 << 24
"""Of an image: a float holds the number of each row and column, and an integer of 32 bits that of each pixel."""
SHARE = 16384  # pixels that are taken for one thread's share
TAPS = {Interpolation.BILINEAR: 4, Interpolation.NEAREST: 1, Interpolation.BICUBIC: 16}

# A tap is a look-up and a product; places are worked out once for all channels.
_SAMPLE = element_codelet("torchipu::GridSample", 30, 30, code_bytes=1400, source="estimate")
_GRADIENT = element_codelet("torchipu::GridSampleGrad", 60, 60, code_bytes=1800, source="estimate")


# --------------------------------------------------------------------------- host side
def _ints(op: Op) -> GridSampleInts:
    (_, channels, height, width), grid = op.needed("input").shape, op.needed("grid").shape
    return GridSampleInts(
        channels, height, width, grid[1] * grid[2], Interpolation(op.integer("interpolation_mode")),
        Outside(op.integer("padding_mode")), op.flag("align_corners"),
    )


def _emit(op: Op, plan: HostPlanner) -> None:
    images, grid = (plan.value(op.needed(name), DType.FLOAT) for name in ("input", "grid"))
    out, ints = plan.output(op.outputs[0], DType.FLOAT), _ints(op)
    if not out.num_elements:
        return
    samples, each = out.shape[0], ints.channels * TAPS[ints.interpolation] * SAMPLED_POINTS
    plan.step(
        GRID_SAMPLE, [out], [images, grid], ints=ints, items=samples * ceil_div(ints.points, SAMPLED_POINTS),
        grain=max(1, SHARE // each),
        writes=[Blocks.of((samples, ints.channels, ints.points), (1, ints.channels, SAMPLED_POINTS))],
    )


def _emit_gradient(op: Op, plan: HostPlanner) -> None:
    dy, images, grid = (plan.value(op.needed(name), DType.FLOAT) for name in ("grad_output", "input", "grid"))
    wanted, results, ints = op.flags("present", op.flags("output_mask")), iter(op.outputs), _ints(op)
    samples, pixels = images.shape[0], ints.height * ints.width
    if wanted[0]:
        made, blocks = plan.output(next(results), DType.FLOAT), ceil_div(ints.channels, SAMPLED_CHANNELS)
        if made.num_elements:
            plan.step(
                GRID_SAMPLE_IMAGES, [made], [dy, grid], ints=ints, items=samples * blocks,
                writes=[Blocks.of((samples, ints.channels, pixels), (1, SAMPLED_CHANNELS, pixels))],
            )
    if wanted[1]:
        made, blocks = plan.output(next(results), DType.FLOAT), ceil_div(ints.points, SAMPLED_POINTS)
        if made.num_elements:
            plan.step(
                GRID_SAMPLE_GRID, [made], [dy, images, grid], ints=ints, items=samples * blocks,
                grain=max(1, SHARE // max(1, ints.channels * TAPS[ints.interpolation] * SAMPLED_POINTS)),
                writes=[Blocks.of((samples, 2 * ints.points), (1, 2 * SAMPLED_POINTS))],
            )


# --------------------------------------------------------------------------- device side
def _samples(op: Op) -> Slicing:
    """Places depend on the grid, which is known only when the program runs: a vertex has images whole."""
    labels = ("grad_output", "input", "grid", *(("out", "out1")[: len(op.outputs)]))
    return Slicing((Axis(op.needed("input").shape[0], dict.fromkeys(labels, (0, 1))),), range(len(op.outputs)))


_BY_SAMPLES = sliced(_samples)


def _lower(op: Op, target: Target) -> tuple[Vertices, ...]:
    elements = op.outputs[0].num_elements
    if not elements:
        return ()
    taken = TAPS[_ints(op).interpolation]
    return in_first(
        [elementwise_set(target, _SAMPLE, elements, op.outputs[0].dtype, gathered_elements=taken)], _BY_SAMPLES,
    )


def _lower_gradient(op: Op, target: Target) -> tuple[Vertices, ...]:
    given = op.needed("grad_output")
    if not given.num_elements or not op.outputs:
        return ()
    taken = 1 + TAPS[_ints(op).interpolation]
    return in_first(
        [elementwise_set(target, _GRADIENT, given.num_elements, given.dtype, gathered_elements=taken)], _BY_SAMPLES,
    )


# --------------------------------------------------------------------------- records
def _serves(op: Op) -> bool:
    """Images whose pixels have numbers that a float and an integer of 32 bits hold."""
    _, _, height, width = op.needed("input").shape
    return 0 < height * width < MOST_PIXELS


register(
    OpSpec("aten.grid_sampler_2d.default", "grid_sampler_2d", _lower, _emit, dtypes=FLOATING, supports=_serves),
    OpSpec("aten.grid_sampler_2d_backward.default", "grid_sampler_2d_grad", _lower_gradient, _emit_gradient,
           dtypes=FLOATING, supports=_serves),
)
