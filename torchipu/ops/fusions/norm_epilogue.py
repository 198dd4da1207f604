"""A batch normalisation in training with what follows it: a sum, a ReLU."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

from torchipu.ir.graph import Op
from torchipu.ir.types import DType
from torchipu.ops.fusions.conv_epilogue import ADD, addend_of, adds_like
from torchipu.ops.fusions.picked import RELU, rounds_once
from torchipu.ops.norm import emit_batch_norm, trains
from torchipu.optable.fusion import Fusion, register_fusion
from torchipu.optable.planner import HostPlanner

NORMS = ("aten._native_batch_norm_legit_functional.default", "aten._native_batch_norm_legit.no_stats")


def _applies(ops: Sequence[Op]) -> bool:
    if not trains(ops[0]) or not (all(op.outputs[0].dtype is DType.FLOAT for op in ops) or rounds_once(ops)):
        return False
    return all(adds_like(before, op) for before, op in pairwise(ops) if op.target == ADD)


def _emit(ops: Sequence[Op], plan: HostPlanner) -> None:
    addend = addend_of(*ops[:2]) if ops[1].target == ADD else None
    emit_batch_norm(ops[0], plan, ops[-1].outputs[0], addend, is_relu=ops[-1].target == RELU)


for _norm, _followers in product(NORMS, ((RELU,), (ADD,), (ADD, RELU))):
    register_fusion(Fusion((_norm, *_followers), _applies, _emit))
