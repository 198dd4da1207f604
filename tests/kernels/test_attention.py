"""Attention against the formula in float64."""

from __future__ import annotations

import math

import pytest
import torch

from tests.kernels.immediate import run_op
from torchipu.ir.types import DType
from torchipu.ops import attention  # noqa: F401

FORWARD = "aten._scaled_dot_product_flash_attention_for_cpu.default"
# batch, heads, queries, keys, width
CASES = [(2, 3, 17, 17, 8), (1, 2, 130, 130, 64), (1, 1, 300, 300, 33), (2, 1, 40, 290, 16), (1, 1, 1, 5, 64),
         (1, 1, 60, 620, 64)]


def make(case: tuple[int, ...], layout: str = "plain") -> list[torch.Tensor]:
    batch, heads, queries, keys, width = case
    torch.manual_seed(0)
    sizes = [(batch, heads, count, width) for count in (queries, keys, keys)]
    if layout == "plain":
        return [torch.randn(size) for size in sizes]
    return [torch.randn(b, s, h, d).transpose(1, 2) for b, h, s, d in sizes]


def reference(
    operands: list[torch.Tensor], mask: torch.Tensor | None, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = operands
    scores = q @ k.transpose(2, 3) * scale
    if mask is not None:
        scores = scores + mask
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -math.inf)
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "broadcast"])
@pytest.mark.parametrize("layout", ["plain", "heads inside"])
@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_gradients_equal_float64(case: tuple[int, ...], layout: str, kind: str) -> None:
    batch, heads, queries, keys, width = case
    operands = make(case, layout)
    shape = (batch, heads, queries, keys) if kind == "masked" else (queries, 1) if keys == 5 else (batch, 1, 1, keys)
    mask = torch.randn(shape) if kind in ("masked", "broadcast") else None
    causal, scale = kind == "causal", None if kind == "plain" else 0.2
    attrs = {"dropout_p": 0.0, "is_causal": causal, "scale": scale}
    doubles = [t.double().requires_grad_() for t in operands]
    out, lse = reference(doubles, None if mask is None else mask.double(), causal, scale or 1 / math.sqrt(width))
    names = dict(zip(("query", "key", "value"), operands, strict=True))
    shapes = [(tuple(out.shape), DType.FLOAT), (tuple(lse.shape), DType.FLOAT)]
    results = [run_op(FORWARD, {**names, "attn_mask": mask}, attrs, shapes, threads) for threads in (1, 2, 4)]
    torch.testing.assert_close(results[0][0].double(), out, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(results[0][1].double(), lse, atol=1e-5, rtol=1e-4)
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][0], results[2][0])
    dout = torch.randn(out.shape)
    out.backward(dout.double())
    given = {"grad_out": dout, **names, "out": results[0][0], "logsumexp": results[0][1], "attn_mask": mask}
    shapes = [(tuple(t.shape), DType.FLOAT) for t in operands]
    gradients = run_op(FORWARD.replace(".default", "_backward.default"), given, attrs, shapes, 2)
    for mine, exact in zip(gradients, doubles, strict=True):
        torch.testing.assert_close(mine.double(), exact.grad, atol=5e-5, rtol=1e-3)


def test_a_row_with_every_key_masked_gives_zeros() -> None:
    operands = make((1, 2, 4, 4, 8))
    mask = torch.zeros(4, 4)
    mask[2] = -math.inf
    names = dict(zip(("query", "key", "value"), operands, strict=True))
    attrs = {"dropout_p": 0.0, "is_causal": False, "scale": None}
    out, lse = run_op(
        FORWARD, {**names, "attn_mask": mask}, attrs, [((1, 2, 4, 8), DType.FLOAT), ((1, 2, 4), DType.FLOAT)]
    )
    expected = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*operands, 0.0, False, attn_mask=mask)
    torch.testing.assert_close(out, expected[0])
    torch.testing.assert_close(lse, expected[1])


def gradients_of(
    operands: list[torch.Tensor], dout: torch.Tensor, mask: torch.Tensor | None = None, *, causal: bool = False,
) -> list[torch.Tensor]:
    attrs = {"dropout_p": 0.0, "is_causal": causal, "scale": 1.0}
    names = dict(zip(("query", "key", "value"), operands, strict=True))
    shape = tuple(dout.shape)
    out, lse = run_op(
        FORWARD, {**names, "attn_mask": mask}, attrs, [(shape, DType.FLOAT), (shape[:3], DType.FLOAT)],
    )
    given = {"grad_out": dout, **names, "out": out, "logsumexp": lse, "attn_mask": mask}
    shapes = [(tuple(t.shape), DType.FLOAT) for t in operands]
    return run_op(FORWARD.replace(".default", "_backward.default"), given, attrs, shapes)


def test_gradients_vanish_exactly_where_one_key_has_all_the_weight() -> None:
    torch.manual_seed(0)
    q, k, v = (1000 * torch.randn(2, 2, 9, 3) for _ in range(3))
    dq, dk, dv = gradients_of([q, k, v], dout := torch.randn(2, 2, 9, 3), causal=True)
    doubles = [t.double().requires_grad_() for t in (q, k, v)]
    out, _ = reference(doubles, None, True, 1.0)
    out.backward(dout.double())
    for mine, exact in zip((dq, dk, dv), doubles, strict=True):
        torch.testing.assert_close(mine.double(), exact.grad, atol=1e-3, rtol=1e-4)
    assert not dq[:, :, 0].any()  # the first query sees one key


def test_a_query_that_sees_no_key_has_no_gradient_and_gives_none() -> None:
    q, k, v = make((1, 2, 4, 4, 8))
    mask = torch.zeros(4, 4)
    mask[2] = mask[:, 3] = -math.inf
    dq, dk, dv = gradients_of([q, k, v], torch.randn(1, 2, 4, 8), mask)
    assert not dq[:, :, 2].any()
    assert not dk[:, :, 3].any()
    assert not dv[:, :, 3].any()
    assert all(gradient.isfinite().all() for gradient in (dq, dk, dv))
