"""Hostile files of all kinds, before every reader: nothing runs, and each is an error of ours, in time and memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

FILES = 200


@pytest.mark.parametrize("seed", [0, 1])
def test_hostile_files_are_refused_and_run_nothing(seed: int, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.security.hostile", str(tmp_path), str(FILES + 100 * seed), str(seed)],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["files"] >= FILES - 10
    assert found["readers"] >= 9
    assert found["wrong"] == []
    assert found["forbidden"] == {}
    assert not found["ran"]
    assert not found["others changed"]
    # Most are refused; a change of a machine's number or of an option's value leaves a sound file.
    assert found["outcomes"]["refused"] > found["files"] / 2
    assert found["outcomes"].get("read", 0) < found["files"] / 10


def test_the_harness_sees_a_reader_that_unpickles(tmp_path: Path) -> None:
    program = (
        "import os, sys, json; os.environ['TORCHIPU_CACHE'] = '0'\n"
        "from pathlib import Path; import tests.security.hostile as hostile, pickle\n"
        "folder = Path(sys.argv[1]); (folder / 'one').write_bytes(pickle.dumps(5))\n"
        "hostile.samples = lambda folder: {'naive': (folder / 'one', lambda path: pickle.loads(path.read_bytes()))}\n"
        "print(json.dumps(hostile.read_all(folder, 16, 0)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ran"]
    assert found["forbidden"]["pickle.find_class"] > 0
    assert found["wrong"]
