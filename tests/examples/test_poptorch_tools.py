"""Facts of the PopTorch examples that load data, look into models and write programs to files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.nn.functional import avg_pool2d, cross_entropy

import data_loading
import observing_tensors
import precompile
from digits import load_digits

FEW = ("--num-samples", "128", "--batch-size", "8", "--device-iterations", "4")


def test_every_way_to_load_gives_all_images(capsys: pytest.CaptureFixture[str]) -> None:
    found = data_loading.run([
        *FEW, "--epochs", "1", "--milliseconds-per-image", "0.01", "--worker-batch-size", "5",
        "--sharing-strategy", "Fork",
    ])
    assert list(found) == ["synchronous", "synchronous, workers", "asynchronous", "rebatched stream, workers"]
    for throughput in found.values():
        assert throughput.num_images == 128
        assert throughput.loaded > 0
        assert throughput.trained > 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in found)


def test_stream_is_shared_among_workers() -> None:
    digits = load_digits(None, 10)
    dataset = data_loading.PreparedDigits(digits.train_images, digits.train_labels, seconds=0)
    loader = torch.utils.data.DataLoader(data_loading.StreamedDigits(dataset), batch_size=5, num_workers=2)
    images = torch.cat([images for images, _ in loader])
    assert sorted(images.sum((1, 2, 3)).tolist()) == sorted(digits.train_images.sum((1, 2, 3)).tolist())


def test_what_is_observed_is_what_pytorch_computes() -> None:
    arguments = [*FEW[:4], "--device-iterations", "1", "--epochs", "1", "--num-layers", "2", "--width", "16"]
    flags = observing_tensors.parse_arguments([*arguments, "--activation", "tanh"])
    seen = observing_tensors.run([*arguments, "--num-samples", "8", "--activation", "tanh"])
    assert seen is not None
    torch.manual_seed(flags.seed)
    model = observing_tensors.DeepNetwork(2, 16, "tanh").double()
    digits = load_digits(None, 8)
    # One micro-batch holds all images, in another order: sums over them do not depend on it, rows do.
    images, labels = digits.train_images.double(), digits.train_labels
    loss = model(images, labels)
    loss.backward()
    assert seen.losses == pytest.approx([loss.item()], rel=1e-5)
    for layer in range(2):
        weight = model.layers[layer].weight
        assert seen.gradient_norms[f"layers.{layer}.weight"] == pytest.approx([weight.grad.norm().item()], rel=1e-4)
    states = avg_pool2d(images, 2).flatten(1)
    for layer in model.layers:
        states = torch.tanh(layer(states))
    torch.testing.assert_close(
        seen.activations.double().sum(0), states.detach().sum(0), rtol=1e-4, atol=1e-4,
    )
    assert cross_entropy(model.head(states), labels).item() == pytest.approx(seen.losses[0], rel=1e-5)
    first = model.layers[0].weight
    torch.testing.assert_close(
        seen.updated.double(), (first - flags.learning_rate * first.grad).detach(), rtol=1e-4, atol=1e-6,
    )


def test_names_of_all_tensors_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert observing_tensors.run([*FEW, "--list", "--num-layers", "1"]) is None
    printed = capsys.readouterr().out.splitlines()
    assert {"layers.0.weight", "Gradient___layers.0.weight", "UpdatedVar___layers.0.weight"} <= set(printed)


TRAINING = ("--num-samples", "256", "--batch-size", "8", "--device-iterations", "4", "--epochs", "1")


def test_program_from_a_file_trains_as_one_compiled_here(tmp_path: Path) -> None:
    file = ("--file", str(tmp_path / "digits.poptorch"))
    compiled = precompile.run(["compile", *file, *TRAINING])
    assert compiled.losses == ()
    assert compiled.file_bytes > 1000
    loaded = precompile.run(["run", *file, *TRAINING])
    rebuilt = precompile.run(["run", *file, "--rebuild", *TRAINING])
    assert len(loaded.losses) == 8
    assert loaded == rebuilt
    flags = precompile.parse_arguments(TRAINING)
    executor = precompile.make_training_model(precompile.make_options(flags), flags)
    digits = load_digits(None, 32)
    assert executor.isCompiled() is False
    _, losses = executor(digits.train_images, digits.train_labels)
    assert losses.shape == (4,)


def test_file_without_the_model_is_smaller_and_needs_the_code(tmp_path: Path) -> None:
    path = tmp_path / "program.poptorch"
    whole = precompile.run(["compile", "--file", str(path), *TRAINING]).file_bytes
    assert precompile.run(["compile", "--file", str(path), "--program-only", *TRAINING]).file_bytes < whole
    with pytest.raises(AssertionError, match="was exported without the model"):
        precompile.run(["run", "--file", str(path), *TRAINING])
    assert len(precompile.run(["run", "--rebuild", "--file", str(path), *TRAINING]).losses) == 8


def test_action_without_a_file_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        precompile.parse_arguments(["run"])
    assert "run needs --file" in capsys.readouterr().err
