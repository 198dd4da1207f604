"""Surroundings: how Python was started, where it runs, and with which rights."""

from __future__ import annotations

import ast
import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEP = """
import sys, torch, torchipu, poptorch
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimiser = torch.optim.SGD(model.parameters(), 0.1)

class Trained(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).square().mean()

step = torchipu.TrainStep(Trained(), optimiser)
first = [float(step(torch.ones(4, 3))) for _ in range(3)]
assert first[2] < first[1] < first[0] or sys.exit("the loss does not fall")
got = poptorch.inferenceModel(torch.nn.ReLU())(-torch.ones(2))
if got.tolist() != [0, 0]:
    sys.exit("wrong")
try:
    poptorch.Options().setExecutionStrategy("none")
except AssertionError as error:
    print(f"{first[0]:.6f}", error)
"""
SURROUNDINGS = {
    "without asserts": (["-O"], {}),
    "warnings are errors": (["-W", "error::UserWarning"], {}),
    "a random order of hashes": ([], {"PYTHONHASHSEED": "random"}),
    "no home": ([], {"HOME": "/nonexistent", "XDG_CACHE_HOME": "/nonexistent"}),
    "a plain locale": ([], {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"}),
    "no terminal": ([], {"TERM": ""}),
}
SURROUNDINGS["all of these"] = (
    [flag for flags, _ in SURROUNDINGS.values() for flag in flags],
    {name: value for _, variables in SURROUNDINGS.values() for name, value in variables.items()},
)


def run_in(surroundings, folder):
    flags, variables = SURROUNDINGS[surroundings]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "aliases"))), **variables}
    done = subprocess.run(
        [sys.executable, *flags, "-c", STEP], env=environment, cwd=folder, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=300, check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip().splitlines()[-1]


@pytest.fixture(scope="module")
def expected():
    """What the program prints in plain surroundings, which are those of the tests."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(STEP, {"__name__": "__main__"})
    return printed.getvalue().strip().splitlines()[-1]


@pytest.mark.slow
@pytest.mark.case(104)
@pytest.mark.suffices(surroundings=["all of these"])
@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_a_program_runs_as_usual(surroundings, tmp_path, expected):
    folder = tmp_path / "a path with spaces é"
    folder.mkdir()
    assert run_in(surroundings, folder) == expected
    assert "setExecutionStrategy takes an execution strategy" in expected


@pytest.mark.case(104)
def test_no_refusal_is_an_assert_that_python_leaves_out():
    """``python -O`` drops asserts; in PopTorch's layer they would be errors that users rely on."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}" for path in sorted((ROOT / "torchipu/poptorch").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert) and node.msg is not None
    ]
    assert found == []
