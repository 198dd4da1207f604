"""A scan between two flips, as gradients of running sums are: the host scans from the end, and turns nothing around."""

from __future__ import annotations

from collections.abc import Sequence

from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ops.scan import SCANNINGS, emit_scan
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.planner import HostPlanner

FLIP = "aten.flip.default"


def _applies(ops: Sequence[Op]) -> bool:
    """Whether both flips turn the scanned dimension alone; halves would be rounded where they lie turned around."""
    before, scan, after = ops
    shape, tensors = scan.inputs[0].shape, [tensor for op in ops for tensor in (op.inputs[0], op.outputs[0])]
    if not shape or any(tensor.dtype is not tensors[0].dtype for tensor in tensors):
        return False
    scanned = [scan.integer("dim") % len(shape)]
    turned = ([dim % len(shape) for dim in flip.integers("dims")] for flip in (before, after))
    return tensors[0].dtype in (DType.FLOAT, DType.LONG) and all(dims == scanned for dims in turned)


def _emit(ops: Sequence[Op], plan: HostPlanner) -> None:
    before, scan, after = ops
    scanning = SCANNINGS[scan.target.split(".")[1]]
    emit_scan(scan, scanning, before.inputs[0], after.outputs[0], plan, is_backward=True)


register_fusion(*(Fusion((FLIP, f"aten.{_name}.default", FLIP), _applies, _emit) for _name in SCANNINGS))
