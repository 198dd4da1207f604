"""Facts of the example that classifies texts with transformers, and of its data."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

import text_classification
from reviews import BAD, GOOD, LONGEST, NOT, make_reviews, make_tokenizer

needs_transformers = pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason='needs pip install "torchipu[transformers]"'
)
SMALL = ("--width", "16", "--num-reviews", "128", "--epochs", "1", "--batch-size", "4")


def test_sentiment_is_that_of_most_clauses() -> None:
    reviews = make_reviews(100, torch.Generator().manual_seed(0))
    assert {label for _, label in reviews} == {0, 1}
    for text, label in reviews:
        clauses = [clause.split() for clause in text.split(" and ")]
        praise = [(words[-1] in GOOD) != (NOT in words) for words in clauses]
        assert all(words[-1] in (*GOOD, *BAD) for words in clauses)
        assert label == int(sum(praise) > len(praise) / 2)


@needs_transformers
def test_every_review_fits_and_every_word_is_known() -> None:
    tokenizer = make_tokenizer()
    for row in text_classification.tokenised(make_reviews(50, torch.Generator().manual_seed(1)), tokenizer):
        assert len(row["input_ids"]) == len(row["attention_mask"]) == LONGEST
        assert tokenizer.unk_token_id not in row["input_ids"]
        assert sum(row["attention_mask"]) == sum(token != tokenizer.pad_token_id for token in row["input_ids"])


@needs_transformers
def test_learns_over_four_ipus() -> None:
    result = text_classification.run(["--num-reviews", "1024", "--epochs", "6", "--learning-rate", "0.003"])
    assert result.losses[-1] < 0.7 * result.losses[0]
    assert result.accuracy > 0.75
    assert "bert.encoder.layer.3 --> IPU 3" in result.layout


@needs_transformers
def test_half_replicas_and_another_layout_run_and_are_saved(tmp_path: Path) -> None:
    import transformers

    result = text_classification.run([
        *SMALL, "--half", "--layers-per-ipu", "0", "-1", "--replication-factor", "2", "--num-layers", "2",
        "--gradient-accumulation", "3", "--output-dir", str(tmp_path),
    ])
    assert "bert.encoder.layer.0 --> IPU 1" in result.layout
    assert all(0 < loss < 2 for loss in result.losses)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, local_files_only=True)
    assert model.config.num_hidden_layers == 2
    again = text_classification.make_ipu_config(
        text_classification.parse_arguments(["--ipu-config", str(tmp_path)])
    )
    assert again.replication_factor == 2
