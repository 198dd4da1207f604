"""Records of assertions: conditions that end the run where they do not hold, and have no result."""

from __future__ import annotations

from torchipu._kernels.table.observe import REQUIRE
from torchipu.device.codelets import element_codelet
from torchipu.device.compute_sets import elementwise_set
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.assertion import TARGETS
from torchipu.optable.codelet import Vertices
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import Constraint, OpSpec, register
from torchipu.target import Target

_READ = element_codelet("poplar::AbortOnCondition", 8, 8, source="estimate")
"""Poplar's `AbortOnCondition` reads one value on one tile."""

_ONE_VALUE = Constraint(
    lambda op: op.inputs[0].num_elements == 1, "an assertion takes one value",
    "reduce the condition with .all()", lambda op: f"{op.inputs[0].num_elements}",
)


def _lower(op: Op, target: Target) -> tuple[Vertices, ...]:
    return (elementwise_set(target, _READ, 1, op.inputs[0].dtype),)


def _emit(op: Op, plan: HostPlanner) -> None:
    plan.step(REQUIRE, [], [plan.value(op.inputs[0], DType.BOOL)])


register(*(OpSpec(target, "require", _lower, _emit, has_effect=True, constraints=(_ONE_VALUE,)) for target in TARGETS))
