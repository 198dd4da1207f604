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


# Without a cache, and with one of any length; before that T5 has one of one token, a size that torch takes for fixed.
@pytest.mark.parametrize(("make", "captures"), [(t5, 3), (gpt2, 2)])
def test_tokens_are_those_of_eager_and_plans_are_kept(make: Callable[[], Any], captures: int) -> None:
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
    programs, graphs = COUNTS.programs, COUNTS.graphs
    assert torch.equal(call(), expected)
    assert COUNTS.programs == programs + TOKENS
    assert COUNTS.graphs == graphs + captures
    assert torch.equal(call(), expected)
    assert (COUNTS.programs, COUNTS.graphs) == (programs + TOKENS, graphs + captures)


def test_a_cache_of_one_size_is_captured_with_that_size() -> None:
    model, ids = gpt2().eval(), torch.randint(2, 64, (1, 4))
    model.forward = torch.compile(model.forward, backend="ipu")
    sizes = COUNTS.programs - COUNTS.passes  # of graphs of any size, each with plans for several
    model.generate(ids, max_new_tokens=3, do_sample=False, cache_implementation="static", disable_compile=True)
    assert COUNTS.programs - COUNTS.passes == sizes
