"""Ops that hand a value to another process of the same program, or take one from it; no captured graph has them."""

from __future__ import annotations

from enum import Enum

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import Leg

SEND, RECEIVE = "send", "receive"
NUMBER, MOMENT = "transfer", "moment"  # attributes of these ops


class Moment(Enum):
    """When a value goes from one process to another."""

    PROLOGUE = "prologue"  # before the first micro-batch of an iteration
    BODY = "body"  # in every micro-batch of every replica
    UPDATE = "update"


def transfer(kind: str, tensor: Tensor, number: int, moment: Moment) -> Op:
    """Return the op that sends a tensor, or receives it."""
    sent, received = ((tensor,), ()) if kind == SEND else ((), (tensor,))
    return Op(
        kind, sent, received, {NUMBER: number, MOMENT: moment.value}, target=f"ipu.{kind}.default",
        operands=("value",) * len(sent), leg=Leg.UPDATE if moment is Moment.UPDATE else Leg.FORWARD,
    )


def is_transfer(op: Op | None) -> bool:
    """Whether an op sends or receives a value."""
    return op is not None and op.kind in (SEND, RECEIVE) and op.target.startswith("ipu.")


def is_of_prologue(op: Op | None) -> bool:
    """Whether an op transfers a value before the first micro-batch."""
    return op is not None and is_transfer(op) and op.attrs[MOMENT] == Moment.PROLOGUE.value
