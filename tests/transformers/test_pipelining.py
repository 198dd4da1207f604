"""Facts of `pipeline_model`: which parts of a model go where, and that values stay those of the model."""

from __future__ import annotations

import copy
import inspect
import logging
from typing import Any

import poptorch
import pytest
import torch
import transformers

from tests.transformers import tiny
from torchipu.errors import OptionsError, PlacementError
from torchipu.transformers import IPUConfig, layout_of, pipeline_model, to_pipelined, unplace
from torchipu.transformers.layers import stacks_of
from torchipu.transformers.projection import SerialisedLinear

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def make(name: str, layers: int = 3) -> Any:
    """Return a small model of a family."""
    torch.manual_seed(2)
    words = {"vocab_size": tiny.NUM_WORDS}
    t = transformers
    if name == "bert":
        return tiny.bert(3)
    if name == "bert-mlm":
        return tiny.bert(3, "BertForMaskedLM")
    if name == "gpt2":
        return tiny.gpt2(3)
    if name == "roberta":
        config = t.RobertaConfig(**SMALL, **words, **NO_DROPOUT, max_position_embeddings=20)
        return t.RobertaForSequenceClassification(config)
    if name == "distilbert":
        config = t.DistilBertConfig(dim=16, n_layers=3, n_heads=2, hidden_dim=32, dropout=0.0, attention_dropout=0.0,
                                    seq_classif_dropout=0.0, max_position_embeddings=16, **words)
        return t.DistilBertForSequenceClassification(config)
    if name == "wav2vec2":
        config = t.Wav2Vec2Config(
            **SMALL, vocab_size=12, pad_token_id=0, hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0,
            feat_proj_dropout=0.0, final_dropout=0.0, layerdrop=0.0, mask_time_prob=0.0, conv_dim=(8, 8),
            conv_stride=(5, 2), conv_kernel=(10, 3), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
            do_stable_layer_norm=True, feat_extract_norm="layer", ctc_zero_infinity=True, ctc_loss_reduction="mean",
        )
        return t.Wav2Vec2ForCTC(config)
    if name.startswith("deberta"):
        config = t.DebertaConfig(
            **{**SMALL, "num_hidden_layers": layers}, **words, **NO_DROPOUT, max_position_embeddings=16,
            relative_attention=True, pooler_dropout=0.0, pos_att_type=["c2p", "p2c"],
        )
        is_qa = name == "deberta-qa"
        return (t.DebertaForQuestionAnswering if is_qa else t.DebertaForSequenceClassification)(config)
    if name == "vit":
        return t.ViTForImageClassification(t.ViTConfig(**SMALL, **NO_DROPOUT, image_size=8, patch_size=4))
    if name == "t5":
        config = t.T5Config(d_model=16, num_layers=2, num_decoder_layers=1, num_heads=2, d_kv=8, d_ff=32,
                            dropout_rate=0.0, decoder_start_token_id=0, **words)
        return t.T5ForConditionalGeneration(config)
    config = t.BartConfig(
        d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, max_position_embeddings=16, dropout=0.0, bos_token_id=0,
        pad_token_id=1, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2, **words,
    )
    return t.BartForConditionalGeneration(config)


