"""Single vertices on silicon beside the cycle formulas of their codelets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchipu.device.cost.exchange import exchange_cycles
from torchipu.device.matmul_plan import plan_matmul
from torchipu.device.matrix_unit import amp_cycles, conv_units
from torchipu.device.reductions import chain_sets
from torchipu.device.whole_rows import brought_together
from torchipu.ir.types import DType
from torchipu.ops.elementwise import BINARY
from torchipu.ops.softmax import FORWARD
from torchipu.score.kinds import Kind, NotExpressed, Prediction
from torchipu.score.published import lines_of_kinds, row_of
from torchipu.score.rows import FOLDER, Row, lines_of
from torchipu.target import lookup_target

MATRIX_FILE = FOLDER / "amp_vertex_bow.csv"
MATRIX_SOURCE = "tessellate-ipu, notebook on the peak rate"
HARNESS_CYCLES = 127  # of reading the counter, which the row counts; its workload says so
PADDED = 16
"""Channels that the vertex of the attention scores takes: 72 are padded to 80, 729 positions to two tiles of 365."""
SCORES = (16, 729, 729)
"""Heads, rows and columns of the encoder whose profile is published."""


def matrix_rows() -> tuple[Row, ...]:
    """Return products of an `N x 16` by a `16 x 16` matrix on every tile."""
    return tuple(
        Row(f"{line.size_in('rows_N_per_tile')} x {line.size_in('K')} x {line.size_in('C')}",
            line.number_in("cycles_derived"), MATRIX_SOURCE, line)
        for line in lines_of(MATRIX_FILE)
    )


def matrix_cycles(row: Row) -> Prediction:
    """Predict one call of the matrix unit, with half partials."""
    size = row.line.size_in
    return _matrix("bow", size("rows_N_per_tile"), size("K"), size("C"), half_partials=True)


def _matrix(machine: str, positions: int, inputs: int, outputs: int, *, half_partials: bool) -> Prediction:
    target = lookup_target(machine)
    work: Mapping[str, int] = {
        "positions": positions, "inputs": inputs, "outputs": outputs, "is_half": 1,
        "output_group": conv_units(target, is_half=True, half_partials=half_partials),
    }
    cycles = amp_cycles(target, work)
    return Prediction(cycles, {"compute": float(cycles)})


def _planned(machine: str, positions: int, inputs: int, outputs: int) -> Prediction:
    """Predict the vertex of a product that the planner cuts up, with half partials and the default memory."""
    target = lookup_target(machine)
    unit = conv_units(target, is_half=True, half_partials=True)
    plan = plan_matmul(target, 1, positions, inputs, outputs, True, unit, partial_bytes=DType.HALF.device_bytes)
    field, channels = plan.channels
    return _matrix(machine, field, plan.inputs, channels, half_partials=True)


def _softmax(machine: str, rows: int, size: int) -> Prediction:
    """Predict the compute sets of a softmax over rows that each tile has so many of."""
    target = lookup_target(machine)
    sets = chain_sets(target, FORWARD, (rows * target.num_tiles, size), (1,), DType.HALF)
    per_tile = [(one, -(-one.elements // target.num_tiles)) for one in sets]
    cycles = float(sum(one.codelet.cycles(target, one.work(mine)) for one, mine in per_tile))
    return Prediction(cycles, {"compute": cycles})


def other_rows() -> tuple[Row, ...]:
    """Return the vertices, kernels and historic numbers among the published rows."""
    return tuple(
        row_of(line) for line in lines_of_kinds("vertex-silicon", "kernel-silicon", "op-historic", "microbench")
    )


def other_cycles(row: Row) -> Prediction | NotExpressed:
    """Predict a vertex that Poplar's libraries have."""
    workload = row.line.text("workload")
    if workload.endswith("16 heads 729x72 by 72x729"):
        return _matrix("c600", 365, 80, PADDED, half_partials=True)
    product = re.search(r"profile: [\w ]+ (\d+)x(\d+)x(\d+) fp16", workload)
    if product:
        return _planned("c600", *map(int, product.groups()))
    if "scores -> softmax-row exchange" in workload:
        target = lookup_target("c600")
        moved = brought_together(target, SCORES, DType.HALF)
        exchanged = exchange_cycles(target, moved.gathered_bytes, moved.fragments)
        return Prediction(exchanged, {"exchange": float(exchanged)})
    rows = re.search(r"softmax, 7 compute sets summed, (\d+) rows x (\d+) per tile", workload)
    if rows:
        return _softmax("c600", *map(int, rows.groups()))
    added = re.match(r"fp32 add (\d+) elements", workload)
    if added:
        target = lookup_target("bow")
        work = {"elements": int(added[1]), "vector_width": target.vector_width(4), "element_bytes": 4}
        cycles = float(BINARY.cycles(target, work))
        return Prediction(cycles + HARNESS_CYCLES, {"compute": cycles, "counter": float(HARNESS_CYCLES)})
    return NotExpressed(next((reason for part, reason in REASONS.items() if part in workload), UNKNOWN))


REASONS = {
    "FP8": "the vertex's padding and its groups of 32 channels are not published",
    "third-party": "a hand-written kernel, which is no codelet of Poplar's libraries",
    "SigLIP": "a layer within a model of 27: what it shares with its neighbours is not published",
    "scale_add": "a custom vertex of its own, whose code is no codelet of Poplar's libraries",
    "QR": "a custom vertex of its own, whose code is no codelet of Poplar's libraries",
    "all-reduce": "which machine, software and topology it ran on is not published",
    "CTC": "which machine and data type it ran on is not published",
    "single conv": "a cycle simulator's number, without its machine",
}
UNKNOWN = "a property of the hardware, no time of a program"

KINDS = (
    Kind("amp-vertex", "matrix unit, one call", "cycles", matrix_rows, matrix_cycles),
    Kind("vertex", "other vertices and kernels", "cycles", other_rows, other_cycles),
)
