"""Facts of the PopTorch examples that classify: split over IPUs, mixed precision, fine-tuned, recurrent, of speech."""

from __future__ import annotations

from pathlib import Path

import pytest
import speech
import torch

import fine_tuning
import mixed_precision
import pipelined_classifier
import recurrent

SPLIT = ("--epochs", "1", "--num-samples", "672", "--batch-size", "12", "--device-iterations", "2", "--num-ipus", "4")
FEW = ("--epochs", "1", "--num-samples", "1280", "--batch-size", "16", "--device-iterations", "8")


@pytest.mark.thorough  # tests/poptorch/test_strategies.py and test_locations.py hold them to each other
def test_strategies_and_the_place_of_optimiser_states_do_not_change_losses() -> None:
    pipelined = pipelined_classifier.run(["--gradient-accumulation", "7", *SPLIT])
    sharded = pipelined_classifier.run(
        ["--gradient-accumulation", "7", *SPLIT, "--strategy", "sharded", "--offload-optimiser"]
    )
    assert pipelined == sharded


def test_replicated_classifier_learns_and_writes_a_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    result = pipelined_classifier.run([
        "--replicas", "2", "--num-ipus", "2", "--epochs", "2", "--num-samples", "1440", "--batch-size", "8",
        "--gradient-accumulation", "3", "--device-iterations", "5", "--checkpoint", str(path),
    ])
    assert result.losses[1] < 0.7 * result.losses[0]
    assert result.test_accuracy > 0.5
    checkpoint = torch.load(path, weights_only=True)
    model = pipelined_classifier.Classifier()
    model.load_state_dict(checkpoint["model"])
    assert checkpoint["losses"] == list(result.losses)
    assert {name for name in checkpoint["optimiser"]["ipu_state"] if name.startswith("Accl1___")} == {
        f"Accl1___{name}" for name, _ in model.named_parameters()
    }


def test_too_few_samples_for_a_call_are_refused() -> None:
    with pytest.raises(SystemExit, match="one call takes 800 samples and there are 100"):
        pipelined_classifier.run(["--num-samples", "100"])


@pytest.mark.thorough  # others of this file run the script
def test_each_precision_learns_with_weights_of_its_types() -> None:
    found = mixed_precision.run([*FEW, "--epochs", "2", "--learning-rate", "0.004"])
    assert list(found) == ["float", "half", "mixed"]
    for result in found.values():
        assert result.losses[-1] < 0.5 * result.losses[0]
        assert result.test_accuracy > 0.8
    numbers = {precision: result.parameter_bytes for precision, result in found.items()}
    assert numbers["half"] * 2 == numbers["float"]
    assert numbers["half"] < numbers["mixed"] < numbers["float"]


def test_loss_scaling_saves_small_gradients_of_half_weights() -> None:
    # Scaled by 2^-14, gradients of half tensors leave its range: an update then does next to nothing.
    arguments = [*FEW, "--precisions", "half", "--no-stochastic-rounding"]
    scaled = mixed_precision.run(arguments)["half"]
    lost = mixed_precision.run([*arguments, "--loss-scaling", str(2.0**-14)])["half"]
    assert scaled.losses[-1] < lost.losses[-1]


@pytest.mark.parametrize(
    ("frozen", "changed"),
    [("features", {"head"}), ("edges", {"shapes", "head"}), ("none", {"edges", "shapes", "head"})],
)
def test_only_what_is_not_frozen_changes(frozen: str, changed: set[str], tmp_path: Path) -> None:
    weights = tmp_path / "pretrained.pt"
    torch.save(fine_tuning.Classifier(fine_tuning.NUM_FAMILIAR).state_dict(), weights)
    result = fine_tuning.run([
        "--pretrained", str(weights), "--freeze", frozen, "--tuning-epochs", "1", "--num-samples", "256",
        "--batch-size", "16", "--device-iterations", "4",
    ])
    assert {name.split(".")[0] for name in result.changed} == changed
    assert result.pretrained_accuracy is None


def test_new_head_on_frozen_features_learns_all_digits() -> None:
    result = fine_tuning.run(["--num-samples", "2560", "--device-iterations", "8"])
    assert result.pretrained_accuracy is not None
    assert result.pretrained_accuracy > 0.85
    assert result.changed == {"head.weight", "head.bias"}
    assert result.accuracy > 0.8


@pytest.mark.parametrize("cell", sorted(recurrent.CELLS))
def test_each_recurrent_cell_learns(cell: str) -> None:
    rate = "0.002" if cell == "rnn" else "0.005"  # of 28 steps an RNN forgets most, and is soon unstable
    result = recurrent.run([*FEW, "--cell", cell, "--width", "32", "--epochs", "2", "--learning-rate", rate])
    assert result.losses[-1] < 0.8 * result.losses[0]
    assert result.test_accuracy > 0.4


@pytest.mark.parametrize("flags", [(), ("--half",)])
def test_speech_is_read_with_ctc_loss_and_a_beam_search(flags: tuple[str, ...]) -> None:
    result = speech.run(["--epochs", "3", "--num-utterances", "1024", *flags])
    assert sum(result.losses[-4:]) < 0.2 * sum(result.losses[:4])
    assert result.words_read > 0.6  # chance is one in a hundred thousand
