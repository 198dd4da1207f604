"""Training does not take more and more memory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_BYTES = 2 << 20


@pytest.mark.parametrize("door", ["step", "compile"])
def test_resident_memory_stays_flat_over_steps(door):
    """A shorter run than the 2,000 steps of the requirement; a leak of one batch a step would show three times over."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.models.steps_in_memory", door, "300"], cwd=ROOT, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < MOST_BYTES
