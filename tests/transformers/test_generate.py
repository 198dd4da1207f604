"""`generate` of models of transformers whose forward torch.compile has compiled: eager's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.models.architectures.torchvision_schemas import import_torchvision
from torchipu.backend import COUNTS

import_torchvision()

from transformers import GPT2Config, GPT2LMHeadModel, T5Config, T5ForConditionalGeneration  # noqa: E402

TOKENS = 8


def t5() -> Any:
    return T5ForConditionalGeneration(T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_decoder_layers=1, num_heads=4,
        decoder_start_token_id=0, eos_token_id=1, pad_token_id=0,
    ))


def gpt2() -> Any:
    return GPT2LMHeadModel(GPT2Config(
        n_layer=1, n_head=2, n_embd=32, vocab_size=64, n_positions=64, bos_token_id=0, eos_token_id=1, pad_token_id=0,
    ))


@pytest.mark.parametrize("make", [t5, gpt2])
def test_tokens_are_those_of_eager_and_plans_are_kept(make: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    model, ids = make().eval(), torch.randint(2, 64, (2, 7))
    for parameter in model.parameters():  # as they are made T5 says one token again and again
        torch.nn.init.normal_(parameter, std=0.5)

    def call() -> torch.Tensor:
        found: torch.Tensor = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, min_new_tokens=TOKENS, do_sample=False,
        )
        return found

    expected = call()
    assert len(expected[:, -TOKENS:].unique()) > 2
    model.forward = torch.compile(model.forward, backend="ipu")
    before = COUNTS.programs
    assert torch.equal(call(), expected)
    assert COUNTS.programs == before + TOKENS
    assert torch.equal(call(), expected)
    again = COUNTS.programs
    # The first length of a cache was captured by itself: from the second call on it is one of any length.
    assert again <= before + TOKENS + 1
    assert torch.equal(call(), expected)
    assert COUNTS.programs == again
