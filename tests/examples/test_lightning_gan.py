"""Facts of the example with two optimisers: generated digits come closer to real ones, as they do on the CPU."""

from __future__ import annotations

import pytest

import lightning_gan


@pytest.mark.thorough  # the one below runs the same script
def test_generated_digits_come_closer_to_real_ones() -> None:
    result = lightning_gan.run(["--epochs", "8"])
    assert result.distance < 0.85 * result.distance_before
    assert result.updates == 2 * 8 * 45


@pytest.mark.parametrize(("devices", "size"), [("1", "32"), ("2", "16")])
def test_ipus_and_the_cpu_agree(devices: str, size: str) -> None:
    few = ("--epochs", "1", "--num-samples", "768")
    ours = lightning_gan.run([*few, "--devices", devices, "--batch-size", size])
    theirs = lightning_gan.run([*few, "--accelerator", "cpu"])
    assert ours.updates == theirs.updates == 48
    assert ours.distance == pytest.approx(theirs.distance, rel=1e-3)
