"""Facts of the distribution: what importing does and refuses, what is shipped, what the build says."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import torchipu
from tests.interpreters import run_behind_torch
from torchipu import installation

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def run_python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh process that finds this checkout."""
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], env=os.environ | {"PYTHONPATH": paths} | environment,
        capture_output=True, text=True, check=False,
    )


def test_importing_loads_neither_torch_nor_numpy() -> None:
    done = run_python("import sys, torchipu; print(sorted({'torch', 'numpy', 'rich', 'tqdm'} & set(sys.modules)))")
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_importing_everything_changes_no_state_of_the_process() -> None:
    code = """
import gc, locale, os, signal, sys, threading, warnings
import torch, torch._dynamo, torch.fx.traceback, torch._functorch.aot_autograd
def state():
    return {
        "threads": torch.get_num_threads(),
        "interop": torch.get_num_interop_threads(),
        "dtype": torch.get_default_dtype(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "denormals": (torch.full((8,), 1e-39) * 0.5).count_nonzero().item(),
        "generator": torch.get_rng_state().sum().item(),
        "grad": torch.is_grad_enabled(),
        "environment": dict(os.environ),
        "handlers": [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)],
        "running": threading.active_count(),
        "gc": gc.get_threshold(),
        "recursion": sys.getrecursionlimit(),
        "switch": sys.getswitchinterval(),
    }
before = state()
import torchipu
for name in torchipu.__all__:
    getattr(torchipu, name)
after = state()
print({name: (before[name], after[name]) for name in before if before[name] != after[name]})
"""
    done = run_behind_torch(code, path=[ROOT])
    assert done.stdout.strip() == "{}", done.stderr


