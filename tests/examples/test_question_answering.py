"""Facts of the example that answers questions, and of its data."""

from __future__ import annotations

import importlib.util

import poptorch
import pytest
import torch

import question_answering
from facts import NUM_SPECIAL, PADDING, SEPARATE, Vocabulary, make_questions, sequence_length

SMALL = (
    "--width", "16", "--num-heads", "2", "--num-layers", "2", "--num-facts", "2", "--batch-size", "4",
    "--gradient-accumulation", "5", "--device-iterations", "4", "--epochs", "2", "--num-questions", "400",
)


def test_answer_is_the_words_that_follow_the_name_asked_for() -> None:
    vocabulary = Vocabulary(num_names=5, num_words=7)
    questions = make_questions(200, 3, 2, vocabulary, torch.Generator().manual_seed(0))
    first_word = NUM_SPECIAL + vocabulary.num_names
    lengths = set()
    for tokens, types, mask, first, last in questions:
        assert len(tokens) == sequence_length(3, 2)
        assert tokens[first - 1] == tokens[1]  # the name
        answer = tokens[first : last + 1]
        assert (answer >= first_word).all()
        assert tokens[last + 1] < first_word  # another name, or the end
        assert types.tolist() == [0, 0, 0] + [1] * (len(tokens) - 3)
        assert torch.equal(mask.bool(), tokens != PADDING)
        context = tokens[3:]
        assert (context == tokens[1]).sum() == 1
        assert (context == SEPARATE).sum() == 1
        lengths.add(len(answer))
    assert lengths == {1, 2}


def test_blocks_follow_the_layers() -> None:
    flags = question_answering.parse_arguments([*SMALL, "--layers-per-ipu", "1"])
    model = question_answering.make_model(flags, Vocabulary(), 10)
    written = repr(poptorch.inferenceModel(model))
    for block, ipu in (("embeddings", 0), ("layers from 0", 1), ("layers from 1", 2)):
        assert f"BeginBlock(user_id={block}, ipu_id={ipu})" in written


def test_ours_learns() -> None:
    result = question_answering.run([*SMALL, "--learning-rate", "0.01"])
    assert len(result.losses) == 10
    assert result.losses[-1] < 0.8 * result.losses[0]
    assert 0 <= result.exact <= 1


@pytest.mark.thorough  # the one above runs the same script, and tests/transformers this model
@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_transformers_bert_learns() -> None:
    from tests.models.architectures.torchvision_schemas import import_torchvision

    import_torchvision()
    result = question_answering.run([*SMALL, "--transformers", "--learning-rate", "0.01"])
    assert result.losses[-1] < 0.8 * result.losses[0]


def test_scores_of_padding_are_out_of_reach() -> None:
    flags = question_answering.parse_arguments(SMALL)
    vocabulary = Vocabulary()
    model = question_answering.make_model(flags, vocabulary, sequence_length(2, 3))
    questions = make_questions(8, 2, 3, vocabulary, torch.Generator().manual_seed(1))
    tokens, types, mask, _, _ = questions.tensors
    options = poptorch.Options().deviceIterations(4).autoRoundNumIPUs(True)
    first, last = poptorch.inferenceModel(model.eval(), options)(tokens, types, mask)
    assert (mask == 0).any()
    assert (first[mask == 0] < -1000).all()
    assert (last[mask == 0] < -1000).all()
