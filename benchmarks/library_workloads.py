"""Models of timm and transformers, and an LSTM, at the sizes that people train: random weights, made when measured."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.append(str(Path(__file__).resolve().parents[1]))  # a benchmark that is run by its path does not find tests

from tests.models.architectures.torchvision_schemas import import_torchvision

Loss = Callable[[Any, torch.Tensor], torch.Tensor]
NUM_WORDS = 8000


def missing(libraries: tuple[str, ...]) -> list[str]:
    """Return those of the libraries that are not installed."""
    return [library for library in libraries if importlib.util.find_spec(library) is None]


class LSTM(nn.Module):
    """Embedding, a two-layer LSTM of width 256, a linear layer: int64 `[N, L]` to `[N, L, 1000]`."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5000, 256)
        self.cells = nn.LSTM(256, 256, 2, batch_first=True)
        self.head = nn.Linear(256, 1000)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.words(tokens))[0])


def timm_model(name: str) -> Callable[[], nn.Module]:
    """Return a maker of a model of timm: `[N, 3, 224, 224]` to `[N, 1000]`."""

    def make() -> nn.Module:
        import_torchvision()
        import timm

        model: nn.Module = timm.create_model(name, pretrained=False)
        return model

    return make


def bert_base() -> nn.Module:
    """Return BERT base: 12 layers of width 768, 30,522 words."""
    import_torchvision()
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(attn_implementation="sdpa"))


def bert_small() -> nn.Module:
    """Return BERT with 4 layers of width 512 and 8,000 words."""
    import_torchvision()
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(
        hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=2048, vocab_size=NUM_WORDS,
    ))


def gpt2_small() -> nn.Module:
    """Return GPT-2 with 6 layers of width 384 and 8,000 words."""
    import_torchvision()
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_layer=6, n_embd=384, n_head=6, vocab_size=NUM_WORDS, n_positions=256))


def t5_small() -> nn.Module:
    """Return T5 small: the same tokens for its encoder and its decoder; int64 `[N, L]` to the states of the decoder."""
    import_torchvision()
    from transformers import T5Config, T5Model

    class SameTokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.t5 = T5Model(T5Config(num_layers=6, use_cache=False))

        def forward(self, tokens: torch.Tensor) -> Any:
            return self.t5(input_ids=tokens, decoder_input_ids=tokens)

    return SameTokens()


def whisper_tiny_encoder() -> nn.Module:
    """Return the encoder of Whisper tiny: `[N, 80, 3000]` to `[N, 1500, 384]`."""
    import_torchvision()
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    return WhisperEncoder(WhisperConfig())


def wav2vec2_base() -> nn.Module:
    """Return wav2vec2 base without masks of time: samples `[N, L]` to states `[N, L / 320, 768]`."""
    import_torchvision()
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    return Wav2Vec2Model(Wav2Vec2Config(apply_spec_augment=False, layerdrop=0.0))


def square_of_result(output: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the mean square of a result that is one tensor."""
    square: torch.Tensor = output.float().pow(2).mean()
    return square


def square_of_states(output: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the last layer."""
    return output.last_hidden_state.float().pow(2).mean()


def square_of_states_and_pooled(output: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the mean square of the last layer and the mean of the pooled first token."""
    return square_of_states(output, inputs) + output.pooler_output.float().mean()


def same_words(output: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of the words with themselves."""
    return F.cross_entropy(output.logits.float().view(-1, NUM_WORDS), inputs.view(-1))


def word_classes(output: Any, inputs: torch.Tensor) -> torch.Tensor:
    """Return the cross entropy of each word of the LSTM with a class that follows from the word's number."""
    num_classes = output.shape[-1]
    return F.cross_entropy(output.reshape(-1, num_classes), inputs.reshape(-1) % num_classes)
