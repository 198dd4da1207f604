"""Families of transformers with inputs or results of their own: long and sparse attention, images, speech, time series.

Where a model returns no loss of its own, its results are summed with fixed weights: each then has a gradient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from tests.models.architectures.architecture import Architecture, Inputs
from tests.models.architectures.torchvision_schemas import import_torchvision
from tests.models.architectures.transformers_models import (
    BATCH,
    LENGTH,
    NUM_CLASSES,
    SIZES,
    VOCABULARY,
    WIDTH,
    sound_to_classes,
    to_classes,
    to_words,
    tokens,
)

Values = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Family:
    """How a model of a family is made.

    Attributes:
        config: Name of its class of configurations.
        model: Name of its class.
        inputs: Makes the inputs, labels among them where it has a loss.
        changes: What the configuration needs besides the common sizes.
        always: What the model is called with besides the inputs.
        without: Common sizes that the configuration refuses.
        has_sizes: Whether it takes the common sizes at all; one of parts has them in these.
    """

    config: str
    model: str
    inputs: Callable[[], Values]
    changes: dict[str, Any] = field(default_factory=dict)
    always: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    has_sizes: bool = True


class Summed(nn.Module):
    """A model whose results are the loss, its own or a sum of all results, and these."""

    def __init__(self, model: nn.Module, **always: object) -> None:
        super().__init__()
        self.model = model
        self.always = always

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        returned = self.model(**inputs, **self.always)
        loss = returned.get("loss")
        results = [result for result in _tensors(returned) if result is not loss]
        if loss is None:
            loss = torch.stack([(result * _weights(result)).mean() for result in results]).sum()
        return loss, results


def _tensors(value: object) -> Iterator[torch.Tensor]:
    """Yield the real tensors of results, those of caches left out."""
    if isinstance(value, torch.Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for name, member in value.items():
            if "past_key" not in name and "cache" not in name:
                yield from _tensors(member)
    elif isinstance(value, (list, tuple)):
        for member in value:
            yield from _tensors(member)


def _weights(value: torch.Tensor) -> torch.Tensor:
    """Return fixed numbers of either sign, one for each element."""
    return torch.cos(torch.arange(value.numel(), dtype=value.dtype)).view(value.shape)


# --------------------------------------------------------------------------- inputs
def unmasked() -> Values:
    """Return tokens without a mask."""
    return {"input_ids": tokens()["input_ids"]}


def unmasked_to_classes() -> Values:
    """Return tokens without a mask, and classes."""
    return unmasked() | {"labels": torch.randint(NUM_CLASSES, (BATCH,))}


def long_to_classes() -> Values:
    """Return tokens `[2, 64]`, of which the first sequence has four of padding, and classes."""
    mask = torch.ones(BATCH, 64, dtype=torch.int64)
    mask[0, -4:] = 0
    random = torch.where(mask.bool(), torch.randint(4, VOCABULARY, (BATCH, 64)), 1)
    return {"input_ids": random, "attention_mask": mask, "labels": torch.randint(NUM_CLASSES, (BATCH,))}


def bytes_to_classes() -> Values:
    """Return what Perceiver calls inputs, and classes."""
    given = torch.randint(4, VOCABULARY, (BATCH, LENGTH))
    return {"inputs": given, "labels": torch.randint(NUM_CLASSES, (BATCH,))}


def boxes() -> Values:
    """Return tokens with their places on a page, and classes."""
    given, corner = to_classes(), torch.randint(0, 400, (BATCH, LENGTH, 2))
    opposite = corner + torch.randint(1, 100, (BATCH, LENGTH, 2))
    return given | {"bbox": torch.cat([corner, opposite], -1)}


def images(side: int = 32, count: int = BATCH) -> Values:
    """Return images alone."""
    return {"pixel_values": torch.randn(count, 3, side, side)}


def page() -> Values:
    """Return tokens with places, the image of the page, and classes."""
    return boxes() | images()


def segments() -> Values:
    """Return images and the class of each pixel."""
    return images(64) | {"labels": torch.randint(0, NUM_CLASSES, (BATCH, 64, 64))}


def image_and_points() -> Values:
    """Return an image with two points on it."""
    return images(64, 1) | {"input_points": torch.rand(1, 1, 2, 2) * 64}


def series(steps: int = 32) -> Values:
    """Return three channels of a time series, and what follows."""
    return {"past_values": torch.randn(BATCH, steps, 3), "future_values": torch.randn(BATCH, 8, 3)}


def padded_series() -> Values:
    """Return one channel, what of it is padding, and its frequency."""
    nothing = torch.zeros(BATCH, 64, dtype=torch.int64)
    return {"past_values": torch.randn(BATCH, 64), "past_values_padding": nothing,
            "freq": torch.zeros(BATCH, 1, dtype=torch.int64)}


def words_to_speech() -> Values:
    """Return tokens, who speaks, and spectra."""
    return tokens() | {"speaker_embeddings": torch.randn(BATCH, 16), "labels": torch.randn(BATCH, 8, 8)}


def frames() -> Values:
    """Return four images of each video, and classes."""
    return {"pixel_values": torch.randn(BATCH, 4, 3, 32, 32), "labels": torch.randint(NUM_CLASSES, (BATCH,))}


def tokens_and_images() -> Values:
    """Return tokens, one image beside those of each sample, and classes."""
    given = tokens() | {"pixel_values": torch.randn(BATCH, 1, 3, 32, 32)}
    return given | {"labels": torch.randint(NUM_CLASSES, (BATCH,))}


def codes() -> Values:
    """Return tokens of four codebooks for each sample."""
    return {"input_ids": torch.randint(0, VOCABULARY, (BATCH * 4, LENGTH))}


_TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH, "max_position_embeddings": LENGTH, "eos_token_id": 2,
}
_IMAGES = {
    "hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32,
    "intermediate_size": 2 * WIDTH, "patch_size": 8,
}
_SOUND = {
    "conv_dim": (16, 16, 16), "conv_kernel": (10, 3, 2), "conv_stride": (5, 2, 2), "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "num_feat_extract_layers": 3, "apply_spec_augment": False,
    "mask_time_prob": 0.0, "classifier_proj_size": WIDTH,
}

FAMILIES: dict[str, Family] = {
    "bark_semantic": Family("BarkSemanticConfig", "BarkSemanticModel", unmasked, {
        "input_vocab_size": VOCABULARY, "output_vocab_size": VOCABULARY, "block_size": 64,
    }),
    "big_bird": Family("BigBirdConfig", "BigBirdForSequenceClassification", long_to_classes, {
        "attention_type": "original_full",
    }),
    "big_bird_sparse": Family("BigBirdConfig", "BigBirdForSequenceClassification", long_to_classes, {
        "attention_type": "block_sparse", "block_size": 4, "num_random_blocks": 2,
    }),
    "canine": Family("CanineConfig", "CanineForSequenceClassification", to_classes, {
        "local_transformer_stride": 4, "downsampling_rate": 4, "upsampling_kernel_size": 4,
    }),
    "clipseg": Family(
        "CLIPSegConfig", "CLIPSegForImageSegmentation", lambda: images() | tokens(), {
            "text_config": _TEXT, "vision_config": _IMAGES, "projection_dim": WIDTH, "reduce_dim": 16,
            "extract_layers": [0, 1], "conditional_layer": 0, "decoder_num_attention_heads": 4,
            "decoder_intermediate_size": 32,
        }, has_sizes=False,
    ),
    "detr": Family("DetrConfig", "DetrForObjectDetection", lambda: images(64), {
        "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "num_queries": 6,
        "d_model": WIDTH, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_labels": NUM_CLASSES,
        "backbone_config": {
            "model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1],
            "layer_type": "basic", "out_features": ["stage4"],
        },
    }, has_sizes=False),
    "fnet": Family("FNetConfig", "FNetForSequenceClassification", unmasked_to_classes),
    "funnel": Family("FunnelConfig", "FunnelForSequenceClassification", to_classes, {
        "block_sizes": [1, 1], "num_decoder_layers": 1, "d_head": 8, "d_inner": 64,
    }, without=("num_hidden_layers", "num_layers")),
    "granitemoe": Family("GraniteMoeConfig", "GraniteMoeForCausalLM", to_words, {
        "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    }),
    "hubert": Family("HubertConfig", "HubertForSequenceClassification", sound_to_classes, _SOUND),
    "jamba": Family("JambaConfig", "JambaForCausalLM", to_words, {
        "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1,
        "num_experts": 4, "num_key_value_heads": 2, "mamba_d_state": 4, "mamba_dt_rank": 4,
    }),
    "layoutlm": Family("LayoutLMConfig", "LayoutLMForSequenceClassification", boxes),
    "layoutlmv3": Family("LayoutLMv3Config", "LayoutLMv3ForSequenceClassification", page, {
        "input_size": 32, "patch_size": 16, "coordinate_size": 6, "shape_size": 4, "has_relative_attention_bias": True,
        "has_spatial_attention_bias": True,
    }),
    "led": Family("LEDConfig", "LEDForConditionalGeneration", to_words, {
        "attention_window": 8, "max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64,
    }),
    "longformer": Family("LongformerConfig", "LongformerForSequenceClassification", to_classes, {
        "attention_window": 8,
    }),
    "longt5": Family("LongT5Config", "LongT5ForConditionalGeneration", to_words, {
        "decoder_start_token_id": 0, "local_radius": 3, "encoder_attention_type": "transient-global",
        "global_block_size": 4, "num_decoder_layers": 2,
    }),
    "luke": Family("LukeConfig", "LukeForMaskedLM", to_words, {"entity_vocab_size": 20, "entity_emb_size": 16}),
    "minimax": Family("MiniMaxConfig", "MiniMaxForCausalLM", to_words, {
        "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4, "sliding_window": 8, "block_size": 8,
        "layer_types": ["full_attention", "linear_attention"],
    }),
    "mra": Family("MraConfig", "MraForMaskedLM", to_words),
    "musicgen_decoder": Family("MusicgenDecoderConfig", "MusicgenForCausalLM", codes, {"num_codebooks": 4}),
    "nystromformer": Family("NystromformerConfig", "NystromformerForSequenceClassification", to_classes, {
        "num_landmarks": 16, "conv_kernel_size": 5, "segment_means_seq_len": 16,
    }),
    "patchtst": Family("PatchTSTConfig", "PatchTSTForPrediction", series, {
        "context_length": 32, "prediction_length": 8, "num_input_channels": 3, "patch_length": 4, "patch_stride": 4,
    }),
    "patchtsmixer": Family("PatchTSMixerConfig", "PatchTSMixerForPrediction", series, {
        "context_length": 32, "prediction_length": 8, "num_input_channels": 3, "patch_length": 4, "patch_stride": 4,
        "d_model": 16, "num_layers": 2,
    }, has_sizes=False),
    "pegasus_x": Family("PegasusXConfig", "PegasusXForConditionalGeneration", to_words, {
        "block_size": 4, "num_global_tokens": 4, "decoder_start_token_id": 0,
    }),
    "perceiver": Family("PerceiverConfig", "PerceiverForSequenceClassification", bytes_to_classes, {
        "d_latents": 32, "num_latents": 8, "num_blocks": 1, "num_self_attends_per_block": 2,
        "num_self_attention_heads": 4, "num_cross_attention_heads": 4,
    }),
    "prophetnet": Family("ProphetNetConfig", "ProphetNetForConditionalGeneration", to_words, {
        "num_encoder_layers": 2, "num_decoder_layers": 2, "num_encoder_attention_heads": 4,
        "num_decoder_attention_heads": 4, "decoder_start_token_id": 0, "ngram": 2, "num_buckets": 8,
    }, without=("num_hidden_layers", "num_layers")),
    "qwen3_next": Family("Qwen3NextConfig", "Qwen3NextForCausalLM", to_words, {
        "num_key_value_heads": 2, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention"],
    }),
    "reformer": Family("ReformerConfig", "ReformerForMaskedLM", to_words, {
        "attn_layers": ["local", "lsh"], "attention_head_size": 8, "axial_pos_shape": (4, 4),
        "axial_pos_embds_dim": (16, 16), "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "num_buckets": 4,
        "num_hashes": 1, "feed_forward_size": 64, "is_decoder": False, "hash_seed": 0,
    }),
    "recurrent_gemma": Family("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", to_words, {
        "num_key_value_heads": 2, "lru_width": WIDTH, "attention_window_size": 8, "head_dim": 8,
        "block_types": ["recurrent", "attention"],
    }),
    "sam": Family(
        "SamConfig", "SamModel", image_and_points, {
            "vision_config": {
                "hidden_size": WIDTH, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
                "image_size": 64, "patch_size": 8, "window_size": 4, "global_attn_indexes": [1], "mlp_dim": 64,
                "num_pos_feats": 8,
            },
            "prompt_encoder_config": {
                "hidden_size": 16, "image_size": 64, "patch_size": 8, "mask_input_channels": 4,
                "image_embedding_size": 8,
            },
            "mask_decoder_config": {
                "hidden_size": 16, "mlp_dim": 32, "num_attention_heads": 2, "iou_head_hidden_dim": 16,
                "num_hidden_layers": 2,
            },
        }, always={"multimask_output": False}, has_sizes=False,
    ),
    "segformer": Family("SegformerConfig", "SegformerForSemanticSegmentation", segments, {
        "depths": [1, 1, 1, 1], "hidden_sizes": [8, 16, 16, 16], "decoder_hidden_size": 16,
        "num_attention_heads": [1, 2, 2, 2],
    }),
    "sew_d": Family("SEWDConfig", "SEWDForSequenceClassification", sound_to_classes, {
        **_SOUND, "squeeze_factor": 2, "position_buckets": 8,
    }),
    "speecht5": Family("SpeechT5Config", "SpeechT5ForTextToSpeech", words_to_speech, {
        "num_mel_bins": 8, "speaker_embedding_dim": 16, "speech_decoder_prenet_units": 16,
        "speech_decoder_postnet_units": 16, "speech_decoder_postnet_layers": 2, "speech_decoder_prenet_dropout": 0.0,
        "reduction_factor": 2, "use_guided_attention_loss": False,
    }),
    "squeezebert": Family("SqueezeBertConfig", "SqueezeBertForSequenceClassification", to_classes),
    "swin2sr": Family("Swin2SRConfig", "Swin2SRForImageSuperResolution", lambda: images(16), {
        "image_size": 16, "patch_size": 1, "embed_dim": 16, "depths": [2, 1], "num_heads": [2, 2], "window_size": 4,
        "upscale": 2,
    }, has_sizes=False),
    "timesfm": Family("TimesFmConfig", "TimesFmModel", padded_series, {
        "patch_length": 8, "context_length": 64, "horizon_length": 8, "head_dim": 8, "tolerance": 1e-6,
    }),
    "videomae": Family("VideoMAEConfig", "VideoMAEForVideoClassification", frames, {
        "image_size": 32, "patch_size": 8, "num_frames": 4, "tubelet_size": 2,
    }),
    "vilt": Family("ViltConfig", "ViltForImagesAndTextClassification", tokens_and_images, {
        "image_size": 32, "patch_size": 8, "num_images": 1,
    }),
    "vits": Family("VitsConfig", "VitsModel", tokens, {
        "hidden_size": 16, "ffn_dim": 32, "flow_size": 16, "spectrogram_bins": 8, "prior_encoder_num_flows": 2,
        "posterior_encoder_num_wavenet_layers": 2, "prior_encoder_num_wavenet_layers": 2,
        "upsample_initial_channel": 16, "upsample_rates": [4, 4], "upsample_kernel_sizes": [8, 8],
        "resblock_kernel_sizes": [3], "resblock_dilation_sizes": [[1, 3]], "use_stochastic_duration_prediction": False,
        "noise_scale": 0.0, "window_size": 4, "depth_separable_channels": 2, "duration_predictor_filter_channels": 16,
    }),
    "xlnet": Family("XLNetConfig", "XLNetForSequenceClassification", to_classes, {"d_inner": 64}, without=(
        "max_position_embeddings",
    )),
    "yoso": Family("YosoConfig", "YosoForSequenceClassification", to_classes, {"use_expectation": True}),
    "zamba2": Family("Zamba2Config", "Zamba2ForCausalLM", to_words, {
        "num_hidden_layers": 4, "hybrid_layer_ids": [1, 3], "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"],
        "mamba_d_state": 4, "n_mamba_heads": 4, "mamba_headdim": 16, "mamba_ngroups": 1, "num_key_value_heads": 4,
        "num_mem_blocks": 1, "chunk_size": 8, "use_mem_rope": False, "adapter_rank": 4,
    }),
}


def make(name: str) -> tuple[nn.Module, Inputs]:
    """Return a model of a family, and its inputs."""
    import_torchvision()
    import transformers

    family = FAMILIES[name]
    kind = getattr(transformers, family.config)
    default = kind()
    sizes = {
        size: value for size, value in SIZES.items()
        if family.has_sizes and size not in family.without and hasattr(default, size)
    }
    config = kind(**sizes | family.changes)
    _leave_nothing_to_chance(config)
    return Summed(getattr(transformers, family.model)(config), **family.always), family.inputs()


def _leave_nothing_to_chance(config: Any) -> None:
    """Set all rates of dropout to zero, in the configurations of parts too."""
    for attribute, value in list(vars(config).items()):
        if "drop" in attribute and isinstance(value, float):
            setattr(config, attribute, 0.0)
        if hasattr(value, "to_dict"):
            _leave_nothing_to_chance(value)


TRANSFORMERS_FAMILIES = tuple(
    Architecture(name, "transformers", functools.partial(make, name)) for name in FAMILIES
)