LAYOUTS = {
    "bert": {
        "bert.embeddings": 0, "bert.encoder.layer.0": 0, "bert.encoder.layer.1": 1, "bert.encoder.layer.2": 1,
        "bert.pooler": 1, "classifier": 1,
    },
    "bert-mlm": {
        "bert.embeddings": 0, "bert.encoder.layer.0": 0, "bert.encoder.layer.1": 1, "bert.encoder.layer.2": 1, "cls": 0,
    },
    "gpt2": {
        "transformer.wte": 0, "transformer.wpe": 0, "transformer.h.0": 0, "transformer.h.1": 1, "transformer.h.2": 1,
        "transformer.ln_f": 1, "lm_head": 0,
    },
    "roberta": {
        "roberta.embeddings": 0, "roberta.encoder.layer.0": 0, "roberta.encoder.layer.1": 1,
        "roberta.encoder.layer.2": 1, "classifier": 1,
    },
    "distilbert": {
        "distilbert.embeddings": 0, "distilbert.transformer.layer.0": 0, "distilbert.transformer.layer.1": 1,
        "distilbert.transformer.layer.2": 1, "pre_classifier": 1, "classifier": 1,
    },
    "wav2vec2": {
        "wav2vec2.feature_extractor": 0, "wav2vec2.feature_projection": 0, "wav2vec2.encoder.pos_conv_embed": 0,
        "wav2vec2.encoder.layers.0": 0, "wav2vec2.encoder.layers.1": 1, "wav2vec2.encoder.layers.2": 1,
        "wav2vec2.encoder.layer_norm": 1, "lm_head": 1,
    },
    "deberta": {
        "deberta.embeddings": 0, "deberta.encoder.layer.0": 0, "deberta.encoder.layer.1": 1,
        "deberta.encoder.layer.2": 1, "pooler": 1, "classifier": 1,
    },
    "vit": {
        "vit.embeddings": 0, "vit.layers.0": 0, "vit.layers.1": 1, "vit.layers.2": 1, "vit.layernorm": 1,
        "classifier": 1,
    },
    "t5": {
        "encoder.embed_tokens": 0, "encoder.block.0": 0, "encoder.block.1": 1, "decoder.block.0": 1,
        "decoder.final_layer_norm": 1, "lm_head": 0,
    },
    "bart": {
        "model.encoder.embed_tokens": 0, "model.encoder.embed_positions": 0, "model.encoder.layernorm_embedding": 0,
        "model.encoder.layers.0": 0, "model.encoder.layers.1": 1, "model.decoder.layers.0": 1, "lm_head": 0,
    },
}
"""By family, with one layer on IPU 0 and two on IPU 1; a head that shares the weights of embeddings is with them."""


def make_inputs(name: str, num_rows: int) -> dict[str, torch.Tensor]:
    """Return a batch."""
    generator = torch.Generator().manual_seed(3)
    if name == "vit":
        pixels = torch.randn(num_rows, 3, 8, 8, generator=generator)
        return {"pixel_values": pixels, "labels": torch.arange(num_rows) % 2}
    if name == "wav2vec2":
        length = torch.where(torch.arange(num_rows) % 2 == 0, 160, 120)
        labels = torch.randint(1, 12, (num_rows, 4), generator=generator)
        labels[::3, 1] = -100  # left out wherever it stands
        return {
            "input_values": torch.randn(num_rows, 160, generator=generator), "labels": labels,
            "attention_mask": (torch.arange(160) < length[:, None]).long(),
        }
    ids = torch.randint(4, tiny.NUM_WORDS, (num_rows, 8), generator=generator)
    mask = torch.ones_like(ids)
    mask[::2, 6:] = 0
    if name == "deberta-qa":
        start = torch.arange(num_rows) % 3
        return {"input_ids": ids, "attention_mask": mask, "start_positions": start, "end_positions": start + 2}
    is_classifier = name in ("bert", "roberta", "distilbert", "deberta")
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.arange(num_rows) % 2 if is_classifier else ids}


@pytest.mark.parametrize("name", LAYOUTS)
def test_parts_of_a_family_go_where_they_should(name: str) -> None:
    model = pipeline_model(make(name), IPUConfig(layers_per_ipu=[1, 2]))
    assert dict(layout_of(model).ipu_by_block) == LAYOUTS[name]