@pytest.mark.parametrize("name", torchipu.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(torchipu, name) is not None


def test_lazy_names_are_the_public_names() -> None:
    assert {*torchipu._MODULE_BY_NAME, "__version__"} == set(torchipu.__all__) == set(dir(torchipu))


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'torchipu' has no attribute 'TrainStop'"):
        torchipu.TrainStop  # noqa: B018 - the access is the test


@pytest.mark.parametrize("version", ["2.10.0", "2.12.1", "2.13.0", "2.13.0+cpu", "2.13.1", "2.13.0a0+git1"])
def test_tested_torch_is_accepted_without_a_word(version: str, recwarn: pytest.WarningsRecorder) -> None:
    installation.check_torch(version)
    assert not recwarn.list


@pytest.mark.parametrize("version", ["2.14.0", "2.15.0+cu132", "2.14.0.dev20260101", "3.0.0"])
def test_newer_torch_is_warned_of(version: str) -> None:
    words = rf"was tested with torch 2\.10 to 2\.13, and torch {re.escape(version)} is"
    with pytest.warns(UserWarning, match=words) as told:
        installation.check_torch(version)
    assert len(told) == 1


@pytest.mark.parametrize("version", ["2.9.1", "1.13.1", "unknown"])
def test_older_torch_is_refused_with_versions_and_fix(version: str) -> None:
    with pytest.raises(ImportError) as refusal:
        installation.check_torch(version)
    assert str(refusal.value) == (
        f"torchipu needs torch 2.10 or newer, and torch {version} is installed\n"
        '  do      pip install "torch>=2.10"'
    )


def test_missing_torch_is_refused_with_fix() -> None:
    with pytest.raises(ImportError, match="torch is not installed\n  do      pip install"):
        installation.check_torch(None)


def test_import_itself_refuses_an_older_torch() -> None:
    code = """
import sys, types
sys.modules["torch"] = types.ModuleType("torch")
sys.modules["torch"].__version__ = "2.9.0"
import torchipu
"""
    done = run_python(code)
    assert done.returncode == 1
    assert "ImportError: torchipu needs torch 2.10 or newer, and torch 2.9.0 is installed" in done.stderr


def test_import_without_kernels_names_the_build_command(tmp_path: Path) -> None:
    package = tmp_path / "torchipu"
    (package / "_kernels").mkdir(parents=True)
    for name in ("__init__.py", "hooks.py", "installation.py", "_kernels/__init__.py"):
        (package / name).write_text((ROOT / "torchipu" / name).read_text(encoding="utf-8"), encoding="utf-8")
    done = run_python("import sys; sys.path.insert(0, sys.argv[1]); import torchipu", str(tmp_path))
    assert done.returncode == 1
    assert "the kernels of torchipu are not built: there is no compiled torchipu._kernels.abi" in done.stderr
    assert "do      python setup.py build_ext --inplace" in done.stderr


def test_torch_range_is_the_same_in_all_places() -> None:
    major, minor = installation.NEWEST_TESTED_TORCH
    oldest, untested = map(installation.dotted, (installation.OLDEST_TORCH, (major, minor + 1)))
    assert f"torch>={oldest},<{untested}" in PYPROJECT["project"]["dependencies"]
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned is not None
    installation.check_torch(pinned[1])


def test_entry_point_and_command_name_what_exists() -> None:
    scripts = PYPROJECT["project"]["scripts"]
    backends = PYPROJECT["project"]["entry-points"]["torch_dynamo_backends"]
    autoload = PYPROJECT["project"]["entry-points"]["torch.backends"]
    for name, value in [*scripts.items(), *backends.items(), *autoload.items()]:
        assert callable(metadata.EntryPoint(name, value, "any").load())
    assert (set(scripts), set(backends)) == ({"torchipu", "poprun"}, {"ipu"})


def test_torch_finds_the_backend_in_a_process_that_never_imported_torchipu() -> None:
    try:
        metadata.distribution("torchipu")
    except metadata.PackageNotFoundError:
        pytest.skip("torchipu is not installed here, only on the path")
    code = """
import sys, torch
before = "torchipu.backend" in sys.modules
compiled = torch.compile(torch.nn.Linear(3, 2), backend="ipu")
print(before, tuple(compiled(torch.ones(4, 3)).shape), "torchipu.backend" in sys.modules)
"""
    done = run_python(code, TORCH_DEVICE_BACKEND_AUTOLOAD="0")  # which imports torchipu for its hooks
    assert done.stdout.strip() == "False (4, 2) True", done.stderr


def test_source_distribution_holds_the_kernel_sources(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    shipped = set((tmp_path / "torchipu.egg-info" / "SOURCES.txt").read_text(encoding="utf-8").splitlines())
    kernels = ROOT / "torchipu" / "_kernels"
    needed = {str(p.relative_to(ROOT)) for p in kernels.iterdir() if p.suffix in (".h", ".pyx", ".pxi", ".pyi")}
    written = [*(kernels / "table").glob("*.py"), *(ROOT / "kernel_build").glob("*.py")]
    needed |= {str(path.relative_to(ROOT)) for path in written}
    assert needed - shipped == set()
    assert {"LICENSE", "constraints.txt", "examples/digits.py", "torchipu/py.typed"} <= shipped
    assert "torchipu/poptorch/compatibility.toml" in shipped
    made = [name for name in shipped if name.endswith((".so", ".c")) and not name.startswith("tests/")]
    assert not made, "these are built"


def test_what_a_wheel_holds_gives_the_names_of_poptorch_popdist_popart_and_horovod(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )
    assert done.returncode == 0, done.stderr
    for kernel in (ROOT / "torchipu" / "_kernels").glob("*.so"):
        (tmp_path / "torchipu" / "_kernels" / kernel.name).symlink_to(kernel)
    code = """
import sys
sys.path.insert(0, sys.argv[1])
import horovod.torch, popart, popdist.poptorch, poptorch, pva, pvti, torch
assert torch.equal(poptorch.inferenceModel(torch.nn.ReLU())(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
print(poptorch.__file__, popart.__file__, popdist.__file__, horovod.__file__, pva.__file__, pvti.__file__)
"""
    done = run_python(code, str(tmp_path))
    ours = tmp_path / "torchipu"
    files = [
        ours / "poptorch" / "__init__.py", ours / "poptorch" / "popart.py", ours / "popdist" / "__init__.py",
        ours / "horovod" / "__init__.py", ours / "pva" / "__init__.py", ours / "pvti" / "__init__.py",
    ]
    assert done.stdout.split() == [str(file) for file in files], done.stderr


def test_build_without_a_compiler_says_what_to_install() -> None:
    build = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    with pytest.raises(SystemExit) as refusal:
        build["refuse_without_compiler"]("no-such-cc")
    assert str(refusal.value) == (
        "torchipu: the kernels need a C compiler, and 'no-such-cc' is not on the PATH.\n"
        "  do      apt-get install gcc python3-dev (Debian, Ubuntu), or set CC to a compiler"
    )


def test_all_files_of_the_page_of_a_report_are_shipped() -> None:
    patterns = PYPROJECT["tool"]["setuptools"]["package-data"]["torchipu"]
    files = [path for path in (ROOT / "torchipu" / "report" / "page").rglob("*.*") if not path.suffix.startswith(".py")]
    assert len(files) > 20
    assert [path for path in files if not any(path.relative_to(ROOT / "torchipu").match(one) for one in patterns)] == []
