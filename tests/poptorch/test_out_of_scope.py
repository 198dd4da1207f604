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
    assert not hasattr(popart, "__all__")


@pytest.mark.parametrize(("code", "told"), [
    ("import popart.ir", "Graphs built with PopART are out of torchipu's scope"),
    ("import popart.ir.ops as ops", "Graphs built with PopART are out of torchipu's scope"),
    ("import popdist.popxl", "torchipu has popdist and popdist.poptorch"),
    ("from popdist.tensorflow import configure", "torchipu has popdist and popdist.poptorch"),
    ("import poptorch.experimental", "PopTorch 3.3's public modules"),
    ("import horovod.tensorflow as hvd", "torchipu has horovod.torch alone"),
    ("from horovod.torch.elastic import run", "without horovod.torch.elastic"),
    ("import horovod.torch as hvd\nhvd.elastic.run", "start it again from the last"),
])
def test_what_a_module_lacks_is_told_at_its_import(code: str, told: str) -> None:
    done = run_python(code)
    assert done.returncode == 1
    assert told in done.stderr.splitlines()[-1]


def test_a_module_that_is_lacking_is_told_of_as_python_tells_of_any() -> None:
    done = run_python("""
import importlib.util
import horovod.torch, poptorch
try:
    import poptorch.nothing
except ModuleNotFoundError as error:
    assert error.name == "poptorch.nothing", error.name
    assert str(error).startswith("No module named 'poptorch.nothing'"), error
try:
    from poptorch import nothing
except ImportError as error:
    assert "cannot import name 'nothing'" in str(error), error
assert importlib.util.find_spec("poptorch.optim") is not None
assert not hasattr(horovod.torch, "nothing")
""")
    assert done.returncode == 0, done.stderr


def test_an_installed_popxl_comes_first(tmp_path: Path) -> None:
    package = tmp_path / "popxl"
    package.mkdir()
    (package / "__init__.py").write_text("REAL = True\n")
    done = run_python(f"import sys; sys.path.append({str(tmp_path)!r})\nimport popxl\nprint(popxl.REAL)")
    assert done.stdout.split() == ["True"], done.stderr
