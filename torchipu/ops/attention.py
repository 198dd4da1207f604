"""Scaled dot-product attention and its gradient, in blocks of queries and keys."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from torchipu._kernels import attention as kernels
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.ops.lowering import busiest_elements, vector_codelet
from torchipu.ops.matmul import matmul_vertices
from torchipu.ops.spec import FLOATING, HostPlanner, HostTensor, OpSpec, Vertices, register

if TYPE_CHECKING:
    from torchipu.target import Target

KEYS_AT_ONCE = 256
ROWS_BACKWARD = 56
KEYS_BACKWARD = 128
# Seven compute sets on the device (ipu_hardware.md 2.3); here one, with the sum of their cycles a vector.
SOFTMAX = vector_codelet(
    "popnn::Softmax", 17, 26, supervisor=77, worker_half=182, worker_single=203, source="estimate: a sum of seven sets",
)
SOFTMAX_GRADIENT = vector_codelet(
    "popnn::SoftmaxGrad", 12, 15, supervisor=44, worker_half=104, worker_single=116,
    source="estimate: a sum of four sets",
)


# --------------------------------------------------------------------------- device side
def _sizes(op: Op) -> tuple[int, int, int, int]:
    """Heads in all, queries, keys and width."""
    query, key = op.operand("query"), op.operand("key")
    assert query is not None
    assert key is not None
    return query.shape[0] * query.shape[1], query.shape[2], key.shape[2], query.shape[3]


def _softmax_set(op: Op, target: Target, gradient: bool) -> tuple[Vertices, ...]:
    heads, queries, keys, _ = _sizes(op)
    element_bytes = op.inputs[0].dtype.device_bytes
    width = target.vector_width(element_bytes)
    mine = busiest_elements(target, heads * queries * keys, width, element_bytes)
    codelet = SOFTMAX_GRADIENT if gradient else SOFTMAX
    return (
        (
            Vertices(
                codelet,
                heads * queries * keys,
                lambda count: {"elements": count, "vector_width": width, "element_bytes": element_bytes},
                grain=width,
                temporary_bytes=(3 if gradient else 2) * mine * element_bytes,
            ),
        )
        if mine
        else ()
    )


def _lower_forward(op: Op, target: Target) -> tuple[Vertices, ...]:
    heads, queries, keys, width = _sizes(op)
    dtype = op.inputs[0].dtype
    return (
        *matmul_vertices(op, target, heads, queries, width, keys, dtype),
        *_softmax_set(op, target, False),
        *matmul_vertices(op, target, heads, queries, keys, width, dtype),
    )


def _lower_backward(op: Op, target: Target) -> tuple[Vertices, ...]:
    heads, queries, keys, width = _sizes(op)
    dtype = op.inputs[0].dtype
    scores = matmul_vertices(op, target, heads, queries, width, keys, dtype)
    to_keys = matmul_vertices(op, target, heads, keys, queries, width, dtype)
    to_queries = matmul_vertices(op, target, heads, queries, keys, width, dtype)
    return (
        *scores,
        *_softmax_set(op, target, False),
        *scores,
        *_softmax_set(op, target, True),
        *to_keys,
        *to_keys,
        *to_queries,
    )


# --------------------------------------------------------------------------- host side
def _supports(op: Op) -> bool:
    query, key, value, mask = (op.operand(name) for name in ("query", "key", "value", "attn_mask"))
    if query is None or key is None or value is None or len(query.shape) != 4 or 0 in query.shape or 0 in key.shape:
        return False
    same = query.shape[:2] == key.shape[:2] and key.shape == value.shape and query.shape[3] == key.shape[3]
    masked = mask is None or (mask.dtype.is_floating and len(mask.shape) <= 4)
    return same and masked and float(op.attrs["dropout_p"]) == 0.0  # type: ignore[arg-type]


def _vectors(plan: HostPlanner, tensor: Tensor) -> HostTensor:
    """Return float storage in which each position's vector is contiguous."""
    held = plan.value(tensor, DType.FLOAT, contiguous=False)
    return held if held.strides[3] == 1 or held.shape[3] == 1 else plan.value(tensor, DType.FLOAT)


