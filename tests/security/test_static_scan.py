"""Nothing of ours runs what a file says: a scan of all sources for what could, with exceptions and their reasons."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREES = ("torchipu", "aliases", "kernel_build", "examples", "benchmarks")
EXECUTING = frozenset({
    "eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "os.system", "os.popen",
    "tempfile.mktemp", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "torch.jit.load",
    "torch.package.PackageImporter", "runpy.run_path", "runpy.run_module", "code.interact",
    "importlib.util.spec_from_file_location",
})
"""Calls that run what they are given, or may."""
PICKLES = frozenset({"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "dbm"})
HARMLESS = frozenset({"pickle.PicklingError", "pickle.UnpicklingError"})
EXCEPTIONS = {
    ("torchipu/ir/formulas.py", "exec"): "formulas of sizes that were parsed before, of names and numbers alone",
    ("torchipu/capture/process_wide.py", "exec"): "a function whose name is torch's",
    ("kernel_build/source.py", "importlib.util.spec_from_file_location"): "the table of kernels beside it, in a build",
    ("torchipu/script.py", "runpy.run_path"): "the user's own script, which the command line names",
}
"""By file and call: why it cannot be reached by what a file says."""


def calls_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and full name of each call that could run what a file says."""
    tree = ast.parse(source)
    names = dict(_imported(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = _name_of(node.func, names)
            if name and _is_forbidden(name, node):
                yield node.lineno, name


def _imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield names that imports bind, each with what it stands for."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name if alias.asname else (
                    alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _name_of(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        inner = _name_of(node.value, names)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _is_forbidden(name: str, call: ast.Call) -> bool:
    keywords = {one.arg: one.value for one in call.keywords}
    if name in HARMLESS:
        return False
    if name in EXECUTING or name.partition(".")[0] in PICKLES:
        return True
    if name == "torch.load":
        return not _is(keywords.get("weights_only"), True)
    if name in ("numpy.load", "np.load"):
        return not _is(keywords.get("allow_pickle"), False)
    if name.startswith("subprocess.") or name in ("os.spawnl", "os.spawnv"):
        return "shell" in keywords and not _is(keywords["shell"], False)
    return False


def _is(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def sources() -> list[Path]:
    """Return all files of Python that are installed, build or are shown."""
    found = [path for tree in TREES for path in sorted((ROOT / tree).rglob("*.py"))]
    return [ROOT / "setup.py", *found]


def test_nothing_of_ours_runs_what_a_file_says() -> None:
    found: dict[tuple[str, str], list[int]] = {}
    files = sources()
    assert len(files) > 500
    for path in files:
        for line, name in calls_of(path.read_text(encoding="utf-8")):
            found.setdefault((str(path.relative_to(ROOT)), name), []).append(line)
    unknown = {where: lines for where, lines in found.items() if where not in EXCEPTIONS}
    assert not unknown, "these could run what a file says: use JSON, safetensors or SQLite, or say why they do not"
    assert set(EXCEPTIONS) == set(found), "an exception that is not needed any more"


@pytest.mark.parametrize("source", [
    "import pickle\npickle.load(file)", "from pickle import loads as read\nread(data)", "import dill as d\nd.load(f)",
    "import torch\ntorch.load(path)", "import torch\ntorch.load(path, weights_only=False)",
    "import numpy as np\nnp.load(path)", "import numpy as np\nnp.load(path, allow_pickle=True)",
    "eval(text)", "exec(text)", "import os\nos.system(text)", "from os import popen\npopen(text)",
    "import subprocess\nsubprocess.run(text, shell=True)", "import yaml\nyaml.load(text)",
    "import marshal\nmarshal.loads(x)",
    "import tempfile\ntempfile.mktemp()", "import torch\ntorch.jit.load(path)", "import pickle\npickle.Unpickler(file)",
])
def test_the_scan_finds_what_it_is_to_find(source: str) -> None:
    assert list(calls_of(source))


@pytest.mark.parametrize("source", [
    "import torch\ntorch.load(path, weights_only=True)", "import numpy as np\nnp.load(path, allow_pickle=False)",
    "model.eval()", "import re\nre.compile(text)", "import torch\ntorch.compile(model)", "import json\njson.load(file)",
    "import subprocess\nsubprocess.run([text])", "import pickle\nraise pickle.PicklingError(text)",
])
def test_the_scan_leaves_the_rest_alone(source: str) -> None:
    assert not list(calls_of(source))
