"""Systems of equations with triangular matrices, as gated delta rules and densities of normal distributions need."""

from __future__ import annotations

from collections.abc import Mapping

from torchipu._kernels.table.triangular import SOLVE_TRIANGULAR, SOLVED_PANEL, SolveTriangularInts
from torchipu.device.codelets import busiest_elements
from torchipu.device.tilings.slices import Axis, Slicing, sliced
from torchipu.ir.arithmetic import ceil_div
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Vertices
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.target import Target

SHARE = 16384  # products of one thread's share
FLOAT_BYTES = 4


def _is_left(op: Op) -> bool:
    return bool(op.attrs.get("left", True))


def _systems(op: Op) -> int:
    """Return how many systems have the same matrix."""
    return op.outputs[0].shape[2 if _is_left(op) else 1]


# --------------------------------------------------------------------------- host side
def _emit(op: Op, plan: HostPlanner) -> None:
    given, matrices = (plan.value(op.needed(label), DType.FLOAT) for label in ("B", "self"))
    out, systems, is_left = plan.output(op.outputs[0], DType.FLOAT), _systems(op), _is_left(op)
    if not out.num_elements:
        return
    batch, size, _ = matrices.shape
    plan.step(
        SOLVE_TRIANGULAR, [out], [given, matrices],
        ints=SolveTriangularInts(
            size, systems, op.flag("upper"), bool(op.attrs.get("unitriangular", False)), is_left,
        ),
        items=batch * ceil_div(systems, SOLVED_PANEL), grain=max(1, SHARE // (size * size * SOLVED_PANEL)),
        scratch_bytes=FLOAT_BYTES * size * SOLVED_PANEL,
        writes=[Blocks.of(out.shape, (1, size, SOLVED_PANEL) if is_left else (1, SOLVED_PANEL, size))],
    )


# --------------------------------------------------------------------------- device side
def _cycles(target: Target, work: Mapping[str, int]) -> int:
    """Return the cycles of systems, each solved by one worker: a product in two cycles, a division in ten."""
    workers, size = target.num_workers, work["size"]
    return 11 + workers * (21 + ceil_div(work["systems"], workers) * size * (size - 1 + 10))


SOLVE = Codelet("torchipu::SolveTriangular", _cycles, code_bytes=700, source="estimate")


def _lower(op: Op, target: Target) -> tuple[Vertices, ...]:
    """A vertex has matrices whole, and solves some of the systems of each of them."""
    out = op.outputs[0]
    if not out.num_elements:
        return ()
    size = op.needed("self").shape[1]
    systems = out.num_elements // size
    mine = busiest_elements(target, systems)
    brought = (mine * size + ceil_div(mine, _systems(op)) * size * size) * out.dtype.device_bytes
    return (
        Vertices(
            SOLVE, systems, lambda count: {"systems": count, "size": size}, gathered_bytes=brought,
            temporary_bytes=brought, tiling=sliced(_slices),
        ),
    )


def _slices(op: Op) -> Slicing:
    batch, dim = op.outputs[0].shape[0], 2 if _is_left(op) else 1
    return Slicing((
        Axis(batch, dict.fromkeys(("B", "self", "out"), (0, 1))),
        Axis(_systems(op), dict.fromkeys(("B", "out"), (dim, 1))),
    ))


# --------------------------------------------------------------------------- records
def _serves(op: Op) -> bool:
    """Batches of matrices: `torchipu.capture.triangular` makes all others such."""
    matrices, given = op.needed("self").shape, op.needed("B").shape
    return len(matrices) == len(given) == 3 and matrices[0] == given[0]


register(OpSpec(
    "aten.linalg_solve_triangular.default", "solve_triangular", _lower, _emit, dtypes=FLOATING, supports=_serves,
))
