"""The record of an operator, and the table of all records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.codelet import Lowering, Product, SummandTiles
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import Emitter

Pieces = Callable[[Op, HostTensor], Iterator[tuple[Tensor, HostTensor]]]
"""Yields the operands of an op that lie side by side in its result, and where each does, given that memory."""

FLOATING = (DType.HALF, DType.FLOAT)
INTEGER = (DType.INT, DType.LONG, DType.SHORT, DType.CHAR, DType.UNSIGNED_CHAR)
ANY = (*FLOATING, *INTEGER, DType.BOOL)


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on an op's arguments.

    Attributes:
        holds: Tells whether an op satisfies it.
        message: What is wrong when it does not.
        remedy: What to do.
        got: Tells what an op has instead; None where the message says all.
    """

    holds: Callable[[Op], bool]
    message: str
    remedy: str
    got: Callable[[Op], str] | None = None

    def broken_by(self, op: Op) -> str:
        """Return what is wrong with an op that does not satisfy it."""
        return self.message if self.got is None else f"{self.message}, got {self.got(op)}"


@dataclass(frozen=True, slots=True)
class OpSpec:
    """All that torchipu knows of an operator.

    Attributes:
        target: ATen overload (``aten.relu.default``), or ``ipu.*`` for ops of ours.
        kind: Name in the IR.
        lower: Compute sets that the op becomes; empty for ops that move nothing.
        emit: Host steps that give its value. None when ``instruction`` is given, and for what runs as its torch
            operator.
        instruction: For elementwise ops: how the op enters a fused chain (see ``optable.chain``).
        dtypes: Element types of floating or integer operands that the record serves; others go generic.
        constraints: Conditions checked at import.
        is_view: The result is a view of the first operand; costs nothing until a consumer gathers it.
        moves: The results are elements of the operands, or numbers beside them, and are moved as they are: of whatever
            type in memory, which the emitter leaves to the planner.
        is_random: Draws random bits: never removed or merged; recomputed with the same bits.
        on_host: The device waits while the host does this, with operands that it is sent.
        has_effect: It is there for more than its results: never removed, merged or recomputed.
        is_in_place: The first result overwrites the first operand, which nothing reads afterwards.
        overwrites: Operands, by name, on whose place the first result may lie where nothing reads them afterwards; of
            elementwise ops these are all: see ``optable.in_place``.
        shape_only: Operands of which only the shape matters, so that their values need not exist.
        products: Its products on the matrix unit, in the order in which its emitter counts them.
        summand_tiles: How many tiles share the summands of each product, where it is not planned as a product.
        supports: Tells whether the host kernels serve this op as it stands; otherwise it goes generic.
        pieces: Of ops that copy pieces side by side: each, and where it lies in memory of the result; see
            ``host.concatenation``.
        places: Of ops whose emitter asks for a `placed_output`: whether it stores the first result at such a place.
        without_states: Of ops that change states that they do not need for their first results: the op that gives
            these alone, so that it may be recomputed.
    """

    target: str
    kind: str
    lower: Lowering
    emit: Emitter | None = None
    instruction: Callable[[Any, Op], Any] | None = None
    dtypes: tuple[DType, ...] = ANY
    constraints: tuple[Constraint, ...] = ()
    is_view: bool = False
    moves: bool = False
    is_random: bool = False
    on_host: bool = False
    has_effect: bool = False
    is_in_place: bool = False
    overwrites: tuple[str, ...] = ()
    shape_only: tuple[str, ...] = ()
    products: Callable[[Op], tuple[Product, ...]] | None = None
    summand_tiles: SummandTiles | None = None
    supports: Callable[[Op], bool] = field(default=lambda op: True)
    pieces: Pieces | None = None
    places: Callable[[Op, HostTensor], bool] | None = None
    without_states: Callable[[Op], Op] | None = None


TABLE: dict[str, OpSpec] = {}


def register(*specs: OpSpec) -> None:
    """Enter records into the table.

    Raises:
        ValueError: A target is registered twice.
    """
    for spec in specs:
        if spec.target in TABLE:
            raise ValueError(f"{spec.target} is in the op table already")
        TABLE[spec.target] = spec


def lookup(target: str) -> OpSpec | None:
    """Return the record of an ATen overload, or None.

    Raises:
        RuntimeError: The table is empty.
    """
    if not TABLE:
        raise RuntimeError("the op table is empty, so every op would run generically: import torchipu.ops first")
    return TABLE.get(target)


def spec_of(op: Op) -> OpSpec | None:
    """Return the record that serves this op, or None when it runs through the generic codelet."""
    return None if op.kind == "generic" else lookup(op.target)
