"""Placed graphs and schedules built by hand, with ops of their own, for tests of the device side."""

from __future__ import annotations

from torchipu.device.codelets import reduction_codelet, vector_codelet
from torchipu.device.compute_sets import linear_vertices, no_vertices
from torchipu.device.locations import locate
from torchipu.device.lower import lower
from torchipu.device.reductions import reduction_vertices
from torchipu.device.tile_mapping import map_tiles
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.program import Executable
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.types import DType, Leg, Role
from torchipu.optable.spec import TABLE, OpSpec, register
from torchipu.options import Options
from torchipu.target import Target

ADD = vector_codelet("test::Add", 3, 3)
SUM = reduction_codelet("test::Reduce")
FORWARD, BACKWARD, UPDATE = Leg.FORWARD, Leg.BACKWARD, Leg.UPDATE

if "fake.add" not in TABLE:
    register(
        OpSpec("fake.add", "add", linear_vertices(ADD), instruction="add"),
        OpSpec("fake.sum", "sum", reduction_vertices(SUM, lambda op, source: range(len(source.shape)))),
        OpSpec("fake.view", "view", no_vertices, is_view=True),
    )


def tensor(name: str, *shape: int, role: Role = Role.ACTIVATION, dtype: DType = DType.FLOAT) -> Tensor:
    return Tensor(name, shape, dtype, role)


def op(kind: str, inputs: tuple[Tensor, ...], output: Tensor, stage: int = 0, leg: Leg = FORWARD) -> Op:
    return Op(
        kind, inputs, (output,), target=f"fake.{kind}", operands=("self", "other")[: len(inputs)],
        placement=Placement(f"B{stage}", stage, stage, leg), leg=leg,
    )


def training_graph(stages: int, elements: int, layers: int = 1) -> Graph:
    """A chain of additions with a backward that reads every layer's input, an accumulation and an update."""
    inputs = [tensor("x", elements, role=Role.INPUT)]
    ops, updates, layer_states, value = [], [], [], inputs[0]
    for stage in range(stages):
        for layer in range(layers):
            name = f"{stage}.{layer}"
            states = [
                tensor(f"w{name}", elements, role=Role.WEIGHT), tensor(f"a{name}", elements, role=Role.ACCUMULATOR),
                tensor(f"m{name}", elements, role=Role.OPTIMISER_STATE),
            ]
            inputs += states
            result = tensor(f"h{name}", elements)
            ops.append(op("add", (value, states[0]), result, stage))
            layer_states.append((stage, name, value, states))
            value = result
    loss = tensor("loss")
    ops.append(op("sum", (value,), loss, stages - 1))
    gradient = tensor("g", elements, role=Role.GRADIENT)
    ops.append(op("add", (value, value), gradient, stages - 1, BACKWARD))
    for stage, name, entered, (_, accumulator, _) in reversed(layer_states):
        passed = tensor(f"g{name}", elements, role=Role.GRADIENT)
        ops.append(op("add", (gradient, entered), passed, stage, BACKWARD))
        gradient = passed
        added = tensor(f"a{name}.next", elements, role=Role.ACCUMULATOR)
        ops.append(op("add", (accumulator, gradient), added, stage, BACKWARD))
        updates.append((accumulator, added))
    for stage, name, _, (weight, accumulator, moment) in layer_states:
        next_moment = tensor(f"m{name}.next", elements, role=Role.OPTIMISER_STATE)
        next_weight = tensor(f"w{name}.next", elements, role=Role.WEIGHT)
        ops += [
            op("add", (moment, accumulator), next_moment, stage, UPDATE),
            op("add", (weight, next_moment), next_weight, stage, UPDATE),
        ]
        updates += [(moment, next_moment), (weight, next_weight)]
    return Graph("train", tuple(inputs), (loss,), tuple(ops), tuple(updates))


def pipeline(stages: int, micro_batches: int) -> Schedule:
    """PopART's training pipeline: stage i runs forward m in cycle i + m, backward m in cycle 2 S - 2 - i + m."""
    ramp = 2 * (stages - 1)
    rows = []
    for cycle in range(micro_batches + ramp):
        row = []
        for stage in range(stages):
            forward, backward = cycle - stage, cycle - (ramp - stage)
            cell = [Action(stage, FORWARD, forward)] if 0 <= forward < micro_batches else []
            cell += [Action(stage, BACKWARD, backward)] if 0 <= backward < micro_batches else []
            row.append(tuple(cell))
        rows.append(tuple(row))
    rows.append(tuple((Action(stage, UPDATE, None),) for stage in range(stages)))
    return Schedule(tuple(rows), ramp, ramp)


def sharded(stages: int, micro_batches: int) -> Schedule:
    """One action at a time."""
    actions = []
    for m in range(micro_batches):
        actions += [(stage, Action(stage, FORWARD, m)) for stage in range(stages)]
        actions += [(stage, Action(stage, BACKWARD, m)) for stage in reversed(range(stages))]
    rows = [tuple((action,) if column == stage else () for column in range(stages)) for stage, action in actions]
    rows.append(tuple((Action(stage, UPDATE, None),) for stage in range(stages)))
    return Schedule(tuple(rows))


def one_forward(stages: int = 1) -> Schedule:
    """Inference of one micro-batch."""
    return Schedule(tuple(
        tuple((Action(stage, FORWARD, 0),) if column == stage else () for column in range(stages))
        for stage in range(stages)
    ))


def lowered(
    graph: Graph, schedule: Schedule, target: Target, *, micro_batches: int = 1, iterations: int = 1,
    off_chip_state: bool = False,
) -> Executable:
    executable = lower(
        graph, schedule, map_tiles(graph, target), target, device_iterations=iterations, micro_batches=micro_batches,
    )
    return locate(executable, Options(offload_optimiser_state=off_chip_state), target)
