"""The example of a pipeline over processes starts two by itself, and each has half of the weights."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from torch.distributed.checkpoint import FileSystemReader

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline_over_processes.py"


def test_two_processes_train_halves_of_a_model(tmp_path: Path) -> None:
    flags = ["--num-samples", "2560", "--epochs", "1", "--learning-rate", "0.01"]
    command = [sys.executable, str(EXAMPLE), *flags, "--checkpoint", str(tmp_path / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    held = {int(rank): int(count) for rank, count in re.findall(r"process (\d): (\d+) of 79162 weights", done.stdout)}
    assert sum(held.values()) == 79162
    assert set(held) == {0, 1}
    assert float(re.findall(r"Test accuracy: ([\d.]+)%", done.stdout)[0]) > 50
    names = FileSystemReader(tmp_path / "saved").read_metadata().state_dict_metadata
    assert {"model.blocks.0.0.places", "model.blocks.3.1.classes.weight"} <= set(names)
