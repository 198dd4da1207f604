"""Layers that torch computes in one operator in inference are taken apart, and give what eager PyTorch gives."""

import copy

import pytest
import torch
from torch import nn

from torchipu.host.planner import Planner

L = 9
CAUSAL = torch.triu(torch.ones(L, L, dtype=torch.bool), 1)
PADDING = torch.arange(L)[None] >= torch.tensor([9, 5, 1])[:, None]
MASKS = {
    "none": {}, "causal": {"src_mask": CAUSAL}, "padding": {"src_key_padding_mask": PADDING},
    "floats": {"src_mask": nn.Transformer.generate_square_subsequent_mask(L)},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
    "a sample of padding": {"src_key_padding_mask": torch.arange(L)[None] >= torch.tensor([9, 0, 3])[:, None]},
}


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()


def generic_steps(monkeypatch):
    found = []
    collect = Planner._collect_outputs

    def collected(planner):
        outputs = collect(planner)
        found.extend(step.op.target for step in planner.steps if step.is_generic)
        return outputs

    monkeypatch.setattr(Planner, "_collect_outputs", collected)
    return found


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_encoder_layers_are_those_of_eager_pytorch(monkeypatch, norm_first, activation, mask):
    torch.manual_seed(0)
    generic = generic_steps(monkeypatch)
    layer = nn.TransformerEncoderLayer(24, 3, 40, activation=activation, norm_first=norm_first, batch_first=True).eval()
    x, masks = torch.randn(3, L, 24), MASKS[mask]
    wide = {name: value.double() if value.is_floating_point() else value for name, value in masks.items()}
    with torch.no_grad():
        found = torch.compile(layer, backend="ipu", fullgraph=True)(x, **masks)
        wanted = copy.deepcopy(layer).double()(x.double(), **wide)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=5e-6, equal_nan=True)
    assert not generic


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("mask", ["none", "padding"])
def test_self_attention_is_that_of_eager_pytorch(monkeypatch, mask, average, need_weights):
    torch.manual_seed(0)
    generic = generic_steps(monkeypatch)
    attention, x = nn.MultiheadAttention(24, 3, batch_first=True).eval(), torch.randn(3, L, 24)

    def call(module, x):
        padding = PADDING if mask == "padding" else None
        return module(x, x, x, key_padding_mask=padding, need_weights=need_weights, average_attn_weights=average)

    with torch.no_grad():
        found = torch.compile(call, backend="ipu", fullgraph=True)(attention, x)
        wanted = call(copy.deepcopy(attention).double(), x.double())
    for mine, theirs in zip(found, wanted, strict=True):
        if theirs is not None:
            torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=5e-6)
    assert not generic


def test_other_operands_are_projected_by_themselves():
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, n, 8) for n in (4, 7, 7))
    weights = [torch.randn(24, 8), torch.randn(24), torch.randn(8, 8), torch.randn(8)]

    def call(query, key, value, *weights):
        return torch._native_multi_head_attention(query, key, value, 8, 2, *weights, None, False)[0]

    with torch.no_grad():
        found = torch.compile(call, backend="ipu")(query, key, value, *weights)
        exact, _ = torch.nn.functional.multi_head_attention_forward(
            *(x.double().transpose(0, 1) for x in (query, key, value)), 8, 2, *(w.double() for w in weights[:2]),
            None, None, False, 0.0, *(w.double() for w in weights[2:]), need_weights=False,
        )
    torch.testing.assert_close(found.double(), exact.transpose(0, 1), rtol=1e-4, atol=1e-4)
