"""Attention as users call it: masks, causality, grouped queries, dropout, odd sizes, against eager float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tests.ops.judge import check, run

attention = torch.nn.functional.scaled_dot_product_attention
FLASH = "aten._scaled_dot_product_flash_attention_for_cpu.default"
# batch, query heads, key heads, queries, keys, width
PLAIN = [(2, 4, 4, 9, 11, 8), (1, 2, 2, 130, 130, 33), (2, 1, 1, 1, 40, 7), (1, 3, 3, 40, 1, 16)]
GROUPED = [(2, 4, 2, 9, 11, 8), (3, 6, 1, 17, 17, 5), (1, 8, 4, 130, 140, 16), (2, 4, 4, 5, 5, 8)]


def operands(case: tuple[int, ...], *, inside: bool = False) -> list[torch.Tensor]:
    """Return query, key and value; with ``inside``, heads lie within positions, as a projection leaves them."""
    batch, heads, key_heads, queries, keys, width = case
    torch.manual_seed(queries)
    made = []
    for count, positions in ((heads, queries), (key_heads, keys), (key_heads, keys)):
        x = (
            torch.randn(batch, positions, count, width).transpose(1, 2)
            if inside
            else torch.randn(batch, count, positions, width)
        )
        made.append(x.requires_grad_())
    return made


def uses_flash(ops: list) -> bool:
    return any(op.target == FLASH for op in ops)


@pytest.mark.parametrize("inside", [False, True], ids=["heads outside", "heads inside"])
@pytest.mark.parametrize("case", [*PLAIN, *GROUPED], ids=str)
def test_values_and_gradients(case: tuple[int, ...], inside: bool) -> None:
    grouped = case[1] != case[2]
    for options in ({}, {"is_causal": True, "scale": 0.3}):
        ops = check(
            lambda q, k, v, options=options: attention(q, k, v, enable_gqa=grouped, **options),
            *operands(case, inside=inside),
            tolerance=1e-4,
        )
        assert uses_flash(ops)


MASKS: dict[str, Callable[[int, int, int, int], tuple[int, ...]]] = {
    "of scores": lambda b, h, q, k: (q, k),
    "of keys": lambda b, h, q, k: (b, 1, 1, k),
    "of queries": lambda b, h, q, k: (b, 1, q, 1),
    "of heads": lambda b, h, q, k: (1, h, q, k),
    "of all": lambda b, h, q, k: (b, h, q, k),
}


@pytest.mark.parametrize("kind", ["bool", "float"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("case", [(2, 4, 4, 9, 11, 8), (2, 6, 2, 9, 40, 8)], ids=str)
def test_masks_of_every_shape(case: tuple[int, ...], mask: str, kind: str) -> None:
    batch, heads, key_heads, queries, keys, _ = case
    shape = MASKS[mask](batch, heads, queries, keys)
    values = torch.randn(shape) if kind == "float" else torch.rand(shape) > 0.3
    check(
        lambda q, k, v, m: attention(q, k, v, attn_mask=m, enable_gqa=heads != key_heads),
        *operands(case),
        values,
        tolerance=1e-4,
    )


@pytest.mark.parametrize("key_heads", [4, 2])
def test_a_query_that_may_see_no_key_gives_zeros(key_heads: int) -> None:
    mask = torch.ones(9, 11).bool()
    mask[4] = False
    check(
        lambda q, k, v, m: attention(q, k, v, attn_mask=m, enable_gqa=True),
        *operands((2, 4, key_heads, 9, 11, 8)),
        mask,
        tolerance=1e-4,
    )


def test_a_mask_that_needs_a_gradient_takes_the_composition() -> None:
    mask = torch.randn(9, 11, requires_grad=True)
    check(lambda q, k, v, m: attention(q, k, v, attn_mask=m), *operands(PLAIN[0]), mask, tolerance=1e-4)


@pytest.mark.parametrize(
    "shapes",
    [
        ((9, 8), (11, 8), (11, 8)),
        ((4, 9, 8), (4, 11, 8), (4, 11, 8)),
        ((2, 4, 9, 8), (2, 4, 11, 8), (2, 4, 11, 5)),
        ((2, 2, 3, 9, 8), (2, 2, 3, 9, 8), (2, 2, 3, 9, 8)),
        ((2, 4, 9, 8), (1, 4, 11, 8), (1, 4, 11, 8)),
        ((2, 4, 0, 8), (2, 4, 5, 8), (2, 4, 5, 8)),
        ((2, 4, 3, 8), (2, 4, 0, 8), (2, 4, 0, 8)),
        ((0, 4, 3, 8), (0, 4, 3, 8), (0, 4, 3, 8)),
    ],
)
def test_other_ranks_value_widths_and_empty_operands(shapes: tuple[tuple[int, ...], ...]) -> None:
    check(attention, *(torch.randn(shape, requires_grad=True) for shape in shapes), tolerance=1e-4)


def test_halves_are_computed_in_float() -> None:
    q, k, v = (x.detach().half().requires_grad_() for x in operands((2, 4, 2, 33, 35, 16)))
    check(lambda q, k, v: attention(q, k, v, enable_gqa=True), q, k, v, tolerance=6e-3)


def test_the_composition_of_torch_agrees() -> None:
    check(
        lambda q, k, v: torch.ops.aten._scaled_dot_product_attention_math(q, k, v)[0],
        *operands(PLAIN[0]),
        tolerance=1e-4,
    )
    check(
        lambda q, k, v: torch.ops.aten._scaled_dot_product_attention_math(q, k, v, enable_gqa=True)[0],
        *operands(GROUPED[0]),
        tolerance=1e-4,
    )


def test_dropout_drops_its_share_of_the_weights_and_scales_the_rest() -> None:
    # Values are unit vectors of the keys, so that the result is the weights themselves.
    queries, keys = 200, 64
    q, k, v = torch.zeros(1, 1, queries, 8), torch.zeros(1, 1, keys, 8), torch.eye(keys)[None, None]
    (weights,) = run(lambda q, k, v: attention(q, k, v, dropout_p=0.25), q, k, v)
    kept = weights != 0
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / (0.75 * keys)))
    share = kept.double().mean().item()
    assert abs(share - 0.75) < 5 * math.sqrt(0.75 * 0.25 / (queries * keys))


def test_dropout_of_nearly_nothing_is_plain_attention_with_its_gradient() -> None:
    check(lambda q, k, v: attention(q, k, v, dropout_p=1e-9), *operands(PLAIN[0]), tolerance=1e-4)
