"""Ops of control flow: a choice between two graphs, a loop with a test, and a loop over rows.

=================  ==============================================  ============================================
op                 operands                                        bodies
=================  ==============================================  ============================================
``cond``           ``pred``, ``operands``                          what runs where ``pred`` is true, and where not
``while_loop``     ``carried``, ``operands``                       the test, and what gives the next ``carried``
``repeat``         ``init``, ``xs``, ``operands``                  what gives the next ``init``, then a row of each
                                                                   stacked result, from a row of each of ``xs``
=================  ==============================================  ============================================

The inputs of each body are the operands (without ``pred``) in their order. The device runs `If`, `RepeatWhile` and
`Repeat` of `torchipu.ir.program`; the host jumps among the steps of its plan.
"""

from __future__ import annotations

from torchipu.ir.graph import Graph, Op, Tensor

COND, WHILE, REPEAT = "ipu.cond.default", "ipu.while_loop.default", "ipu.repeat.default"


def carried_of(op: Op) -> tuple[Tensor, ...]:
    """Return the first values of what a loop hands from trip to trip; its results begin with the last ones."""
    return _given(op, "carried" if op.target == WHILE else "init")


def rows_of(op: Op) -> tuple[Tensor, ...]:
    """Return the tensors that a loop takes a row of with each trip."""
    return _given(op, "xs")


def trips_of(op: Op) -> int:
    """Return how often a ``repeat`` runs its body."""
    trips = op.attrs["trips"]
    assert isinstance(trips, int)
    return trips


def formals_of(op: Op, body: Graph) -> list[tuple[Tensor, Tensor, bool]]:
    """Pair the inputs of a body with the tensors outside whose storage they are.

    Returns:
        For each input: itself, the operand or, for what a loop carries, the result; and whether it is only a row of
        that, with storage of its own.
    """
    carried, rows = (0, 0) if op.target == COND else (len(carried_of(op)), len(rows_of(op)))
    outside = op.inputs[1:] if op.target == COND else (*op.outputs[:carried], *op.inputs[carried:])
    return [
        (formal, held, carried <= place < carried + rows)
        for place, (formal, held) in enumerate(zip(body.inputs, outside, strict=True))
    ]


def _given(op: Op, name: str) -> tuple[Tensor, ...]:
    return tuple(tensor for tensor in op.operand_list(name) if tensor is not None)
