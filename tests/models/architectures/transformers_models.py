"""Architectures of transformers: two layers of width 32, a vocabulary of 96, sequences of 16 of which one is padded."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.models.architectures.architecture import Architecture, Inputs
from tests.models.architectures.torchvision_schemas import import_torchvision

BATCH, LENGTH, VOCABULARY, NUM_CLASSES = 2, 16, 96, 5
WIDTH, HEADS, LAYERS = 32, 4, 2

# The names that configurations have for the same sizes; each takes those that it knows.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "d_model": WIDTH, "n_embd": WIDTH, "dim": WIDTH,
    "num_hidden_layers": LAYERS, "n_layer": LAYERS, "n_layers": LAYERS, "num_layers": LAYERS, "encoder_layers": LAYERS,
    "decoder_layers": LAYERS, "num_attention_heads": HEADS, "n_head": HEADS, "n_heads": HEADS, "num_heads": HEADS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "intermediate_size": 2 * WIDTH,
    "d_ff": 2 * WIDTH, "ffn_dim": 2 * WIDTH, "hidden_dim": 2 * WIDTH, "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH, "d_kv": WIDTH // HEADS, "embedding_size": WIDTH, "max_position_embeddings": 64,
    "n_positions": 64, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
    "cls_token_id": 2, "sep_token_id": 3, "num_labels": NUM_CLASSES,
    "problem_type": "single_label_classification", "use_cache": False,
}


@dataclass(frozen=True)
class Recipe:
    """How one architecture is made.

    Attributes:
        task: Name of the ``AutoModelFor...`` class without that prefix.
        inputs: Makes the inputs, labels among them.
        changes: What its configuration needs besides the common sizes.
    """

    task: str
    inputs: Callable[[], dict[str, torch.Tensor]]
    changes: dict[str, Any] = field(default_factory=dict)


def tokens() -> dict[str, torch.Tensor]:
    """Return random tokens, the last four of the first sequence being padding."""
    mask = torch.ones(BATCH, LENGTH, dtype=torch.int64)
    mask[0, -4:] = 0
    random = torch.randint(4, VOCABULARY, (BATCH, LENGTH))
    return {"input_ids": torch.where(mask.bool(), random, 1), "attention_mask": mask}


def to_classes() -> dict[str, torch.Tensor]:
    """Return tokens and a class for each sequence."""
    return tokens() | {"labels": torch.randint(NUM_CLASSES, (BATCH,))}


def to_words() -> dict[str, torch.Tensor]:
    """Return tokens and a word for each of them; none for padding."""
    given = tokens()
    return given | {"labels": torch.where(given["attention_mask"].bool(), given["input_ids"], -100)}


def sound_to_classes() -> dict[str, torch.Tensor]:
    """Return sound waves and a class for each."""
    return {"input_values": torch.randn(BATCH, 1600), "labels": torch.randint(NUM_CLASSES, (BATCH,))}


def spectrum_to_words() -> dict[str, torch.Tensor]:
    """Return spectra and words."""
    return {"input_features": torch.randn(BATCH, 8, 64), "labels": torch.randint(4, VOCABULARY, (BATCH, LENGTH))}


def images_to_classes() -> dict[str, torch.Tensor]:
    """Return images and a class for each."""
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), "labels": torch.randint(NUM_CLASSES, (BATCH,))}


def captions() -> dict[str, torch.Tensor]:
    """Return images and their captions."""
    return {"pixel_values": torch.randn(BATCH, 3, 32, 32), **tokens()}


RECIPES: dict[str, Recipe] = {
    "albert": Recipe("SequenceClassification", to_classes, {"classifier_dropout_prob": 0.0}),
    "bart": Recipe("Seq2SeqLM", to_words),
    "bert": Recipe("MaskedLM", to_words),
    "bloom": Recipe("CausalLM", to_words),
    "clip": Recipe("", captions, {
        "text_config": {
            "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
            "intermediate_size": 2 * WIDTH, "max_position_embeddings": LENGTH, "eos_token_id": 2,
        },
        "vision_config": {
            "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "image_size": 32,
            "intermediate_size": 2 * WIDTH, "patch_size": 8,
        },
        "projection_dim": WIDTH,
    }),
    "convbert": Recipe("SequenceClassification", to_classes),
    "deberta-v2": Recipe("SequenceClassification", to_classes, {
        "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8, "norm_rel_ebd": "layer_norm",
        "share_att_key": True, "conv_kernel_size": 3, "pooler_hidden_size": WIDTH,
    }),
    "distilbert": Recipe("SequenceClassification", to_classes),
    "electra": Recipe("SequenceClassification", to_classes),
    "falcon": Recipe("CausalLM", to_words, {"ffn_hidden_size": 2 * WIDTH}),
    "gemma2": Recipe("CausalLM", to_words, {"num_key_value_heads": 2, "head_dim": 8, "sliding_window": 8}),
    "gpt2": Recipe("CausalLM", to_words),
    "gpt_neo": Recipe("CausalLM", to_words, {"attention_types": [[["global", "local"], 1]], "window_size": 4}),
    "gpt_neox": Recipe("CausalLM", to_words),
    "gptj": Recipe("CausalLM", to_words, {"rotary_dim": 4}),
    "llama": Recipe("CausalLM", to_words, {"num_key_value_heads": 2}),
    "mamba": Recipe("CausalLM", to_words, {"state_size": 4, "time_step_rank": 4}),
    "mistral": Recipe("CausalLM", to_words, {"num_key_value_heads": 2, "sliding_window": 8}),
    "mixtral": Recipe("CausalLM", to_words, {"num_key_value_heads": 2, "num_local_experts": 4}),
    "mobilebert": Recipe("SequenceClassification", to_classes, {
        "intra_bottleneck_size": WIDTH, "true_hidden_size": WIDTH,
    }),
    "modernbert": Recipe("MaskedLM", to_words, {
        "local_attention": 4, "global_attn_every_n_layers": 2, "reference_compile": False,
    }),
    "mpnet": Recipe("SequenceClassification", to_classes),
    "opt": Recipe("CausalLM", to_words, {"word_embed_proj_dim": WIDTH}),
    "phi": Recipe("CausalLM", to_words),
    "qwen2": Recipe("CausalLM", to_words, {"num_key_value_heads": 2}),
    "roberta": Recipe("SequenceClassification", to_classes),
    "t5": Recipe("Seq2SeqLM", to_words, {"decoder_start_token_id": 0}),
    "vit": Recipe("ImageClassification", images_to_classes, {"image_size": 32, "patch_size": 8}),
    "wav2vec2": Recipe("AudioClassification", sound_to_classes, {
        "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "num_conv_pos_embeddings": 8,
        "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3, "apply_spec_augment": False,
        "mask_time_prob": 0.0, "classifier_proj_size": WIDTH,
    }),
    "whisper": Recipe("SpeechSeq2Seq", spectrum_to_words, {
        "num_mel_bins": 8, "max_source_positions": 32, "max_target_positions": 32, "decoder_start_token_id": 2,
        "bos_token_id": 2, "eos_token_id": 3,
    }),
}


class Tuple(nn.Module):
    """A model of transformers whose results are the loss and the scores."""

    def __init__(self, model: nn.Module, **always: object) -> None:
        super().__init__()
        self.model = model
        self.always = always

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        returned = self.model(**inputs, **self.always)
        scores = returned.logits if hasattr(returned, "logits") else returned.logits_per_image
        return returned.loss, [scores]


def make(name: str) -> tuple[nn.Module, Inputs]:
    """Return a model of transformers, and its inputs."""
    import_torchvision()
    import transformers

    recipe = RECIPES[name]
    default = transformers.AutoConfig.for_model(name)
    sizes = {size: value for size, value in SIZES.items() if hasattr(default, size)}
    config = transformers.AutoConfig.for_model(name, **sizes | recipe.changes)
    for attribute, value in list(vars(config).items()):
        if "drop" in attribute and isinstance(value, float):
            setattr(config, attribute, 0.0)
    inputs = recipe.inputs()
    if not recipe.task:
        return Tuple(transformers.AutoModel.from_config(config), return_loss=True), inputs
    model = getattr(transformers, f"AutoModelFor{recipe.task}").from_config(config)
    return Tuple(model), inputs


TRANSFORMERS = tuple(
    Architecture(name.replace("-", "_"), "transformers", functools.partial(make, name)) for name in RECIPES
)
