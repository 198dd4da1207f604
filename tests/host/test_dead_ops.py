"""Ops that nothing reads are left out, and with them what they alone read; results, states and bodies read, too."""

from __future__ import annotations

import pytest

from torchipu.host.dead_ops import without_dead
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType, Role

VIEW = "aten.view.default"


def tensor(name: str, role: Role = Role.ACTIVATION) -> Tensor:
    return Tensor(name, (4,), DType.FLOAT, role)


@pytest.mark.parametrize("reader", ["nothing", "a result", "a state", "an op", "a body", "a dead op"])
def test_what_is_read_stays(reader: str) -> None:
    x, state, seen, last, made = tensor("x", Role.INPUT), tensor("s", Role.BUFFER), *map(tensor, ("seen", "last", "m"))
    view = Op("view", (x,), (seen,), {"size": [4]}, VIEW, ("self",))
    reads = Op("relu", (seen,), (last,), {}, "aten.relu.default", ("self",))
    ops = [view]
    if reader == "an op":
        ops.append(reads)
    elif reader == "a body":
        body = Graph("body", (seen,), (last,), (reads,))
        ops.append(Op("cond", (x,), (made,), {}, "higher_order.cond", ("pred",), bodies=(body,)))
    elif reader == "a dead op":
        ops.append(Op("view", (seen,), (made,), {"size": [4]}, VIEW, ("self",)))
    outputs = (x, *((seen,) if reader == "a result" else ()))
    graph = Graph("g", (x, state), outputs, tuple(ops), ((state, seen),) if reader == "a state" else ())
    kept = without_dead(ops, graph, (VIEW,))
    assert kept == (() if reader in ("nothing", "a dead op") else tuple(ops))
