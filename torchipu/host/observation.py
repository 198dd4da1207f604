"""Steps that look at the results of each op: floating-point exceptions, and counts of magnitudes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from torchipu._kernels.table.observe import CHECK, TALLY, TALLY_WORDS, CheckFlag, CheckInts, TallyInts
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import spec_of
from torchipu.optable.transfer import is_transfer

DIVISIONS = ("div", "reciprocal", "rsqrt", "log", "remainder", "fmod", "pow", "floor_divide")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne", "maximum", "minimum")


@dataclass(slots=True)
class Observation:
    """What is looked at while a plan is made.

    Attributes:
        traps: Whether a result that is not finite stops the program.
        counts: Whether magnitudes are counted.
        counted: Whose counts lie where, once the plan is made: a row of `TALLY_WORDS` for each.
        rows: Buffer of all counts.
    """

    traps: bool = False
    counts: bool = False
    counted: list[tuple[Op, Tensor]] = field(default_factory=list)
    rows: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything is looked at."""
        return self.traps or self.counts

    def of(self, op: Op) -> Iterator[Tensor]:
        """Yield the results of an op that are looked at."""
        spec = spec_of(op)
        if op.bodies or is_transfer(op) or (spec is not None and spec.is_view):
            return
        yield from (result for result in op.outputs if result.dtype.is_floating and result.num_elements)

    def emit_traps(self, op: Op, results: list[HostTensor], plan: HostPlanner) -> None:
        """Append the step that stops the program at an exception of an op.

        Args:
            op: The op, whose steps are there already.
            results: Row-major storage of its floating results.
            plan: Receives the step.
        """
        # A number compared with itself asks whether it is one, as isnan does.
        compares = _name(op) in COMPARISONS and len(set(op.inputs)) == len(op.inputs)
        if not results and not compares:
            return
        written = {held.buffer for held in results}
        operands = []
        for operand in op.inputs:
            if operand.dtype.is_floating and operand.num_elements:
                held = plan.value(operand)
                if held.buffer not in written:  # an operand that the op overwrites is no more
                    operands.append(held)
        if compares and not operands:
            return
        flags = _flags(op, compares)
        sizes = tuple(
            number for held in (*operands, *results) for number in (held.num_elements, held.dtype is DType.HALF)
        )
        ints = CheckInts(len(operands), len(results), flags, sizes)
        plan.step(CHECK, [], [*operands, *results], ints=ints)

    def emit_count(self, op: Op, tensor: Tensor, held: HostTensor, rows: HostTensor, plan: HostPlanner) -> None:
        """Append the step that counts the magnitudes of a result into the next row."""
        row = HostTensor(rows.buffer, TALLY_WORDS * len(self.counted), (TALLY_WORDS,), (1,), DType.LONG)
        self.counted.append((op, tensor))
        ints = TallyInts(held.num_elements, held.dtype is DType.HALF)
        plan.step(TALLY, [row], [held], ints=ints, reads_outputs=True)


def _name(op: Op) -> str:
    """Return the name of an ATen op without namespace, overload and the mark of those in place."""
    return op.target.split(".")[1].rstrip("_") if "." in op.target else op.kind


def _flags(op: Op, compares: bool) -> int:
    spec = spec_of(op)
    flags = CheckFlag.ELEMENTWISE if spec is not None and spec.instruction is not None else 0
    flags |= CheckFlag.DIVIDES if _name(op) in DIVISIONS else 0
    flags |= CheckFlag.COMPARES if compares else 0
    numbers = [value for value in op.attrs.values() if isinstance(value, float)]
    flags |= CheckFlag.GIVEN_INFINITY if any(math.isinf(value) for value in numbers) else 0
    return flags | (CheckFlag.GIVEN_NAN if any(math.isnan(value) for value in numbers) else 0)
