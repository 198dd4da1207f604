"""Facts of the Lightning example: replicas and pipelines learn, to what Lightning's own run learns."""

from __future__ import annotations

import pytest

import lightning_digits

FEW = ("--epochs", "2", "--num-samples", "1536")


@pytest.mark.parametrize(("flags", "replicas", "ipus"), [
    ((), 1, 1), (("--devices", "8", "--batch-size", "4"), 8, 1),
    (("--pipelined", "--accumulate", "4", "--batch-size", "4", "--device-iterations", "2"), 1, 2),
], ids=["one", "eight", "pipelined"])
def test_digits_are_learnt(flags: tuple[str, ...], replicas: int, ipus: int) -> None:
    result = lightning_digits.run([*FEW, *flags])
    assert result.accuracy > 0.75
    assert (result.replicas, result.ipus) == (replicas, ipus)


def test_one_ipu_and_the_cpu_agree() -> None:
    ours, theirs = (lightning_digits.run([*FEW, "--epochs", "1", "--accelerator", who]) for who in ("ipu", "cpu"))
    assert ours.updates == theirs.updates == 96
    assert ours.accuracy == pytest.approx(theirs.accuracy, abs=0.01)
