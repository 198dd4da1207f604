"""Importing: ``poptorch`` is ``torchipu.poptorch``, module by module, and stands aside for a real PopTorch."""

from __future__ import annotations

import ast
import importlib
import pickle
import pkgutil
import subprocess
from pathlib import Path

import pytest

import torchipu.poptorch
from tests.interpreters import run_behind_torch

ROOT = Path(__file__).parents[2]
PREFIX = "torchipu.poptorch."
MODULES = [
    module.name.removeprefix(PREFIX) for module in pkgutil.walk_packages(torchipu.poptorch.__path__, PREFIX)
]
DOORS = (
    "_args_parser", "_dataloader", "_impl", "_options_impl", "_poplar_executor", "_utils", "autocasting", "ops",
    "optim", "options", "profiling", "testing",
)
"""Modules of PopTorch's that only lead to others."""
FORMER = {
    "blocks": "Block", "instrumentation": "restore_module", "option_groups": "_TrainingOptions",
    "strategies": "PipelinedExecution", "optim_attributes": "VariableAttributes",
    "_poplar_executor": "_restored", "options": "Options", "optim": "AdamW", "autocasting": "Policy",
    "enums": "OutputMode",
}
"""Names by the modules in which pickles look for them that were written before those were moved."""


def run_python(code: str, *first_on_path: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a process that has nothing of ours, and finds this checkout and its aliases."""
    return run_behind_torch(code, path=[*first_on_path, ROOT, ROOT / "aliases"])


def test_poptorch_is_the_module_of_torchipu() -> None:
    assert importlib.import_module("poptorch") is torchipu.poptorch


def test_submodules_are_the_same_objects_under_both_names() -> None:
    done = run_python(f"""
import importlib, operator, sys, poptorch
for name in {MODULES}:
    alias, own = (importlib.import_module(f"{{root}}.{{name}}") for root in ("poptorch", "torchipu.poptorch"))
    assert alias is own is operator.attrgetter(name)(poptorch) is sys.modules[f"poptorch.{{name}}"], name
    assert own.__name__ == own.__spec__.name == f"torchipu.poptorch.{{name}}", own.__spec__
""")
    assert done.returncode == 0, done.stderr


def test_submodules_imported_under_their_own_names_first_are_not_loaded_again() -> None:
    done = run_python(f"""
import importlib
for name in {MODULES}:
    own, alias = (importlib.import_module(f"{{root}}.{{name}}") for root in ("torchipu.poptorch", "poptorch"))
    assert alias is own, name
""")
    assert done.returncode == 0, done.stderr


def test_missing_submodule_is_named_as_the_user_wrote_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'poptorch\.optimisers'"):
        importlib.import_module("poptorch.optimisers")


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'poptorch' has no attribute 'trainModel'"):
        torchipu.poptorch.trainModel  # noqa: B018 - the access is the test


@pytest.mark.parametrize("name", torchipu.poptorch.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(torchipu.poptorch, name) is not None


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from poptorch import *", names)
    assert set(torchipu.poptorch.__all__) <= set(names)


def test_pickle_written_under_the_alias_is_read_under_the_alias() -> None:
    poptorch = importlib.import_module("poptorch")
    assert pickle.loads(pickle.dumps(poptorch.OutputMode.EveryN)) is torchipu.poptorch.OutputMode.EveryN


@pytest.mark.parametrize("name", DOORS)
def test_modules_of_poptorch_lead_to_those_that_hold_what_they_name(name: str) -> None:
    door = importlib.import_module(f"poptorch.{name}")
    for member in door.__all__:
        assert getattr(door, member).__module__ not in (door.__name__, __name__), member
    tree = ast.parse(Path(door.__file__ or "").read_text(encoding="utf-8"))
    assert not [node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]


@pytest.mark.parametrize("module", FORMER)
def test_pickle_written_before_modules_were_moved_is_read(module: str) -> None:
    found = pickle.loads(f"c{PREFIX}{module}\n{FORMER[module]}\n.".encode())
    assert found.__name__ == FORMER[module]
    assert pickle.loads(pickle.dumps(found)) is found


def test_popart_gives_its_enumerations() -> None:
    popart = importlib.import_module("popart")
    assert int(popart.SyntheticDataMode.RandomNormal) == 2
    assert int(getattr(popart.RecomputationType, "None")) == int(popart.RecomputationType.NoRecompute) == 0
    assert int(popart.RecomputationType.RecomputeAll) == 4
    assert popart is importlib.import_module("torchipu.poptorch.popart")


@pytest.mark.parametrize("same_folder", [True, False])
def test_stands_aside_for_a_real_poptorch(tmp_path: Path, same_folder: bool) -> None:
    real = tmp_path / "site"
    (real / "poptorch").mkdir(parents=True)
    (real / "poptorch" / "__init__.py").write_text("__version__ = 'real'", encoding="utf-8")
    (real / "poptorch" / "optim.py").write_text("WHOSE = 'real'", encoding="utf-8")
    ours = real if same_folder else tmp_path / "ours"
    ours.mkdir(exist_ok=True)
    (ours / "poptorch.py").write_text((ROOT / "aliases" / "poptorch.py").read_text(encoding="utf-8"), encoding="utf-8")
    done = run_python(
        "import poptorch, poptorch.optim, torchipu.poptorch\n"
        "print(poptorch.__version__, poptorch.optim.WHOSE, torchipu.poptorch.__version__)", ours, real,
    )
    assert done.stdout.split() == ["real", "real", "3.3.0"], done.stderr
    if not same_folder:
        assert f"poptorch is installed at {real / 'poptorch' / '__init__.py'}: torchipu stands aside" in done.stderr


def test_a_working_folder_named_poptorch_is_no_installation(tmp_path: Path) -> None:
    (tmp_path / "poptorch").mkdir()
    done = run_python("import poptorch; print(poptorch.__name__)", ROOT / "aliases", tmp_path)
    assert (done.stdout.strip(), done.stderr) == ("torchipu.poptorch", "")


def test_importing_loads_no_compiler() -> None:
    done = run_python(
        "import torch, sys; before = set(sys.modules); import poptorch\n"
        "print(sorted(m for m in set(sys.modules) - before if m.startswith(('torch.', 'torch._dynamo', 'torchipu.capt"
        "ure', 'torchipu.step', 'torchipu.backend', 'torchipu.target', 'torchipu.ir', 'numpy', 'tqdm', 'filelock'))))"
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
