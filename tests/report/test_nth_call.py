"""Every call of the file system may fail while a report, or an executable, is written over an older one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "cache" / "faults.c"


def test_files_stay_whole_and_errors_name_them_whichever_call_fails(tmp_path: Path) -> None:
    shim, folder = tmp_path / "faults.so", tmp_path / "written"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(shim), str(SOURCE), "-ldl"], check=True)
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "tests.report.nth_call", str(folder)], capture_output=True, text=True, check=False,
        env=os.environ | {"LD_PRELOAD": str(shim)},
    )
    assert done.returncode == 0, done.stderr
    for found, wrong in json.loads(done.stdout).values():
        assert wrong == []
        for function in ("open", "write", "fsync", "rename"):
            for error in ("ENOSPC", "EIO"):
                assert found[f"{function} {error}"] >= 1
