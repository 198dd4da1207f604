"""Small models and data, made here: rows of words whose label is whether words above the middle are the majority."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

NUM_WORDS = 64
FIRST_WORD = 4
LENGTH = 12
Row = dict[str, Any]


def rows(num_rows: int, seed: int, *, shortest: int = LENGTH, step: int = 1) -> list[Row]:
    """Return rows of `shortest`, ... `LENGTH` words, in steps."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(num_rows):
        length = LENGTH - step * int(torch.randint((LENGTH - shortest) // step + 1, (), generator=generator))
        words = torch.randint(FIRST_WORD, NUM_WORDS, (length,), generator=generator)
        label = int((words >= (NUM_WORDS + FIRST_WORD) // 2).float().mean() > 0.5)
        made.append({"input_ids": words.tolist(), "attention_mask": [1] * length, "labels": label})
    return made


def texts(num_rows: int, seed: int) -> list[Row]:
    """Return rows for a language model: each word follows from the one before."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(num_rows):
        first = int(torch.randint(NUM_WORDS, (), generator=generator))
        words = [(first + 3 * place) % NUM_WORDS for place in range(LENGTH)]
        # The first word is nobody's successor; where models do not say how they shift, the Trainer counts it.
        made.append({"input_ids": words, "attention_mask": [1] * LENGTH, "labels": [-100, *words[1:]]})
    return made


def padded(batch: Sequence[Row], length: int | None = None) -> dict[str, torch.Tensor]:
    """Collate rows, padded to a length, or to that of the longest."""
    length = length or max(len(row["input_ids"]) for row in batch)

    def column(name: str) -> torch.Tensor:
        if not isinstance(batch[0][name], list):
            return torch.tensor([row[name] for row in batch])
        return torch.tensor([row[name] + [0] * (length - len(row[name])) for row in batch])

    return {name: column(name) for name in batch[0]}


def bert(num_layers: int = 2, kind: str = "BertForSequenceClassification", **changes: Any) -> Any:
    """Return a BERT without dropout, always with the same weights."""
    import transformers

    torch.manual_seed(1)
    config = transformers.BertConfig(**{
        "vocab_size": NUM_WORDS, "hidden_size": 16, "num_hidden_layers": num_layers, "num_attention_heads": 2,
        "intermediate_size": 32, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, **changes,
    })
    return getattr(transformers, kind)(config)


def gpt2(num_layers: int = 2, **changes: Any) -> Any:
    """Return a GPT-2 without dropout, always with the same weights."""
    import transformers

    torch.manual_seed(1)
    config = transformers.GPT2Config(**{
        "vocab_size": NUM_WORDS, "n_embd": 16, "n_layer": num_layers, "n_head": 2, "n_positions": 16,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0, **changes,
    })
    return transformers.GPT2LMHeadModel(config)


def translations(num_rows: int, seed: int, num_words: int = 8) -> list[Row]:
    """Return rows whose labels are the words that follow those of the input in the dictionary, then an end."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(num_rows):
        first = int(torch.randint(FIRST_WORD, NUM_WORDS - num_words - 1, (), generator=generator))
        words = list(range(first, first + num_words))
        labels = [word + 1 for word in words[:-1]] + [2]
        made.append({"input_ids": words, "attention_mask": [1] * num_words, "labels": labels})
    return made


def encoder_decoder(family: str, num_layers: int = 2) -> Any:
    """Return a T5 or a BART without dropout, always with the same weights."""
    import transformers

    torch.manual_seed(1)
    common: dict[str, Any] = {"vocab_size": NUM_WORDS, "d_model": 16, "pad_token_id": 1, "eos_token_id": 2}
    if family == "t5":
        return transformers.T5ForConditionalGeneration(transformers.T5Config(
            num_layers=num_layers, num_decoder_layers=num_layers, num_heads=2, d_kv=8, d_ff=32, dropout_rate=0.0,
            decoder_start_token_id=0, **common,
        ))
    return transformers.BartForConditionalGeneration(transformers.BartConfig(
        encoder_layers=num_layers, decoder_layers=num_layers, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=24, dropout=0.0, attention_dropout=0.0,
        bos_token_id=0, decoder_start_token_id=2, forced_eos_token_id=2, **common,
    ))
