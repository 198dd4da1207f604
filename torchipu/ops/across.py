"""What replicas compute together in the middle of a micro-batch."""

from __future__ import annotations

from torchipu._kernels.table.scaling import REPLICA_MEAN, ReplicaMeanInts
from torchipu.device.compute_sets import no_vertices
from torchipu.host.emit.copy import emit_copy
from torchipu.ir.graph import Op
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import OpSpec, register

MEAN = "torchipu.replica_mean.default"


def _emit_mean(op: Op, plan: HostPlanner) -> None:
    """Emit the mean over a group of replicas.

    Operand and result lie in memory that each replica has for itself, whatever is read or written around.
    """
    given = plan.value(op.inputs[0])
    held, mean = plan.scratch(given.shape, given.dtype), plan.scratch(given.shape, given.dtype)
    emit_copy(plan, held, given)
    group = op.integer("group_size")
    plan.step(REPLICA_MEAN, [mean], [held], ints=ReplicaMeanInts(given.num_elements, group), together=True)
    emit_copy(plan, plan.output(op.outputs[0]), mean)


register(OpSpec(MEAN, "replica_mean", no_vertices, _emit_mean))
