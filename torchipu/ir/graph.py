"""What to compute: a graph of ops in SSA form, with no aliasing and no in-place writes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from torchipu.errors import VerifyError
from torchipu.ir.attributes import Attributes
from torchipu.ir.types import UNKNOWN_SOURCE, DType, Leg, Role, Source

NO_ATTRS: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A value of the graph; identity is the object itself, names are unique within a graph.

    Attributes:
        name: Name without the ``%`` of the text form.
        shape: Sizes, outermost first.
        dtype: Element type.
        role: What the tensor is to the model.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    role: Role = Role.ACTIVATION

    @property
    def num_elements(self) -> int:
        """Product of the sizes; 1 for a 0-d tensor."""
        return math.prod(self.shape)

    @property
    def device_bytes(self) -> int:
        """Bytes that the tensor takes in tile memory."""
        return self.num_elements * self.dtype.device_bytes


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when an op runs: block, IPU, pipeline stage and leg."""

    block: str
    ipu: int
    stage: int
    leg: Leg

    def __str__(self) -> str:
        return f"{self.block} (ipu {self.ipu}, stage {self.stage}, {self.leg.name.lower()})"


@dataclass(frozen=True, slots=True, eq=False)
class Op(Attributes):
    """One operation.

    Attributes:
        kind: Name of its record in the op table; ``generic`` for an ATen op with no record.
        inputs: Tensor operands, in the order of ``operands``.
        outputs: Results.
        attrs: Arguments that are not tensors, by the name in the ATen schema.
        target: ATen overload (``aten.add.Tensor``) or an op of ours (``ipu.adam.default``).
        operands: For each tensor argument of the call its schema name; ``tensors[3]`` for a list of three,
            ``indices[_,1]`` style lists write ``_`` for an absent member (``indices[_x]``: absent, present).
        source: The user's line.
        placement: None until the placement pass.
        leg: Leg as captured; the placement repeats it.
        block: Block annotation as captured: ``(name, ipu_id or None)``.
        bodies: Graphs that the op runs, for control flow; see `torchipu.ops.control`.
    """

    kind: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    attrs: Mapping[str, object] = field(default_factory=lambda: NO_ATTRS)
    target: str = ""
    operands: tuple[str, ...] = ()
    source: Source = UNKNOWN_SOURCE
    placement: Placement | None = None
    leg: Leg = Leg.FORWARD
    block: tuple[str, int | None] | None = None
    bodies: tuple[Graph, ...] = ()

    def needed(self, name: str) -> Tensor:
        """Return the tensor bound to a schema name that must be given."""
        tensor = self.operand(name)
        if tensor is None:
            raise VerifyError(f"{self.target}: operand {name!r} is missing")
        return tensor

    def operand(self, name: str) -> Tensor | None:
        """Return the single tensor bound to a schema name, or None when it was not given."""
        position = 0
        for operand in self.operands:
            if operand == name:
                return self.inputs[position]
            position += operand_width(operand)
        return None

    def operand_list(self, name: str) -> tuple[Tensor | None, ...]:
        """Return the members of a list argument; absent members are None."""
        position = 0
        for operand in self.operands:
            width = operand_width(operand)
            if operand.startswith(f"{name}["):
                present = iter(self.inputs[position : position + width])
                return tuple(next(present) if mark == "x" else None for mark in operand[len(name) + 1 : -1])
            position += width
        return ()


def operand_width(operand: str) -> int:
    """Return how many tensors an entry of ``Op.operands`` takes: 1, or the ``x`` marks of a list."""
    return operand[operand.index("[") :].count("x") if "[" in operand else 1


def operand_labels(op: Op) -> list[str]:
    """Return a name for each input of an op: that of its schema, with the place in a list; none begins with ``out``.

    Results are called ``out``, ``out1`` and so on.
    """
    if not op.operands:
        return [f"in{index}" for index in range(len(op.inputs))]
    labels = [
        operand if "[" not in operand else f"{operand[: operand.index('[')]}.{index}"
        for operand in op.operands for index in range(operand_width(operand))
    ]
    return [f"given.{label}" if label.startswith("out") else label for label in labels]


@dataclass(frozen=True, slots=True)
class Graph:
    """Ops in an order in which they can run.

    Attributes:
        name: Name for text and dumps.
        inputs: Everything the graph reads: inputs, weights, buffers, states, constants.
        outputs: Results handed to the user, in order.
        ops: SSA order.
        updates: ``(state, its next value)`` pairs, written when the micro-batch or the update ends.
    """

    name: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    updates: tuple[tuple[Tensor, Tensor], ...] = ()

    def has_leg(self, leg: Leg) -> bool:
        """Whether any op belongs to a leg."""
        return any(op.leg is leg for op in self.ops)


def walk_ops(ops: Sequence[Op]) -> Iterator[Op]:
    """Yield ops, and after each one those of its bodies."""
    for op in ops:
        yield op
        for body in op.bodies:
            yield from walk_ops(body.ops)