def _mask(plan: HostPlanner, op: Op) -> tuple[list[HostTensor], tuple[int, ...]]:
    """Return the mask, if there is one, and its four strides, 0 where it is broadcast."""
    tensor = op.operand("attn_mask")
    if tensor is None:
        return [], (0, 0, 0, 0)
    held = plan.value(tensor, DType.FLOAT, contiguous=False)
    missing = 4 - len(held.shape)
    shape, strides = (1,) * missing + held.shape, (0,) * missing + held.strides
    return [held], tuple(0 if size == 1 else stride for size, stride in zip(shape, strides, strict=True))


def _ints(
    op: Op, operands: list[HostTensor], mask: tuple[list[HostTensor], tuple[int, ...]], rows: int, cols: int
) -> tuple[int, ...]:
    query, key = operands[0], operands[1]
    head = (*query.shape[:3], key.shape[2], query.shape[3], rows, cols, int(bool(op.attrs["is_causal"])), len(mask[0]))
    return (*head, *(stride for operand in operands for stride in operand.strides[:3]), *mask[1])


def _scale(op: Op, width: int) -> float:
    given = op.attrs.get("scale")
    return 1.0 / math.sqrt(width) if given is None else float(given)  # type: ignore[arg-type]


def _operands(op: Op, plan: HostPlanner) -> list[HostTensor]:
    operands = []
    for name in ("query", "key", "value"):
        tensor = op.operand(name)
        assert tensor is not None
        operands.append(_vectors(plan, tensor))
    return operands


def _emit_forward(op: Op, plan: HostPlanner) -> None:
    operands, mask = _operands(op, plan), _mask(plan, op)
    batch, heads, queries, width = operands[0].shape
    keys = operands[1].shape[2]
    rows = min(queries, 112)
    while rows > 28 and batch * heads * -(-queries // rows) < 8:
        rows = -(-rows // 2)
    cols = min(KEYS_AT_ONCE, -(-keys // 32) * 32)
    outputs = [plan.output(result, DType.FLOAT) for result in op.outputs]
    plan.step(
        kernels.ATTENTION,
        outputs,
        [*operands, *mask[0]],
        ints=_ints(op, operands, mask, rows, cols),
        scalars=(_scale(op, width),),
        items=batch * heads * -(-queries // rows),
        scratch_bytes=4 * (cols * width + rows * cols + rows * width + 2 * rows),
    )


def _emit_backward(op: Op, plan: HostPlanner) -> None:
    operands, mask = _operands(op, plan), _mask(plan, op)
    batch, heads, queries, width = operands[0].shape
    saved = []
    for name in ("grad_out", "out", "logsumexp"):
        tensor = op.operand(name)
        assert tensor is not None
        saved.append(plan.value(tensor, DType.FLOAT))
    rows, cols = min(ROWS_BACKWARD, queries), min(KEYS_BACKWARD, -(-operands[1].shape[2] // 32) * 32)
    outputs = [plan.output(result, DType.FLOAT) for result in op.outputs]
    plan.step(
        kernels.ATTENTION_BACKWARD,
        outputs,
        [*saved, *operands, *mask[0]],
        ints=_ints(op, operands, mask, rows, cols),
        scalars=(_scale(op, width),),
        items=batch * heads,
        scratch_bytes=4 * (2 * cols * width + 2 * rows * cols + queries),
    )


register(
    OpSpec(
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        "attention",
        _lower_forward,
        _emit_forward,
        dtypes=FLOATING,
        supports=_supports,
    ),
    OpSpec(
        "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
        "attention_backward",
        _lower_backward,
        _emit_backward,
        dtypes=FLOATING,
        supports=_supports,
    ),
)
