"""What an error says where a kernel has refused a value."""

from __future__ import annotations

from torchipu._kernels.abi import KernelTrap
from torchipu.errors import AssertionFailedError, ExecutionError
from torchipu.host.plan import HostPlan
from torchipu.ir.graph import Graph, Op
from torchipu.ir.text import Names, format_op
from torchipu.ir.types import Leg
from torchipu.optable.assertion import is_assertion, words_of

EXCEPTIONS = {
    4: "scale the values down: a lower loss_scaling or learning rate, clipping, or float32 for this op; weights and "
       "optimiser are as before the call",
    5: "look at the operands: 0 * inf, inf - inf, 0 / 0, a root or logarithm of a negative number, or a comparison "
       "with NaN; weights and optimiser are as before the call",
    6: "add a small number to the divisor; weights and optimiser are as before the call",
}
"""What to do about each floating-point exception, by the number of the trap; see abi.h."""


INDEX = 1
"""Number of the trap for an index that names nothing; see abi.h."""


def explained(trap: KernelTrap, plan: HostPlan, graph: Graph, micro_batches: int, replicas: int) -> ExecutionError:
    """Return the error that says which op a kernel has stopped in, and what to do.

    Args:
        trap: What the kernel says.
        plan: Which ran.
        graph: The one that it was made from.
        micro_batches: Of a device iteration.
        replicas: Which ran.
    """
    op = plan.ops_by_step[trap.step]
    name = op.target if op is not None else "a copy"
    if op is not None and is_assertion(op):
        where = _place_of(trap, op, micro_batches, replicas)
        return AssertionFailedError(
            words_of(op), source=op.source, block=op.placement,
            remedy=f"look at the values in {where}; weights and optimiser are as before the call",
        )
    if trap.trap in EXCEPTIONS:
        where = _place_of(trap, op, micro_batches, replicas)
        return ExecutionError(
            f"{name}: floating-point exception in {where}: {trap.reason}",
            op=None if op is None else format_op(op, Names(graph)), source=None if op is None else op.source,
            block=None if op is None else op.placement, remedy=EXCEPTIONS[trap.trap],
        )
    reason = trap.reason
    if op is not None and trap.trap == INDEX:
        reason += _range_of_indices(op)
    remedy = "check the values of the integer inputs (labels, token ids) against the sizes of the model"
    if op is None:
        return ExecutionError(f"{name}: {trap.reason}", remedy=remedy)
    return ExecutionError(f"{name}: {reason}", source=op.source, block=op.placement, remedy=remedy)


def _range_of_indices(op: Op) -> str:
    """Return which indices an op takes, where its operands say so."""
    index = next((name for name in ("indices", "target", "index") if op.operand(name) is not None), None)
    table = op.operand("weight") if index == "indices" else op.operand("self")
    if index is None or table is None or not table.shape:
        return ""
    if index == "indices":
        dim = 0
    elif index == "target":
        dim = min(1, len(table.shape) - 1)  # classes are behind the batch
    elif "dim" in op.attrs:
        dim = op.integer("dim")
    else:
        return ""
    return f": expected {index!r} from 0 to {table.shape[dim] - 1}, of a tensor of {list(table.shape)}"


def _place_of(trap: KernelTrap, op: Op | None, micro_batches: int, replicas: int) -> str:
    """Return which run of an op has raised a floating-point exception."""
    iteration, micro_batch = divmod(trap.micro_batch, micro_batches)
    if op is not None and op.leg is Leg.UPDATE:
        return f"the weight update of device iteration {iteration}"
    of_replica = f", replica {trap.replica}" if replicas > 1 else ""
    return f"micro-batch {micro_batch} of device iteration {iteration}{of_replica}"