@pytest.mark.parametrize("name", ["vit", "gpt2", "t5", "bart", "wav2vec2"])
def test_pipelined_step_is_that_of_a_plain_loop(name: str) -> None:
    """One update of SGD over all micro-batches; the judge accumulates their mean gradient."""
    judge, model = make(name), make(name)
    accumulation, rows = 6, 2
    batch = make_inputs(name, accumulation * rows)
    optimiser = torch.optim.SGD(judge.parameters(), lr=0.5)
    judge.train()
    losses = []
    for number in range(accumulation):
        part = {key: value[number * rows : (number + 1) * rows] for key, value in batch.items()}
        loss = judge(**part).loss / accumulation
        loss.backward()
        losses.append(accumulation * loss.detach())
    optimiser.step()

    config = IPUConfig(
        layers_per_ipu=[1, 2], gradient_accumulation_steps=accumulation, output_mode="all",
        recompute_checkpoint_every_layer=True,
    )
    model.config.use_cache = False
    pipeline_model(model, config).train()
    trained = poptorch.trainingModel(model, config.to_options(), poptorch.optim.SGD(model.parameters(), lr=0.5))
    results = trained(**batch)
    assert isinstance(results, transformers.utils.ModelOutput)
    torch.testing.assert_close(results.loss, torch.stack(losses), atol=2e-5, rtol=2e-5)
    assert results["logits"].shape[0] == accumulation * rows
    trained.destroy()
    for (key, value), expected in zip(model.state_dict().items(), judge.state_dict().values(), strict=True):
        torch.testing.assert_close(value, expected, atol=2e-5, rtol=2e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("name", ["deberta", "deberta-qa"])
def test_a_loss_that_looks_at_labels_or_has_two_parts_is_one_of_tensors(name: str) -> None:
    model, batch = make(name, layers=1), make_inputs(name, 4)
    if "labels" in batch:
        batch["labels"][2] = -1  # does not count
    expected = model.train()(**batch).loss.detach()
    pipeline_model(model, IPUConfig(layers_per_ipu=[1]))
    torch.testing.assert_close(poptorch.trainingModel(model)(**batch).loss, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["Bart", "T5"])
def test_a_classifier_looks_at_the_last_end_of_each_sentence(family: str) -> None:
    torch.manual_seed(4)
    whole = make(family.lower())
    whole.config.update({"eos_token_id": 2, "num_labels": 3, "classifier_dropout": 0.0})
    model = getattr(transformers, f"{family}ForSequenceClassification")(whole.config).train()
    batch = {"input_ids": torch.randint(4, tiny.NUM_WORDS, (4, 8)), "labels": torch.arange(4) % 3}
    for column, rows in ((1, [0, 1, 2, 3]), (7, [0, 2]), (5, [1, 3])):  # two ends in each sentence
        batch["input_ids"][rows, column] = 2
    judge, signature = copy.deepcopy(model), inspect.signature(model.forward)
    expected = judge(**batch)
    expected.loss.backward()
    pipeline_model(model, IPUConfig(layers_per_ipu=[3]))
    assert inspect.signature(model.forward) == signature  # names of columns are read off it
    torch.testing.assert_close(model(**batch).logits, expected.logits)
    trained = poptorch.trainingModel(model, optimizer=torch.optim.SGD(model.parameters(), lr=1.0))
    torch.testing.assert_close(trained(**batch).logits, expected.logits.detach(), atol=1e-5, rtol=1e-5)
    trained.destroy()
    for after, before in zip(model.parameters(), judge.parameters(), strict=True):
        torch.testing.assert_close(after, before - before.grad, atol=2e-5, rtol=2e-5)
    unplace(model)
    assert "forward" not in vars(model)


def test_methods_of_optimum_graphcore_place_a_model_and_take_it_back() -> None:
    model, names = make("deberta"), {"layers_per_ipu": [1, 2], "inference_layers_per_ipu": [2, 1]}
    model = to_pipelined(model, IPUConfig(**names))
    for training, second in ((True, 1), (False, 0)):
        placed = copy.deepcopy(model).train(training).parallelize()
        assert layout_of(placed).ipu_by_block["deberta.encoder.layer.1"] == second
        assert type(placed) is transformers.DebertaForSequenceClassification
        placed.deparallelize()
        with pytest.raises(PlacementError):
            layout_of(placed)
        assert not placed._forward_hooks
        assert not placed._forward_pre_hooks_with_kwargs


def test_placing_again_replaces_the_blocks_and_unplacing_leaves_none() -> None:
    model = make("bert")
    hooks = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    config = IPUConfig(layers_per_ipu=[1, 2], inference_layers_per_ipu=[3], recompute_checkpoint_every_layer=True)
    pipeline_model(model, config)
    pipeline_model(model, config, for_inference=True)
    assert set(layout_of(model).ipu_by_block.values()) == {0}
    assert not any(module._forward_hooks for module in model.bert.encoder.layer)
    unplace(model)
    assert sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules()) == hooks
    with pytest.raises(PlacementError, match="has not been placed on IPUs"):
        layout_of(model)


