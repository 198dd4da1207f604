"""Turns a placed graph and its schedule into a device program: compute sets, copies and control flow.

Kept by later passes: every op is lowered once, into the function of its stage and leg; operands are on the IPU of the
vertices that read them; the bodies of a pipeline cycle touch their own IPU only, and data crosses between cycles.
"""

from __future__ import annotations

from collections.abc import Mapping

from torchipu.device.lower.cycles import cycles
from torchipu.device.lower.functions import Lowering
from torchipu.device.lower.side_by_side import units_of
from torchipu.device.lower.values import Flow
from torchipu.ir.graph import Graph, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import Executable, Repeat, Sequence
from torchipu.ir.schedule import Schedule
from torchipu.target import Target

__all__ = ["lower"]


def lower(
    graph: Graph, schedule: Schedule, mappings: Mapping[Tensor, TileMapping], target: Target, *,
    device_iterations: int, micro_batches: int, replicas: int = 1, instances: int = 1, outlining: bool = True,
) -> Executable:
    """Lower a graph; addresses are left to the memory pass.

    Args:
        graph: Every op is placed.
        schedule: Pipeline cycles of one weight update or one inference run.
        mappings: Tiles of every tensor.
        target: The machine.
        device_iterations: How often the schedule runs in a call.
        micro_batches: Micro-batches of the schedule.
        replicas: Copies of the program on other IPUs, with which gradients are added up.
        instances: Processes, each of which runs so many replicas.
        outlining: Whether parts of the program that are alike share their code.

    Returns:
        A program ``main``, and a function for each stage and leg (``0F``, ``0B``), for the sum over replicas (``R0``),
        the norm (``N0``) and the common scale (``C0``) of gradients and the update (``U0``) on each IPU and, ending in
        ``.send``, for what each of them sends to other IPUs.
    """
    flow = Flow(graph)
    lowering = Lowering(flow, schedule, mappings, target, micro_batches)
    for unit in units_of(graph.ops):
        lowering.add_unit(unit)
    lowering.add_ends()
    functions = lowering.finished()
    columns = max(map(len, schedule.steps), default=1)
    num_ipus = max([1, columns, *(variable.ipu + 1 for variable in lowering.variables.values())])
    main = Repeat(device_iterations, Sequence(tuple(cycles(schedule, functions, num_ipus))))
    return Executable(
        {"main": main}, functions, tuple(lowering.variables.values()), {}, num_ipus, dict(lowering.code_bytes),
        replicas, instances=instances, views=flow.seen, outlined=outlining,
        returned=tuple(one for one in flow.results() if one.role.is_state and one not in flow.maker),
    )
