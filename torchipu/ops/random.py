"""Random ops: values are functions of the seed, the replica, the op, the micro-batch and the element."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torchipu._kernels.table.kernel import I, Kernel, S
from torchipu._kernels.table.random import (
    RANDOM_BERNOULLI,
    RANDOM_BITS,
    RANDOM_CHOICE,
    RANDOM_DROPOUT,
    RANDOM_EXPONENTIAL,
    RANDOM_INTEGERS,
    RANDOM_ITEM,
    RANDOM_NORMAL,
    RANDOM_PERMUTATION,
    RANDOM_UNIFORM,
    BernoulliInts,
    BernoulliScalars,
    DropoutScalars,
    ExponentialScalars,
    NormalScalars,
    RandomChoiceInts,
    RandomIntegersInts,
    RandomInts,
    UniformInts,
    UniformScalars,
)
from torchipu.device.codelets import element_codelet, vector_codelet
from torchipu.device.compute_sets import linear_vertices
from torchipu.device.tilings.alone import alone
from torchipu.device.tilings.pointwise import pointwise
from torchipu.device.tilings.whole_rows import whole_rows
from torchipu.host.emit.copy import emit_copy, emit_fill
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ir.vertices import Tiling
from torchipu.optable.arguments import (
    DRAWS_ENOUGH,
    DRAWS_NO_MORE_THAN_THERE_ARE,
    FLOATING_WEIGHTS,
    RISING,
    in_range,
)
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import Constraint, OpSpec, register

SHARE = 8192  # elements of one thread's share
MAX_SPAN = 1 << 32


def _draw(
    op: Op, plan: HostPlanner, kernel: Kernel[I, S], outputs: Sequence[HostTensor], inputs: Sequence[HostTensor] = (),
    *, ints: I, scalars: S | tuple[()] = (),
) -> None:
    elements = op.outputs[0].num_elements
    plan.step(
        kernel, outputs, [plan.random_state(op), *inputs], ints=ints, scalars=scalars,
        items=-(-elements // RANDOM_ITEM), grain=SHARE // RANDOM_ITEM,
        writes=[Blocks.of((elements,), (RANDOM_ITEM,))],
    )


def _elements(op: Op) -> RandomInts:
    return RandomInts(op.outputs[0].num_elements)


def dropout(op: Op, plan: HostPlanner) -> None:
    """Zero elements with probability p and scale the rest; the second result, where there is one, is what was kept."""
    source = op.operand("input")
    assert source is not None
    p, train = float(op.number("p", 0)), op.attrs.get("train")
    result = op.outputs[0]
    if train is False or p == 0:
        emit_copy(plan, plan.output(result), plan.value(source, contiguous=False))
        if len(op.outputs) > 1:
            emit_fill(plan, plan.output(op.outputs[1]), 1)
        return
    held, out = plan.value(source, DType.FLOAT), plan.output(result, DType.FLOAT)
    mask = plan.output(op.outputs[1]) if len(op.outputs) > 1 else plan.scratch(result.shape, DType.BOOL)
    scalars = DropoutScalars(1.0 - p, 0.0 if p >= 1 else 1.0 / (1.0 - p))
    _draw(op, plan, RANDOM_DROPOUT, [out, mask], [held], ints=_elements(op), scalars=scalars)


def bernoulli(op: Op, plan: HostPlanner) -> None:
    """Draw ones with a given probability, a number or a tensor."""
    out = plan.output(op.outputs[0], DType.FLOAT)
    if "p" in op.attrs:
        _draw(op, plan, RANDOM_BERNOULLI, [out], ints=BernoulliInts(out.num_elements, has_chances=False),
              scalars=BernoulliScalars(float(op.number("p", 0))))
        return
    source = op.operand("self")
    assert source is not None
    _draw(op, plan, RANDOM_BERNOULLI, [out], [plan.value(source, DType.FLOAT)],
          ints=BernoulliInts(out.num_elements, has_chances=True), scalars=BernoulliScalars(0.0))


def uniform(op: Op, plan: HostPlanner) -> None:
    """Draw from ``[from, to)``."""
    low = float(op.number("from", 0))
    out = plan.output(op.outputs[0], DType.FLOAT)
    bits = 11 if op.outputs[0].dtype is DType.HALF else RANDOM_BITS  # what the type holds below 1
    _draw(op, plan, RANDOM_UNIFORM, [out], ints=UniformInts(out.num_elements, bits),
          scalars=UniformScalars(low, float(op.number("to", 1.0)) - low))


def normal(op: Op, plan: HostPlanner) -> None:
    """Draw from a normal distribution."""
    out = plan.output(op.outputs[0], DType.FLOAT)
    scalars = NormalScalars(float(op.number("mean", 0)), float(op.number("std", 1.0)))
    _draw(op, plan, RANDOM_NORMAL, [out], ints=_elements(op), scalars=scalars)


def exponential(op: Op, plan: HostPlanner) -> None:
    """Draw waiting times of a rate."""
    _draw(op, plan, RANDOM_EXPONENTIAL, [plan.output(op.outputs[0], DType.FLOAT)], ints=_elements(op),
          scalars=ExponentialScalars(float(op.number("lambd", 1.0))))


def permutation(op: Op, plan: HostPlanner) -> None:
    """Shuffle the numbers below n."""
    out = plan.output(op.outputs[0], DType.LONG)
    if out.num_elements:
        plan.step(RANDOM_PERMUTATION, [out], [plan.random_state(op)], ints=_elements(op))


def multinomial(op: Op, plan: HostPlanner) -> None:
    """Draw places of each row with probabilities in proportion to its weights."""
    source = op.operand("self")
    assert source is not None
    weights, out = plan.value(source, DType.FLOAT), plan.output(op.outputs[0])
    samples, count = out.shape[-1], weights.shape[-1]
    rows = weights.num_elements // max(1, count)
    ints = RandomChoiceInts(count, samples, op.flag("replacement"))
    plan.step(RANDOM_CHOICE, [out], [plan.random_state(op), weights], ints=ints, items=rows if samples else 0,
              grain=max(1, SHARE // max(1, count + samples)), scratch_bytes=8 * (count + samples))


def integers(op: Op, plan: HostPlanner) -> None:
    """Draw whole numbers from ``[low, high)``."""
    low, high = op.integer("low", 0), op.integer("high")
    out = plan.output(op.outputs[0], DType.LONG)
    _draw(op, plan, RANDOM_INTEGERS, [out], ints=RandomIntegersInts(out.num_elements, low, high - low))


def _has_short_span(op: Op) -> bool:
    return 0 < op.integer("high") - op.integer("low", 0) <= MAX_SPAN


def _has_floating_result(op: Op) -> bool:
    return op.outputs[0].dtype.is_floating


# --------------------------------------------------------------------------- records
DROPOUT = vector_codelet("poprand::Dropout", 2, 2, supervisor=144, source="poplibs estimator, ipu_hardware.md 2.6")
BERNOULLI = vector_codelet("poprand::Bernoulli", 1, 1, source="poplibs estimator, ipu_hardware.md 2.6")
UNIFORM = vector_codelet("poprand::Uniform", 4, 4, source="poplibs estimator, ipu_hardware.md 2.6")
EXPONENTIAL = vector_codelet("poprand::Exponential", 20, 18, source="estimate: a uniform number and its logarithm")
PERMUTATION = element_codelet(
    "poprand::Permutation", 30, 30, source="estimate: a random word and two moves on one tile"
)
CHOICE = element_codelet("poprand::Multinomial", 60, 60, source="estimate: running sums and a binary search")
NORMAL = vector_codelet("poprand::Normal", 4, 4, source="poplibs estimator, ipu_hardware.md 2.6")


def _records(
    targets: str, emit: Callable[[Op, HostPlanner], None], codelet: Codelet,
    supports: Callable[[Op], bool] | None = None, tiling: Tiling = pointwise, overwrites: tuple[str, ...] = (),
    constraints: tuple[Constraint, ...] = (),
) -> None:
    for target in targets.split():
        name, _, overload = target.partition(".")
        register(OpSpec(
            f"aten.{name}.{overload or 'default'}", name, linear_vertices(codelet, tiling=tiling), emit, is_random=True,
            supports=supports or (lambda op: True), overwrites=overwrites, constraints=constraints,
        ))


_records("native_dropout dropout", dropout, DROPOUT, _has_floating_result, overwrites=("input",))
_records("bernoulli bernoulli.p", bernoulli, BERNOULLI, constraints=(in_range("p", 0, 1, default=0.5),))
_records("rand rand_like uniform", uniform, UNIFORM, _has_floating_result, constraints=(RISING,))
_records("randn randn_like normal_functional normal.float_float", normal, NORMAL, _has_floating_result)
_records("exponential", exponential, EXPONENTIAL, _has_floating_result)
_records("randperm", permutation, PERMUTATION, tiling=alone)
_records("multinomial", multinomial, CHOICE, tiling=whole_rows,
         constraints=(FLOATING_WEIGHTS, DRAWS_ENOUGH, DRAWS_NO_MORE_THAN_THERE_ARE))
_records("randint randint.low randint_like randint_like.low_dtype", integers, UNIFORM, _has_short_span)
