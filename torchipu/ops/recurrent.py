"""Recurrent layers: the loop over time of RNN, LSTM and GRU, forward and backward; products of inputs are other ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from torchipu._kernels.table import recurrent as kernels
from torchipu._kernels.table.gemm import PANEL
from torchipu._kernels.table.kernel import Kernel, Nothing
from torchipu._kernels.table.recurrent import UNITS, Cell, RecurrencePackInts, RecurrentInts
from torchipu.device.codelets import ARRANGED_CYCLES_PER_BYTE, MIN_BYTES_PER_TILE, vector_codelet
from torchipu.device.compute_sets import elementwise_set
from torchipu.device.cost.exchange import exchange_cycles
from torchipu.device.product_sets import matmul_vertices
from torchipu.device.tilings.recurrent import Step
from torchipu.host.emit.items import grain_for
from torchipu.host.emit.packing import PACK_BLOCK, packed_panels
from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.codelet import Codelet, Vertices
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import HostPlanner
from torchipu.optable.spec import FLOATING, OpSpec, register
from torchipu.target import Target

LEAST_CHUNK_MACS = 200_000
MOST_ITEMS, FEWEST_ROWS, LEAST_ROWS, MOST_ROWS = 8, 4, 8, 28
CACHED_BYTES = 1 << 20
"""Weights that stay in the second-level cache of a core. Each item of samples reads all of them in every step; what is
more is rather shared out: a thread has the same units in each step, whose weights then stay near, and meets the others
behind it."""
LEAST_SHARED_BYTES = 1 << 17
"""Weights of a step that take longer than a meeting: with samples for one item only, they are worth sharing out."""
MOST_PARTS = 16

# A sigmoid or tanh costs 5 cycles a vector of halves and 10 of floats (poplibs, ipu_hardware.md 2.3); the sums beside
# them about as much again.
_FORWARD = {
    "tanh": vector_codelet("popnn::RnnTanh", 6, 11, source="estimate"),
    "relu": vector_codelet("popnn::RnnRelu", 2, 2, source="estimate"),
    "lstm": vector_codelet("popnn::LstmGates", 34, 62, code_bytes=700, source="estimate"),
    "gru": vector_codelet("popnn::GruGates", 26, 44, code_bytes=640, source="estimate"),
}
_BACKWARD = {
    "tanh": vector_codelet("popnn::RnnTanhGrad", 4, 4, source="estimate"),
    "relu": vector_codelet("popnn::RnnReluGrad", 3, 3, source="estimate"),
    "lstm": vector_codelet("popnn::LstmGatesGrad", 40, 46, code_bytes=800, source="estimate"),
    "gru": vector_codelet("popnn::GruGatesGrad", 36, 36, code_bytes=760, source="estimate"),
}


# Compute sets of a step beside its products, by what popnn's cells are made of: estimates, those of an LSTM made with
# the rows of Mk1 in view, those of other cells without any rows. An LSTM: counter, slice of the sequence, operands of
# the product side by side, bias, sigmoids, tanh, gates times values, their sum, its tanh, the last gate, two states,
# the result laid out and put into the sequence. Its backward: counter, slices of gradients and of what was kept, sum of
# both gradients of the result, two sets each for the cell, the gates and their nonlinearities, sum of the bias'
# gradient, what goes into the sequence.
_SETS_FORWARD = {"tanh": 8, "relu": 8, "lstm": 14, "gru": 16}
_SETS_BACKWARD = {"tanh": 8, "relu": 8, "lstm": 12, "gru": 14}
_SET_CYCLES, _SET_WORKER_CYCLES = 11, 29  # of a set with hardly an element a tile; ipu_hardware.md 2.3
_SET_BYTES = 2 * MIN_BYTES_PER_TILE
"""What a tile gets of two operands, which lie otherwise: products leave gates as they come, states are linear."""


def _in_sets(codelet: Codelet, count: int) -> Codelet:
    """Return a codelet that stands for several compute sets, with the syncs and the exchanges between them."""

    def cycles(target: Target, work: Mapping[str, int]) -> int:
        launched = _SET_CYCLES + target.num_workers * _SET_WORKER_CYCLES
        laid_out = int(ARRANGED_CYCLES_PER_BYTE * _SET_BYTES)
        moved = exchange_cycles(target, _SET_BYTES, _SET_BYTES // 8)
        return codelet.cycles(target, work) + (count - 1) * (target.sync_cycles + moved + laid_out + launched)

    return replace(codelet, cycles=cycles)


class _Sizes:
    """What the kernels need to know of an op.

    Args:
        op: A recurrence or its gradient.
    """

    def __init__(self, op: Op) -> None:
        self.cell = op.text("cell")
        self.time, self.batch = op.inputs[0].shape[:2]
        self.state = op.needed("h0").shape[-1]
        weight = op.needed("weight")
        self.gates = weight.shape[0]
        self.hidden = self.gates // {"lstm": 4, "gru": 3}.get(self.cell, 1)
        self.projects = op.operand("projection") is not None
        self.reverse = op.flag("reverse")
        # Every item reads all weights in every step: few samples in it leave the arithmetic waiting for the cache.
        items = max(min(2, self.batch // FEWEST_ROWS), min(MOST_ITEMS, self.batch // LEAST_ROWS), 1)
        self.rows = max(1, min(MOST_ROWS, -(-self.batch // items)))

    @property
    def is_by_units(self) -> bool:
        """Whether threads share out units in every step, and not samples once for all steps."""
        least = LEAST_SHARED_BYTES if self.batch <= self.rows else CACHED_BYTES
        return 4 * self.gates * self.state > least and not self.projects and bool(self.time and self.batch)

    def emit(
        self, plan: HostPlanner, kernel: Kernel[RecurrentInts, Nothing], outputs: Sequence[HostTensor],
        inputs: Sequence[HostTensor], *, rounds: int, unit: int, row_bytes: int, keeps: bool = True,
    ) -> None:
        """Append the step of an op.

        Args:
            plan: The plan.
            kernel: Forward or backward.
            outputs: Written.
            inputs: Read.
            rounds: Steps of time, where threads meet behind each.
            unit: Units that are not taken apart.
            row_bytes: Scratch of a sample, where items are samples.
            keeps: Whether a backward reads what the forward writes down for it.
        """
        blocks = -(-self.hidden // unit)
        per_part = -(-blocks // MOST_PARTS)
        parts = -(-blocks // per_part) if self.is_by_units else 0
        ints = RecurrentInts(
            Cell[self.cell.upper()], self.time, self.batch, self.hidden, self.state, self.rows, self.reverse,
            self.projects, keeps, parts, per_part * unit,
        )
        if parts:
            plan.step(kernel, outputs, inputs, ints=ints, items=rounds * parts, rounds=rounds)
            return
        items = -(-self.batch // self.rows)
        plan.step(
            kernel, outputs, inputs, ints=ints, items=items,
            grain=grain_for(items, self.time * self.batch * self.gates * self.state, LEAST_CHUNK_MACS),
            scratch_bytes=row_bytes * self.rows, writes=[self._blocks(held) for held in outputs],
        )

    def _blocks(self, held: HostTensor) -> Blocks | None:
        """Return what items of samples write of [time, batch, width], or of [batch, width]."""
        *before, batch, width = held.shape
        time = prod(before)
        if not held.num_elements or batch != self.batch:
            return None
        return Blocks.of((time, batch, width), (time, self.rows, width))


def _floats(op: Op, plan: HostPlanner, name: str, absent: HostTensor) -> HostTensor:
    tensor = op.operand(name)
    return absent if tensor is None else plan.value(tensor, DType.FLOAT)


def _panels(op: Op, plan: HostPlanner, name: str, turned: bool) -> HostTensor:
    """Return a matrix, or its transpose, in the panels that products read."""
    matrix = plan.value(op.needed(name), DType.FLOAT)
    if turned:
        matrix = HostTensor(matrix.buffer, matrix.offset, matrix.shape[::-1], (1, matrix.shape[1]), matrix.dtype)
    return packed_panels(plan, matrix)


def _packed_units(op: Op, plan: HostPlanner, s: _Sizes) -> HostTensor:
    """Return the recurrent weights as the forward reads them: the gates of some units side by side."""
    gates, blocks, parts = s.gates // s.hidden, -(-s.hidden // UNITS), -(-s.state // PACK_BLOCK)
    packed = plan.scratch((blocks, s.state, gates, UNITS))
    plan.step(
        kernels.RECURRENCE_PACK, [packed], [plan.value(op.needed("weight"), DType.FLOAT)],
        ints=RecurrencePackInts(gates, s.hidden, s.state, PACK_BLOCK), items=blocks * parts,
        grain=grain_for(blocks * parts, s.gates * s.state, 32768),
    )
    return packed


def _emit_forward(op: Op, plan: HostPlanner) -> None:
    s = _Sizes(op)
    x, h0 = (plan.value(op.needed(name), DType.FLOAT) for name in ("projected", "h0"))
    weight = _packed_units(op, plan, s)
    projection = _panels(op, plan, "projection", turned=True) if s.projects else weight
    bias = op.operand("bias")
    if bias is None:
        added = plan.constant([0.0] * s.gates, DType.FLOAT) if s.cell == "gru" else x
    else:
        added = plan.value(bias, DType.FLOAT)
    outputs = [plan.output(result, DType.FLOAT) for result in op.outputs]
    s.emit(
        plan, kernels.RECURRENCE, outputs, [x, h0, _floats(op, plan, "c0", x), weight, added, projection],
        rounds=s.time, unit=UNITS, row_bytes=4 * s.hidden if s.projects else 0, keeps=plan.wanted(op.outputs[2]),
    )


def _emit_backward(op: Op, plan: HostPlanner) -> None:
    s = _Sizes(op)
    names = ("grad_outputs", "grad_cell", "kept", "outputs", "h0")
    dy, dc, kept, y, h0 = (plan.value(op.needed(name), DType.FLOAT) for name in names)
    weight = _panels(op, plan, "weight", turned=False)
    projection = _panels(op, plan, "projection", turned=False) if s.projects else weight
    operands = [dy, dc, kept, y, h0, _floats(op, plan, "c0", y), weight, projection]
    outputs = [plan.output(result, DType.FLOAT) for result in op.outputs]
    s.emit(
        plan, kernels.RECURRENCE_BACKWARD, outputs, operands, rounds=s.time + 1, unit=PANEL,
        row_bytes=4 * (s.state + 2 * s.hidden),
    )


def _steps(op: Op, s: _Sizes) -> list[Step]:
    """Return the steps in the order of time as the layer sees it."""
    return [
        Step(number, s.time - 1, s.batch, s.hidden, s.state, s.cell, s.reverse, s.projects) for number in range(s.time)
    ]


def _lower_forward(op: Op, target: Target) -> tuple[Vertices, ...]:
    """One product and one set of gates for each time step."""
    s, dtype = _Sizes(op), op.needed("projected").dtype
    if not s.batch:
        return ()
    gates = elementwise_set(target, _in_sets(_FORWARD[s.cell], _SETS_FORWARD[s.cell]), s.batch * s.hidden, dtype)
    sets: tuple[Vertices, ...] = ()
    for step in _steps(op, s):
        sets += matmul_vertices(op, target, 1, s.batch, s.state, s.gates, dtype, step.product)
        sets += (replace(gates, tiling=step.cells),)
        if s.projects:
            sets += matmul_vertices(op, target, 1, s.batch, s.hidden, s.state, dtype, step.projected)
    return sets


def _lower_backward(op: Op, target: Target) -> tuple[Vertices, ...]:
    s, dtype = _Sizes(op), op.needed("outputs").dtype
    if not s.batch:
        return ()
    gates = elementwise_set(target, _in_sets(_BACKWARD[s.cell], _SETS_BACKWARD[s.cell]), s.batch * s.hidden, dtype)
    sets: tuple[Vertices, ...] = ()
    for step in reversed(_steps(op, s)):
        if s.projects:
            sets += matmul_vertices(op, target, 1, s.batch, s.state, s.hidden, dtype, step.gradient_projected)
        sets += (replace(gates, tiling=step.gradient_cells),)
        sets += matmul_vertices(op, target, 1, s.batch, s.gates, s.state, dtype, step.gradient_product)
    return sets


register(
    OpSpec("ipu.recurrence.default", "recurrence", _lower_forward, _emit_forward, dtypes=FLOATING),
    OpSpec("ipu.recurrence_backward.default", "recurrence_backward", _lower_backward, _emit_backward, dtypes=FLOATING),
)
