"""Facts of the demo and of its data."""

from __future__ import annotations

import gzip
import os
import runpy
import shlex
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from digits import MNIST_STEMS, find_mnist, load_digits, read_idx, shift_and_turn
from mnist_pipelined import parse_arguments, run


def idx(values: torch.Tensor) -> bytes:
    """Return the idx file of unsigned bytes."""
    sizes = values.shape
    return struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + values.to(torch.uint8).numpy().tobytes()


def write_mnist(folder: Path, *, compressed: bool) -> tuple[torch.Tensor, ...]:
    """Write four small files in the format of MNIST and return what they hold."""
    generator = torch.Generator().manual_seed(0)
    held = tuple(
        torch.randint(256, (count, 28, 28), generator=generator) if "images" in stem
        else torch.randint(10, (count,), generator=generator)
        for stem, count in zip(MNIST_STEMS, (6, 6, 4, 4), strict=True)
    )
    folder.mkdir(parents=True)
    for stem, values in zip(MNIST_STEMS, held, strict=True):
        content = idx(values)
        name = f"{stem}.gz" if compressed else stem
        (folder / name).write_bytes(gzip.compress(content) if compressed else content)
    return held


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("below", ["MNIST/raw", "raw", "."])
def test_mnist_is_read_where_torchvision_leaves_it(tmp_path: Path, below: str, compressed: bool) -> None:
    root = tmp_path / "data"
    train_images, train_labels, _, test_labels = write_mnist(root / below, compressed=compressed)
    digits = load_digits(root)
    assert digits.name == "MNIST"
    assert digits.train_images.shape == (6, 1, 28, 28)
    assert torch.equal(digits.train_labels, train_labels)
    assert torch.equal(digits.test_labels, test_labels)
    expected = (train_images.double() - train_images.double().mean()) / train_images.double().std()
    torch.testing.assert_close(digits.train_images[:, 0].double(), expected, rtol=1e-5, atol=1e-5)


def test_folder_with_a_file_missing_is_not_mnist(tmp_path: Path) -> None:
    write_mnist(tmp_path / "raw", compressed=False)
    (tmp_path / "raw" / MNIST_STEMS[1]).unlink()
    assert find_mnist(tmp_path) is None
    assert load_digits(tmp_path, 10).name == "scikit-learn digits"


def test_missing_folder_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="--data /no/such/folder: there is no such folder"):
        load_digits("/no/such/folder")


@pytest.mark.parametrize("damage", [b"", b"\0\0\x08", b"\0\0\x0d\x01\0\0\0\0", idx(torch.ones(3, 2))[:-1]])
def test_damaged_idx_file_is_an_error(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(damage)
    with pytest.raises(ValueError, match="no idx file of unsigned bytes, or is cut short"):
        read_idx(path)


def test_held_back_scans_are_not_trained_on() -> None:
    digits = load_digits(None, 1437)  # one round: nothing is moved yet
    assert (len(digits.train_images), len(digits.test_images)) == (1437, 360)
    distances = torch.cdist(digits.test_images.flatten(1), digits.train_images.flatten(1))
    assert distances.min() > 1e-3


def test_data_are_the_same_each_time() -> None:
    first, second = load_digits(None, 2000), load_digits(None, 2000)
    assert torch.equal(first.train_images, second.train_images)
    assert torch.equal(first.test_labels, second.test_labels)


def test_repeated_scans_are_moved_a_little() -> None:
    image = torch.zeros(64, 1, 28, 28)
    image[..., 12:16, 12:16] = 1
    moved = shift_and_turn(image, first_unmoved=1)
    assert torch.equal(moved[0], image[0])
    rows = torch.arange(28.0)
    weight = moved.sum((1, 2, 3))
    centre = torch.stack(((moved.sum((1, 3)) * rows).sum(1), (moved.sum((1, 2)) * rows).sum(1)), 1) / weight[:, None]
    offset = (centre - 13.5).abs().max(1).values
    assert offset[1:].min() > 0
    assert offset.max() <= 2.01


@pytest.mark.parametrize("flag", ["--batch-size", "--epochs", "--learning-rate"])
def test_flag_that_is_not_above_zero_is_refused(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([flag, "0"])
    assert "0 is not above zero" in capsys.readouterr().err


def test_too_few_samples_for_a_call_are_refused() -> None:
    with pytest.raises(SystemExit, match=r"one call takes 4000 samples .* there are 100"):
        run(["--num-samples", "100"])


SMALL = ("--epochs", "1", "--num-samples", "8400", "--batch-size", "8", "--gradient-accumulation", "7")


def test_demo_learns_and_sums_up(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    result = run([*SMALL, "--profile", "--profile-dir", str(tmp_path)])
    assert result.test_accuracy > 0.9
    captured = capsys.readouterr()
    assert "Graph compilation: 100%" in captured.err
    assert "Test accuracy" in captured.out
    assert (tmp_path / "profile.txt").stat().st_size > 0


def test_pipelined_and_sharded_demos_have_the_same_losses() -> None:
    few = ("--epochs", "2", "--num-samples", "1120", "--batch-size", "8", "--gradient-accumulation", "7")
    assert run([*few, "--strategy", "pipelined"]).losses == run([*few, "--strategy", "sharded"]).losses


def test_debug_writes_each_stage_of_the_compiler(tmp_path: Path) -> None:
    run([*SMALL[:2], "--num-samples", "560", *SMALL[4:], "--debug", "--profile-dir", str(tmp_path)])
    assert len(list((tmp_path / "ir").glob("*.txt"))) >= 7


def test_the_last_line_is_a_command_that_shows_the_run_as_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    root = Path(__file__).parents[2]
    shown, browser = tmp_path / "shown", tmp_path / "browser"
    browser.write_text(f"#!/bin/sh\nprintf %s \"$1\" > {shlex.quote(str(shown))}\n")
    browser.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    script = str(root / "examples" / "mnist_pipelined.py")
    monkeypatch.setattr(sys, "argv", [
        script, "--num-samples", "800", "--batch-size", "8", "--device-iterations", "1", "--epochs", "2",
    ])
    runpy.run_path(script, run_name="__main__")
    command = shlex.split(capsys.readouterr().out.splitlines()[-1].removeprefix("To see it as a picture: "))
    assert command[1:5] == ["-m", "torchipu", "report", "--open"]
    paths = os.pathsep.join([str(root), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = os.environ | {"BROWSER": f"{browser} %s", "PYTHONPATH": paths}
    subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    page = tmp_path / "report" / "mnist_pipelined" / "1-training" / "report.html"
    assert shown.read_text() == page.as_uri()
    assert "<title>1-training" in page.read_text(encoding="utf-8")
