"""flex_attention computes what its formula says, with functions of scores and masks, forward and backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention

import torchipu
from torchipu.capture.block_sparsity import BLOCK, MOST_SECTIONS, MOST_SPANS, _few, _joined

SAMPLES, HEADS, LENGTH, WIDTH = 2, 4, 40, 8
DOCUMENT = torch.arange(LENGTH) // 15
SLOPES = torch.exp2(-8 * torch.arange(1, HEADS + 1) / HEADS)

MASKS: dict[str, Callable[..., Tensor]] = {
    "causal": lambda b, h, q, k: q >= k,
    "sliding window": lambda b, h, q, k: (q >= k) & (q - k <= 6),
    "documents": lambda b, h, q, k: DOCUMENT[q] == DOCUMENT[k],
    "prefix of each sample": lambda b, h, q, k: (k < 5 * (b + 1)) | (q >= k),
    "rows of nothing": lambda b, h, q, k: (q >= k) & (q > 9),
}
SCORES: dict[str, Callable[..., Tensor]] = {
    "alibi": lambda score, b, h, q, k: score - SLOPES[h] * (q - k).abs(),
    "soft cap": lambda score, b, h, q, k: 5 * torch.tanh(score / 5),
    "halved heads": lambda score, b, h, q, k: torch.where(h % 2 == 0, score, score / 2),
}


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def given(groups: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(groups)
    return [
        torch.randn(SAMPLES, heads, LENGTH, WIDTH, generator=generator).to(dtype).requires_grad_()
        for heads in (HEADS, HEADS // groups, HEADS // groups)
    ]


def by_formula(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Any = None, mask_mod: Any = None,
) -> tuple[Tensor, Tensor]:
    """Return the result and the logarithms of sums; rows of nothing are 0, and -inf."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    indices = torch.meshgrid(*(torch.arange(size) for size in scores.shape), indexing="ij")
    scores = scores if score_mod is None else score_mod(scores, *indices)
    kept = torch.ones(scores.shape, dtype=torch.bool) if mask_mod is None else mask_mod(*indices)
    is_empty = ~kept.any(-1, keepdim=True)
    scores = scores.masked_fill(~kept & ~is_empty, -torch.inf)
    sums = scores.logsumexp(-1).masked_fill(is_empty.squeeze(-1), -torch.inf)
    return scores.softmax(-1).masked_fill(is_empty, 0.0) @ value, sums


def assert_as_by_formula(
    compiled: Callable[..., Tensor], tensors: list[Tensor], *, score_mod: Any = None, mask_mod: Any = None,
    tolerance: float = 2e-5,
) -> None:
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    expected, _ = by_formula(*exact, score_mod, mask_mod)
    result = compiled(*tensors)
    weights = torch.randn(expected.shape, dtype=torch.float64)
    (result.double() * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(result.double(), expected, rtol=tolerance, atol=tolerance)
    for mine, theirs in zip(tensors, exact, strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=tolerance, atol=tolerance)


def masked(name: str) -> Any:
    return create_block_mask(MASKS[name], SAMPLES, HEADS, LENGTH, LENGTH, device="cpu")


@pytest.mark.parametrize(("name", "groups"), zip(MASKS, (2, 1, 4, 1, 1), strict=True))
def test_a_mask_and_its_gradients_are_those_of_the_formula(name: str, groups: int) -> None:
    mask = masked(name)

    @torch.compile(backend="ipu", fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, block_mask=mask, enable_gqa=groups > 1)

    assert_as_by_formula(compiled, given(groups), mask_mod=MASKS[name])


@pytest.mark.parametrize("name", SCORES)
def test_changed_scores_and_their_gradients_are_those_of_the_formula(name: str) -> None:
    mask = masked("causal")

    @torch.compile(backend="ipu", fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, SCORES[name], mask)

    assert_as_by_formula(compiled, given(1), score_mod=SCORES[name], mask_mod=MASKS["causal"])


def test_without_gradients_it_is_what_torch_computes_in_eager() -> None:
    mask, tensors = masked("documents"), [tensor.detach() for tensor in given(2)]
    compiled = torch.compile(flex_attention, backend="ipu", fullgraph=True)
    result = compiled(*tensors, SCORES["soft cap"], mask, enable_gqa=True, scale=0.3)
    exact = (tensor.double() for tensor in tensors)
    expected = flex_attention(*exact, SCORES["soft cap"], mask, enable_gqa=True, scale=0.3)
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)


