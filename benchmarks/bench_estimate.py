"""Time and memory that estimates of large models take: BERT-Large, GPT-J, and ten billion parameters.

    python benchmarks/bench_estimate.py bert-large

Weights are on the meta device. Times include neither the imports nor the making of the model, which are told apart.
"""

from __future__ import annotations

import logging
import resource
import sys
import time
import warnings

import torch

import torchipu
from torchipu import BeginBlock, Options, TensorLocation

KIB_OF_GIB = 2**20


class Loss(torch.nn.Module):
    """Hands back the loss alone, as training on an IPU does.

    Args:
        model: Of transformers.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> torch.Tensor:
        """Return the loss."""
        return self.model(**inputs, return_dict=False)[0]


def bert_large() -> tuple[torch.nn.Module, dict[str, torch.Tensor], Options]:
    """Pre-training of BERT-Large at sequence 384 over four IPUs, states of the optimiser off chip.

    As the public examples have it: half partials, and each layer recomputed by itself. Recomputed stage by stage, the
    activations of seven layers would be on a tile at once, which then lacks a quarter of its memory.
    """
    from transformers import BertConfig, BertForPreTraining

    config = BertConfig(
        hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096,
        max_position_embeddings=512,
    )
    with torch.device("meta"):
        model = BertForPreTraining(config).half().train()
    for number, layer in enumerate(model.bert.encoder.layer):
        BeginBlock(layer, f"layer{number}", ipu_id=0 if number < 3 else 1 + (number - 3) // 7)
    BeginBlock(model.bert.embeddings, "embeddings", ipu_id=0)
    BeginBlock(model.cls, "head", ipu_id=0)
    words = torch.zeros(2, 384, dtype=torch.int64)
    example = {
        "input_ids": words, "attention_mask": torch.ones_like(words), "labels": words,
        "next_sentence_label": torch.zeros(2, dtype=torch.int64),
    }
    return Loss(model), example, Options(
        target="bow-pod16", replicas=4, gradient_accumulation=256, stochastic_rounding=True, partials_type="half",
        recompute=("embeddings", *(f"layer{number}" for number in range(config.num_hidden_layers))),
        available_memory={0: 0.15, 1: 0.25, 2: 0.25, 3: 0.25},
        optimiser_state_location=TensorLocation(on_chip=False, replicated_sharding=True),
    )


def gpt(layers: int, width: int, heads: int, ipus: int, target: str) -> tuple[
    torch.nn.Module, dict[str, torch.Tensor], Options,
]:
    """Training of a GPT-J, weights and states off chip."""
    from transformers import GPTJConfig, GPTJForCausalLM

    config = GPTJConfig(n_layer=layers, n_embd=width, n_head=heads, n_positions=2048, rotary_dim=64)
    with torch.device("meta"):
        model = GPTJForCausalLM(config).half().train()
    for number, layer in enumerate(model.transformer.h):
        BeginBlock(layer, f"layer{number}", ipu_id=1 + number * (ipus - 2) // layers)
    BeginBlock(model.transformer.wte, "words", ipu_id=0)
    BeginBlock(model.lm_head, "head", ipu_id=ipus - 1)
    words = torch.zeros(1, 1024, dtype=torch.int64)
    away = TensorLocation(on_chip=False)
    model.config.use_cache = False
    return Loss(model), {"input_ids": words, "labels": words}, Options(
        target=target, gradient_accumulation=128, recompute="stage", weight_location=away,
        optimiser_state_location=away, accumulator_location=away,
    )


MODELS = {
    "bert-large": bert_large,
    "gpt-j": lambda: gpt(28, 4096, 16, 16, "bow-pod16"),
    "ten-billion": lambda: gpt(48, 4096, 32, 32, "bow-pod64"),
}


def main(name: str) -> None:
    """Estimate a model, and print what it took."""
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    begin = time.perf_counter()
    model, example, options = MODELS[name]()
    made = time.perf_counter()
    optimizer = torch.optim.AdamW(model.parameters())
    print(torchipu.estimate(model, example, options, optimizer=optimizer))
    done = time.perf_counter()
    count = sum(parameter.numel() for parameter in model.parameters())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_OF_GIB
    print(
        f"\n{name}, {count:,} parameters: imported and made in {made - begin:.1f} s, estimated in {done - made:.1f} s, "
        f"{time.process_time():.1f} s of CPU in all, {peak:.2f} GiB at most"
    )


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["bert-large"]))
