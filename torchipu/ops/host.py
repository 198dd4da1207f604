"""Ops that the host computes while the device waits, and the ops that only leave a mark in the program.

The device sends operands to the host and receives results: `torchipu.device.lower` makes host copies of them.
"""

from __future__ import annotations

from torchipu.ir.graph import Op
from torchipu.ops.view import alias
from torchipu.optable.codelet import Vertices
from torchipu.optable.marks import OVERLAP
from torchipu.optable.spec import OpSpec, register
from torchipu.target import Target


def _on_no_tile(op: Op, target: Target) -> tuple[Vertices, ...]:
    """The device computes nothing."""
    return ()


register(
    OpSpec("torchipu.print_tensor.default", "print_tensor", _on_no_tile, is_view=True, on_host=True, has_effect=True),
    OpSpec("torchipu.call_host.default", "call_host", _on_no_tile, on_host=True, has_effect=True),
    OpSpec("torchipu.overlap.default", OVERLAP, _on_no_tile, alias, is_view=True),
    OpSpec("torchipu.nop.default", "nop", _on_no_tile, alias, is_view=True),
)