def test_a_mask_that_is_made_within_the_model() -> None:
    @torch.compile(backend="ipu", fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        mask = create_block_mask(MASKS["sliding window"], None, None, LENGTH, LENGTH, device="cpu")
        return flex_attention(query, key, value, block_mask=mask)

    assert_as_by_formula(compiled, given(1), mask_mod=MASKS["sliding window"])


def test_a_mask_that_is_made_within_the_model_of_a_step() -> None:
    class Masked(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            mask = create_block_mask(MASKS["causal"], None, None, LENGTH, LENGTH, device="cpu")
            return flex_attention(query, key, value, block_mask=mask)

    tensors = [tensor.detach() for tensor in given(1)]
    exact = [tensor.double() for tensor in tensors]
    expected, _ = by_formula(*exact, mask_mod=MASKS["causal"])
    torch.testing.assert_close(torchipu.InferenceStep(Masked())(*tensors).double(), expected, rtol=1e-5, atol=1e-5)


def test_the_logarithms_of_sums_have_gradients_and_rows_of_nothing_leave_them_finite() -> None:
    mask, tensors = masked("rows of nothing"), given(1)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]

    @torch.compile(backend="ipu", fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        _, told = flex_attention(query, key, value, block_mask=mask, return_aux=AuxRequest(lse=True))
        return told.lse

    result, (_, expected) = compiled(*tensors), by_formula(*exact, mask_mod=MASKS["rows of nothing"])
    torch.testing.assert_close(result.double(), expected, rtol=1e-5, atol=1e-5)
    result.masked_fill(result == -torch.inf, 0.0).sum().backward()
    expected.masked_fill(expected == -torch.inf, 0.0).sum().backward()
    for mine, theirs in zip(tensors[:2], exact[:2], strict=True):
        assert mine.grad is not None
        torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=1e-5, atol=1e-5)


def test_halves_have_their_scores_in_floats() -> None:
    mask = masked("causal")

    @torch.compile(backend="ipu", fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, SCORES["alibi"], mask)

    assert_as_by_formula(
        compiled, given(1, torch.float16), score_mod=SCORES["alibi"], mask_mod=MASKS["causal"], tolerance=1e-2,
    )


class Attending(nn.Module):
    """Attention with a learned bias for each distance, of heads that lie within each position."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, LENGTH) / 4)
        self.mask = create_block_mask(MASKS["causal"], None, None, LENGTH, LENGTH, device="cpu")

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        heads = self.project(x).view(len(x), LENGTH, 3, HEADS, WIDTH).unbind(2)
        query, key, value = (part.transpose(1, 2) for part in heads)

        def biased(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
            return score + self.bias[h, (q - k).abs()]

        if x.dtype == torch.float64:
            mixed, _ = by_formula(query, key, value, biased, MASKS["causal"])
        else:
            mixed = flex_attention(query, key, value, biased, self.mask)
            assert mixed.transpose(1, 2).is_contiguous()  # as torch promises: the next line may take a view
        return (mixed.transpose(1, 2).reshape(len(x), LENGTH, -1) - target).square().mean()


def test_a_training_step_learns_what_the_scores_read_from_outside() -> None:
    torch.manual_seed(0)
    model = Attending()
    exact = copy.deepcopy(model).double()
    x, target = torch.randn(SAMPLES, LENGTH, HEADS * WIDTH), torch.randn(SAMPLES, LENGTH, HEADS * WIDTH)
    step = torchipu.TrainStep(model, torch.optim.SGD(model.parameters(), 2.0))
    optimiser = torch.optim.SGD(exact.parameters(), 2.0)
    for _ in range(3):
        loss = step(x, target)
        optimiser.zero_grad()
        expected = exact(x.double(), target.double())
        expected.backward()
        optimiser.step()
        torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=1e-6)
    for mine, theirs in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-5)


LONG: dict[str, Callable[..., Tensor]] = {
    "causal": lambda b, h, q, k: q >= k,
    "sliding window": lambda b, h, q, k: (q >= k) & (q - k <= 70),
    "strided blocks": lambda b, h, q, k: (q // 64) % 3 == (k // 64) % 3,
    "heads of their own": lambda b, h, q, k: (q >= k) & ((h == 0) | (q - k < 64)),
    "rows of nothing": lambda b, h, q, k: (q > 200) & (k < 70),
    "no block is empty": lambda b, h, q, k: (q + k) % 2 == 0,
}
# Scores that are computed of the 330 x 330 of each head, in blocks of 64; the last one has 10 rows and columns.
COMPUTED = {
    "causal": 64 * (64 + 128 + 192 + 256 + 320) + 10 * 330,
    "sliding window": 64 * (64 + 128 + 3 * 192) + 10 * (330 - 192),
    "strided blocks": 128 * 128 + 128 * 128 + 74 * 74,
    "heads of their own": 64 * (64 + 128 + 192 + 256 + 320) + 10 * 330,
    "rows of nothing": 192 * 64 + 138 * 128,
    "no block is empty": 330 * 330,
}


def of_length(length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(1, 2, length, WIDTH, generator=generator).to(dtype).requires_grad_() for _ in range(3)]


@pytest.mark.suffices(name=["sliding window", "heads of their own", "rows of nothing"])
@pytest.mark.parametrize("name", LONG)
def test_blocks_that_a_mask_leaves_out_change_no_value_and_no_gradient(name: str) -> None:
    mask = create_block_mask(LONG[name], 1, 2, 330, 330, device="cpu")

    @torch.compile(backend="ipu", fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, SCORES["soft cap"], mask)

    assert_as_by_formula(compiled, of_length(330), score_mod=SCORES["soft cap"], mask_mod=LONG[name])


class Masked(nn.Module):
    def __init__(self, mask: Callable[..., Tensor]) -> None:
        super().__init__()
        self.mask = create_block_mask(mask, 1, 2, 330, 330, device="cpu")

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, block_mask=self.mask)


def scores_of(model: nn.Module) -> int:
    """Return how many scores a program computes in one head."""
    graph = torchipu.InferenceStep(model).graph_of(tuple(tensor.detach() for tensor in of_length(330)), {})
    shapes = [op.outputs[0].shape for op in graph.ops if op.target == "aten.bmm.default"]
    return sum(shape[-2] * shape[-1] for shape in shapes if shape[-1] != WIDTH)


@pytest.mark.suffices(name=["causal", "strided blocks", "no block is empty"])
@pytest.mark.parametrize("name", LONG)
def test_scores_of_blocks_that_a_mask_leaves_out_are_not_computed(name: str) -> None:
    assert scores_of(Masked(LONG[name])) == COMPUTED[name]


def test_a_mask_that_reads_a_tensor_from_outside_may_be_another_at_the_next_call() -> None:
    last = torch.tensor(0)

    def up_to(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k <= last

    @torch.compile(backend="ipu", fullgraph=True)
    def compiled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return flex_attention(query, key, value, block_mask=mask)

    for chosen in (0, 300):
        last.fill_(chosen)
        mask = create_block_mask(up_to, 1, 2, 330, 330, device="cpu")
        assert_as_by_formula(compiled, of_length(330), mask_mod=up_to)


def test_many_patterns_of_rows_are_joined_to_few() -> None:
    joined = _joined([[row == column for column in range(40)] for row in range(40)], 40 * BLOCK, 40 * BLOCK)
    assert len(joined) <= MOST_SECTIONS
    assert [section.rows[0][0] for section in joined] == [place * BLOCK for place in range(0, 40, 8)]
    assert all(section.rows == section.keys for section in joined)


def test_many_runs_of_keys_are_joined_across_their_narrowest_gaps() -> None:
    spans = [(place * 10, place * 10 + (9 if place == 3 else 5)) for place in range(MOST_SPANS + 1)]
    joined = _few(spans)
    assert len(joined) == MOST_SPANS
    assert (30, 45) in joined
