"""Clipping of gradients and automatic loss scaling, between gradients and their optimiser.

These are ops of ours that a training step adds to the captured graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch

from torchipu.capture.accumulation import Accumulation, accumulating, accumulator, joined
from torchipu.capture.optimiser import OptimiserImport
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Leg, Role
from torchipu.ops.scaling import ADAPT, ADD_SUMS, CLIP, CLIP_VALUES, COUNT, JOIN_COUNTS, SQUARES, UNSCALE

LOSS_SCALE = "loss_scale"
"""Name of the state that automatic loss scaling changes."""
OPERANDS_AT_A_TIME = 32
"""Sums or counters that one op joins; a kernel takes 64 operands."""
SCALE_FACTOR = 2.0
"""By which the scale is raised or lowered; a power of two changes no mantissa. Source: PopART, recalled."""
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-14, 2.0**15
"""The smallest and largest powers of two that are normal halves: a half loss holds the scale exactly."""
LARGEST = {DType.HALF: 65504.0, DType.FLOAT: torch.finfo(torch.float32).max}


# --------------------------------------------------------------------------- clipping and loss scale
def scaled(
    optimiser: OptimiserImport, gradients: Iterable[Tensor], *, max_norm: float | None = None,
    max_value: float | None = None, loss_scale: Tensor | None = None,
) -> OptimiserImport:
    """Let an update use gradients freed from a loss scale of the program's and clipped.

    Its ops then read hyper-parameters whose factor on gradients holds all of that.

    Args:
        optimiser: The update.
        gradients: Those of the model's weights.
        max_value: Largest magnitude of an element, as of torch.nn.utils.clip_grad_value_; before the norm is taken.
        max_norm: Largest norm of all gradients together, as of torch.nn.utils.clip_grad_norm_; None not to clip.
        loss_scale: 0-d scale that the program changes; None if it does not.
    """
    hyper = {op.operand("hyper") for op in optimiser.ops} - {None}
    current = {tensor: tensor for tensor in optimiser.inputs if tensor in hyper}
    ops: list[Op] = []
    # The norm is that of bounded gradients: these come before it in the program, and what they read before them.
    early = {"before_norm": True} if max_value is not None and max_norm is not None else {}
    if loss_scale is not None:
        ops += _changed(current, "unscaled", UNSCALE, loss_scale, "loss_scale", early)
    # Those of weights outside the optimiser do not count.
    read = {tensor for op in optimiser.ops for tensor in op.inputs}
    counted = tuple(dict.fromkeys(gradient for gradient in gradients if gradient in read))
    bounded = _bounded(optimiser, counted, current, max_value, early, ops)
    if max_norm is not None and current:
        squares = _sum_of_squares(tuple(bounded.get(gradient, gradient) for gradient in counted), ops)
        ops += _changed(current, "clipped", CLIP, squares, "squares", {"max_norm": max_norm})
    current |= bounded
    updates = [replace(op, inputs=tuple(current.get(t, t) for t in op.inputs)) for op in optimiser.ops]
    return replace(optimiser, ops=(*ops, *updates))


def _bounded(
    optimiser: OptimiserImport, gradients: Sequence[Tensor], current: Mapping[Tensor, Tensor], limit: float | None,
    attrs: Mapping[str, object], ops: list[Op],
) -> dict[Tensor, Tensor]:
    """Append the ops that bound each element of gradients, and return what each becomes; nothing without a limit."""
    bounded: dict[Tensor, Tensor] = {}
    if limit is None:
        return bounded
    for op in optimiser.ops:
        gradient, hyper = op.operand("grad"), op.operand("hyper")
        if gradient in gradients and gradient is not None and hyper is not None and gradient not in bounded:
            after = replace(gradient, name=f"{gradient.name}.bounded", role=Role.GRADIENT)
            bounded[gradient] = after
            ops.append(_update(
                CLIP_VALUES, (gradient, current[hyper]), after, ("gradient", "hyper"),
                {"max_value": limit, **attrs},
            ))
    return bounded


def _changed(
    current: dict[Tensor, Tensor], suffix: str, target: str, other: Tensor, name: str, attrs: Mapping[str, object],
) -> list[Op]:
    """Change the hyper-parameters of all groups by an op that reads another tensor too."""
    ops = []
    for original, before in current.items():
        after = replace(before, name=f"{before.name}.{suffix}", role=Role.GRADIENT)
        ops.append(_update(target, (before, other), after, ("hyper", name), attrs))
        current[original] = after
    return ops


def _sum_of_squares(gradients: Sequence[Tensor], ops: list[Op]) -> Tensor:
    """Append the ops that add up the squares of all gradients, and return their sum."""
    sums = []
    for gradient in gradients:
        sums.append(Tensor(f"squares.{gradient.name}", (1,), DType.LONG, Role.GRADIENT))
        ops.append(_update(SQUARES, (gradient,), sums[-1], ("gradient",), {}))
    return _joined_by(ADD_SUMS, sums, ops)


def _joined_by(target: str, tensors: Sequence[Tensor], ops: list[Op]) -> Tensor:
    """Append a tree of ops that each take a few tensors and give one like them, and return the last."""
    left = list(tensors)
    while len(left) > 1:
        groups = [left[first : first + OPERANDS_AT_A_TIME] for first in range(0, len(left), OPERANDS_AT_A_TIME)]
        role = Role.ACTIVATION if target == JOIN_COUNTS else Role.GRADIENT  # words of gradients are doubles
        left = [replace(group[0], name=f"{group[0].name}.sum", role=role) for group in groups]
        for group, total in zip(groups, left, strict=True):
            ops.append(_update(target, tuple(group), total, (f"terms[{'x' * len(group)}]",), {}))
    return left[0]


def _update(
    target: str, inputs: tuple[Tensor, ...], result: Tensor, operands: tuple[str, ...], attrs: Mapping[str, object],
) -> Op:
    return Op(target.split(".")[1], inputs, (result,), attrs, target=target, operands=operands, leg=Leg.UPDATE)


# --------------------------------------------------------------------------- automatic loss scaling
def count_large(gradients: Iterable[Tensor], edge: float) -> tuple[tuple[Tensor, ...], Accumulation]:
    """Count the elements of gradients that are near the end of their type's range.

    Args:
        gradients: Gradients of a micro-batch, from `torchipu.capture.tracked_gradients`.
        edge: Share of the range from which on they are large.

    Returns:
        The counters, each [large elements, all elements] after the last micro-batch, and the ops to add.
    """
    counters, parts = [], []
    for gradient in gradients:
        held, total, reset = accumulator(f"large.{gradient.name}", (2,), DType.LONG)
        op = replace(
            accumulating(COUNT, (held, gradient), (total,)), attrs={"edge": edge * LARGEST[gradient.dtype]}
        )
        counters.append(total)
        parts.append(Accumulation((held,), (op,), (reset,), ((held, reset.outputs[0]),)))
    return tuple(counters), joined(parts)


def adapt(scale: Tensor, counters: Sequence[Tensor], *, threshold: float, period: int) -> Accumulation:
    """Raise the loss scale after some updates, or lower it where too many elements of gradients were large.

    Args:
        scale: 0-d state.
        counters: Of `count_large`.
        threshold: Share of large elements that is too many.
        period: Updates after which the scale is changed by what was counted in them.
    """
    ops: list[Op] = []
    counter = _joined_by(JOIN_COUNTS, counters, ops)
    after = replace(scale, name=f"{scale.name}.next")
    history = Tensor(f"{scale.name}.history", (3,), DType.LONG, Role.OPTIMISER_STATE)
    later = replace(history, name=f"{history.name}.next")
    attrs = {
        "share": threshold, "factor": SCALE_FACTOR, "least": SMALLEST_SCALE, "most": LARGEST_SCALE, "period": period,
    }
    target, operands = ADAPT, ("loss_scale", "history", "counter")
    ops.append(Op(
        target.split(".")[1], (scale, history, counter), (after, later), attrs, target=target, operands=operands,
        leg=Leg.UPDATE,
    ))
    return Accumulation((scale, history), tuple(ops), (), ((scale, after), (history, later)))


def with_scale_of_the_program(graph: Graph, constant: Tensor) -> tuple[Graph, Tensor]:
    """Let the backward leg begin with a scale that the program holds, instead of a constant.

    Args:
        graph: As captured.
        constant: Its input with the scale, of the loss's type and shape.

    Returns:
        The graph without that input, and the 0-d float state that it reads; not among its inputs yet.
    """
    scale = Tensor(LOSS_SCALE, (), DType.FLOAT, Role.OPTIMISER_STATE)
    used, made = scale, []
    if constant.dtype is not DType.FLOAT:
        used = replace(used, name="loss_scale.cast", dtype=constant.dtype, role=Role.GRADIENT)
        made.append(Op(
            "cast", (scale,), (used,), {"dtype": used.dtype}, target="ipu.cast.default", operands=("self",),
            leg=Leg.BACKWARD,
        ))
    if constant.shape:
        whole = replace(used, name="loss_scale.whole", shape=constant.shape, role=Role.GRADIENT)
        made.append(Op(
            "expand", (used,), (whole,), {"size": list(constant.shape)}, target="aten.expand.default",
            operands=("self",), leg=Leg.BACKWARD,
        ))
        used = whole
    first = next((place for place, op in enumerate(graph.ops) if constant in op.inputs), len(graph.ops))
    ops = [replace(op, inputs=tuple(used if t is constant else t for t in op.inputs)) for op in graph.ops]
    return replace(
        graph, inputs=tuple(tensor for tensor in graph.inputs if tensor is not constant),
        ops=(*ops[:first], *made, *ops[first:]),
        outputs=tuple(used if tensor is constant else tensor for tensor in graph.outputs),
    ), scale
