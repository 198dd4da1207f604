"""Programs of PopART and PopXL: what they import says that they are out of scope, and what to use instead."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.poptorch.test_names import run_python


@pytest.mark.parametrize("code", [
    "import popxl", "from popxl import ops", "import popxl.ops as ops", "import popxl as pxl; pxl.Ir()",
])
def test_popxl_is_refused_at_import(code: str) -> None:
    done = run_python(code)
    assert done.returncode == 1
    assert "ImportError: popxl: programs of PopXL are out of torchipu's scope." in done.stderr
    assert 'torch.compile(model, backend="ipu")' in done.stderr


@pytest.mark.parametrize("code", [
    "import popart\npopart.Builder()", "from popart import Builder", "from popart import InferenceSession, DataFlow",
    "import popart\nbuilder = popart.Builder(opsets={})",
])
def test_what_builds_graphs_of_popart_is_refused(code: str) -> None:
    done = run_python(code)
    assert done.returncode == 1
    assert "graphs built with PopART are out of torchipu's scope" in done.stderr
    assert "poptorch.trainingModel" in done.stderr
    assert "torchipu.from_onnx" in done.stderr


@pytest.mark.parametrize("code", ["import popxl_addons as addons", "from popxl_addons.layers import Linear"])
def test_the_layers_of_popxl_are_refused_at_import(code: str) -> None:
    done = run_python(code)
    assert done.returncode == 1
    assert "ImportError: popxl_addons: programs of PopXL are out of torchipu's scope." in done.stderr
    assert "torch.nn's layers" in done.stderr


def test_the_enumerations_of_popart_are_there_and_unknown_names_are_plain_errors() -> None:
    popart = importlib.import_module("torchipu.poptorch.popart")
    assert popart.SyntheticDataMode.Off == 0
    with pytest.raises(AttributeError, match="module 'popart' has no attribute 'Bilder'"):
        popart.Bilder  # noqa: B018
    assert not hasattr(popart, "__path__")


def test_an_installed_popxl_comes_first(tmp_path: Path) -> None:
    package = tmp_path / "popxl"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n")
    done = run_python(f"import sys; sys.path.append({str(tmp_path)!r})\nimport popxl\nprint(popxl.REAL)")
    assert done.stdout.split() == ["True"], done.stderr
