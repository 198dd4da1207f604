"""Programs of collectives over processes."""

from __future__ import annotations

import math

import pytest

from torchipu.device.lower.collectives import programs_of
from torchipu.ir.graph import Op
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import AllReduce, Copy, Sync, Variable
from torchipu.ir.types import DType, Role
from torchipu.optable.collective import NAMESPACE, POINT_TO_POINT


def variable(name: str, *shape: int) -> Variable:
    """Return a variable on the first tile."""
    count = math.prod(shape)
    return Variable(name, shape, DType.FLOAT, 0, TileMapping(((0, 0, count),) if count else ()), Role.ACTIVATION)


def collective(name: str) -> Op:
    return Op("collective", (), (), {"processes": 4}, f"{NAMESPACE}.{name}.default")


@pytest.mark.parametrize("name", ["isend", "irecv"])
def test_what_two_processes_send_each_other_is_one_transfer_and_nothing_is_none(name: str) -> None:
    sent, nothing = variable("sent", 3, 2), variable("nothing", 0, 2)
    (sync, transfer), others = programs_of(collective(name), [sent], [])
    assert isinstance(sync, Sync)
    assert isinstance(transfer, AllReduce)
    assert (transfer.variables, transfer.kind, others) == ((sent,), POINT_TO_POINT, [])
    assert (transfer.replicas, transfer.mean) == (2, False)
    assert programs_of(collective(name), [nothing], []) == ([], [])
    (_, second), _ = programs_of(collective(name), [nothing], [sent])
    assert second.variables == (sent,)
    (_, third), _ = programs_of(collective(name), [sent], [variable("received", 3, 2)])
    assert third.variables == (sent,)


def test_a_gather_copies_shares_and_a_scatter_sums_beside_its_operand() -> None:
    share, whole = variable("share", 2), variable("whole", 8)
    programs, others = programs_of(collective("all_gather_into_tensor"), [share], [whole])
    copies = [program for program in programs if isinstance(program, Copy)]
    assert [(copy.src.name, copy.dst.name, copy.total_bytes) for copy in copies] == [("share", "whole", 8)]
    assert others == []
    programs, (beside,) = programs_of(collective("reduce_scatter_tensor"), [whole], [share])
    copies = [program for program in programs if isinstance(program, Copy)]
    assert [(copy.src.name, copy.dst.name, copy.total_bytes) for copy in copies] == [
        ("whole", beside.name, 32), (beside.name, "share", 8),
    ]
    assert (beside.role, beside.depth) == (Role.ACTIVATION, 1)


def test_the_busiest_tile_receives_its_elements_of_what_is_copied() -> None:
    halves = TileMapping(((0, 0, 3), (1, 3, 8)))
    share, whole = (Variable(name, (8,), DType.HALF, 0, halves, Role.ACTIVATION) for name in ("share", "whole"))
    programs, _ = programs_of(collective("all_reduce"), [share], [whole])
    assert {copy.max_tile_bytes for copy in programs if isinstance(copy, Copy)} == {5 * 2}


def test_a_collective_whose_results_are_not_as_many_as_its_operands_is_no_program() -> None:
    one, two = variable("one", 4), variable("two", 4)
    for name, operands, results in (
        ("all_reduce", [one, two], [one]), ("all_gather_into_tensor", [one], [one, two]),
        ("reduce_scatter_tensor", [one, two], [one]),
    ):
        with pytest.raises(ValueError, match="zip"):
            programs_of(collective(name), operands, results)