def test_placed_model_computes_on_the_host_what_it_did_and_can_be_copied() -> None:
    model, inputs = make("gpt2").eval(), make_inputs("gpt2", 2)
    expected = model(**inputs).logits
    config = IPUConfig(
        layers_per_ipu=[1, 2], embedding_serialization_factor=3, recompute_checkpoint_every_layer=True,
    )
    pipeline_model(model, config)
    torch.testing.assert_close(model(**inputs).logits, expected)
    torch.testing.assert_close(copy.deepcopy(model)(**inputs).logits, expected)


def test_placing_draws_no_random_numbers_and_leaves_modes() -> None:
    model = make("bert").train()
    model.classifier.eval()
    before = torch.get_rng_state()
    pipeline_model(model, IPUConfig(layers_per_ipu=[1, 2]))
    assert torch.equal(torch.get_rng_state(), before)
    assert model.training
    assert model.bert.training
    assert not model.classifier.training


def test_serialised_projection_of_a_vocabulary_that_the_parts_do_not_divide_is_the_whole_one() -> None:
    model, inputs = make("gpt2").eval(), make_inputs("gpt2", 2)
    expected = model(**inputs).logits
    config = IPUConfig(layers_per_ipu=[3], embedding_serialization_factor=5)
    pipeline_model(model, config, for_inference=True)
    assert isinstance(model.lm_head, SerialisedLinear)
    assert model.lm_head.weight is model.transformer.wte.weight

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=input_ids, attention_mask=attention_mask).logits

    found = poptorch.inferenceModel(Logits().eval(), config.to_options(for_inference=True))
    torch.testing.assert_close(found(inputs["input_ids"], inputs["attention_mask"]), expected, atol=2e-5, rtol=2e-5)
    pipeline_model(model, IPUConfig(layers_per_ipu=[3]))
    assert type(model.lm_head) is torch.nn.Linear


def test_stacks_are_found_by_structure_in_a_model_of_ones_own() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.ModuleList(torch.nn.Sequential(torch.nn.Linear(4, 4)) for _ in range(2))

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return self.inner[1](self.inner[0](values)).tanh()

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = torch.nn.Linear(4, 2)
            self.heads = torch.nn.ModuleList(torch.nn.Linear(4, 64) for _ in range(2))
            self.tower = torch.nn.ModuleList(Block() for _ in range(4))
            self.first = torch.nn.Linear(4, 4)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            values = self.first(values)
            for block in reversed(self.tower):
                values = block(values)
            return self.last(values)

    model = Own()
    assert list(stacks_of(model)) == ["tower"]
    config = IPUConfig(ipus_per_replica=2)
    pipeline_model(model, config, {"values": torch.ones(1, 4)})
    assert list(layout_of(model).ipu_by_block.items()) == [
        ("first", 0), ("tower.3", 0), ("tower.2", 0), ("tower.1", 1), ("tower.0", 1), ("last", 1),
    ]


def test_model_without_a_stack_is_refused() -> None:
    with pytest.raises(PlacementError, match="Linear holds no stack of layers"):
        pipeline_model(torch.nn.Linear(2, 2), IPUConfig())


def test_number_of_layers_that_does_not_fit_leaves_the_model_as_it_was() -> None:
    model = make("bert")
    pipeline_model(model, IPUConfig(layers_per_ipu=[1, 2]))
    before = layout_of(model)
    with pytest.raises(OptionsError, match="places 12 layers, and the model has 3"):
        pipeline_model(model, IPUConfig(layers_per_ipu=[6, 6]))
    assert layout_of(model) is before


def test_layout_is_told_as_optimum_graphcore_told_it(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "torchipu.transformers"):
        pipeline_model(make("bert"), IPUConfig(layers_per_ipu=[1, 2]))
    assert caplog.records[-1].getMessage() == """\
-------------------- Device Allocation --------------------
bert.embeddings      --> IPU 0
bert.encoder.layer.0 --> IPU 0
bert.encoder.layer.1 --> IPU 1
bert.encoder.layer.2 --> IPU 1
bert.pooler          --> IPU 1
classifier           --> IPU 1
-----------------------------------------------------------"""
