"""Interpolation and paddings of images with channels in blocks: rows and columns are mapped, and all lanes with them.

Decoders interpolate between convolutions, and what was trained elsewhere pads before them: with these in blocks nothing
between is brought back.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchipu.host.emit.vectors import vector_lanes
from torchipu.ir.graph import Op, Tensor
from torchipu.ops.blocked.activations import is_of_floats
from torchipu.ops.blocked.halves import emit_rounded
from torchipu.ops.resample import apply_taps, is_copy, padded_places, take_places, taps_of, taps_of_padding
from torchipu.ops.view import surround
from torchipu.optable.blocked import BlockedForm, BlockedPlanner, Rows, follows_nothing, register_blocked, saves_nothing

LAST = 3
"""The columns of images, in either layout."""
LEAST_FILLED = 2
"""One over the part of its lanes that an image fills, at least: one of three colours is mapped sooner as it lies."""


def _image(ops: Sequence[Op]) -> Sequence[Tensor]:
    return (ops[0].inputs[0],)


def _is_of_images(op: Op, rows: Rows) -> bool:
    x, result = op.inputs[0], op.outputs[0]
    if not is_of_floats(op, rows) or len(x.shape) != 4 or not min(x.num_elements, result.num_elements):
        return False
    lanes = vector_lanes()
    return x.shape[1] * LEAST_FILLED >= -(-x.shape[1] // lanes) * lanes


# --------------------------------------------------------------------------- interpolation
def _emit_interpolation(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    (op,) = ops
    held, taps = plan.blocked(op.inputs[0]), taps_of(op)
    if all(map(is_copy, taps.values())):
        places = {dim: [row[0][0] for row in one.rows] for dim, one in taps.items()}
        take_places(plan, plan.blocked_output(op.outputs[0]), held, places)
    else:
        emit_rounded(op, plan, lambda out: apply_taps(plan, held, taps, out))


for _name in (
    "upsample_nearest2d", "_upsample_nearest_exact2d", "upsample_bilinear2d", "upsample_bicubic2d",
    "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
):
    for _target in (_name, f"{_name}_backward"):
        register_blocked(f"aten.{_target}.default", BlockedForm(
            _is_of_images, follows_nothing, _image, saves_nothing, _emit_interpolation,
        ))


# --------------------------------------------------------------------------- paddings
def _surrounds(op: Op, rows: Rows) -> bool:
    return _is_of_images(op, rows) and len(op.integers("pad")) <= 4


def _emit_surrounded(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    (op,) = ops
    held = plan.blocked(op.inputs[0])
    surround(plan, plan.blocked_output(op.outputs[0]), held, op.integers("pad"), LAST, op.number("value", 0))


def _emit_repeated(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    (op,) = ops
    held = plan.blocked(op.inputs[0])
    take_places(plan, plan.blocked_output(op.outputs[0]), held, padded_places(op, op.inputs[0].shape))


def _emit_repeated_gradient(ops: Sequence[Op], plan: BlockedPlanner) -> None:
    (op,) = ops
    held, taps = plan.blocked(op.inputs[0]), taps_of_padding(op)
    emit_rounded(op, plan, lambda out: apply_taps(plan, held, taps, out))


register_blocked("aten.constant_pad_nd.default", BlockedForm(
    _surrounds, follows_nothing, _image, saves_nothing, _emit_surrounded, is_exact=True,
))
for _target in ("reflection_pad2d", "replication_pad2d"):
    register_blocked(f"aten.{_target}.default", BlockedForm(
        _is_of_images, follows_nothing, _image, saves_nothing, _emit_repeated, is_exact=True,
    ))
    register_blocked(f"aten.{_target}_backward.default", BlockedForm(
        _is_of_images, follows_nothing, _image, saves_nothing, _emit_repeated_gradient,
    ))
