"""Facts of the example that saves and loads with torch.distributed.checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest

import distributed_checkpoint


def test_two_runs_train_as_one_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parted = [
        loss for _ in range(2)
        for loss in distributed_checkpoint.run(["--folder", str(tmp_path / "parted"), "--updates", "3"])
    ]
    whole = distributed_checkpoint.run(["--folder", str(tmp_path / "whole"), "--updates", "6"])
    assert parted == whole
    assert "Updates 3 to 6" in capsys.readouterr().out


def test_a_checkpoint_that_was_not_finished_is_left_aside(tmp_path: Path) -> None:
    distributed_checkpoint.run(["--folder", str(tmp_path), "--updates", "1"])
    (tmp_path / "update-2").mkdir()
    (tmp_path / "update-2" / "__0_0.distcp").write_bytes(b"half of it")
    assert distributed_checkpoint.newest(tmp_path) == tmp_path / "update-1"
