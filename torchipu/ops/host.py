"""Ops that the host computes while the device waits, and the ops that only leave a mark in the program.

The device sends operands to the host and receives results: `torchipu.passes.lower` makes host copies of them.
"""

from __future__ import annotations

from torchipu.ir.graph import Op
from torchipu.ops.spec import OpSpec, Vertices, register
from torchipu.ops.view import alias
from torchipu.target import Target

OVERLAP = "overlap"
"""Kind of the op that marks a transfer which runs beside the computation."""
NO_OVERLAP = "no_overlap"
"""The ``mode`` of such an op that marks nothing."""


def _on_no_tile(op: Op, target: Target) -> tuple[Vertices, ...]:
    """The device computes nothing."""
    return ()


register(
    OpSpec("torchipu.print_tensor.default", "print_tensor", _on_no_tile, is_view=True, on_host=True, has_effect=True),
    OpSpec("torchipu.call_host.default", "call_host", _on_no_tile, on_host=True, has_effect=True),
    OpSpec("torchipu.overlap.default", OVERLAP, _on_no_tile, alias, is_view=True),
    OpSpec("torchipu.nop.default", "nop", _on_no_tile, alias, is_view=True),
)
