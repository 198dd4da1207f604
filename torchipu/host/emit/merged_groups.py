"""Groups of channels that fill half a vector, two and two as one group whose weights are zero across the two.

Channels then fill blocks, and the products with zeros cost less than what is saved.
"""

from __future__ import annotations

from dataclasses import replace

from torchipu.host.emit.conv_shape import Shape
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.host.emit.vectors import vector_lanes
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner


def merged(s: Shape) -> Shape | None:
    """Return a convolution with two groups in one; None where groups do not fill half a vector."""
    lanes = vector_lanes()
    if s.g % 2 or s.ic * 2 != lanes or s.oc * 2 % lanes:
        return None
    return replace(s, g=s.g // 2, ic=lanes, oc=s.oc * 2)


def emit_weights(plan: HostPlanner, s: Shape, weight: HostTensor) -> HostTensor:
    """Emit the weights of such a convolution.

    Args:
        plan: The planner.
        s: Sizes of the convolution before.
        weight: Its weights, row-major, ``[groups * results, channels, rows, columns]``.

    Returns:
        Those of the one after, likewise.
    """
    groups, own = s.g // 2, s.ic * s.kh * s.kw
    dense = plan.scratch((s.g * s.oc, 2 * s.ic, s.kh, s.kw))
    emit_fill(plan, dense, 0.0)
    # Of each pair the second one's results read the second half of the channels.
    shape, half = (groups, 2, s.oc, own), s.oc * 2 * own
    target = replace(dense, shape=shape, strides=(2 * half, half + own, 2 * own, 1))
    emit_copy(plan, target, replace(weight, shape=shape, strides=(2 * s.oc * own, s.oc * own, own, 1)))
    return dense
