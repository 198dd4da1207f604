"""``torchipu check script.py``: what it says of the steps of a script, and how it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from torchipu.cli import main
from torchipu.optable.spec import TABLE

SCRIPT = """
import sys
import torch
import poptorch
import torchipu
from torch import nn

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x, labels=None):
        out = torch.nn.functional.gelu(self.layer(x))
        return out if labels is None else (out, torch.nn.functional.cross_entropy(out, labels))

torch.manual_seed(0)
x, labels = torch.randn(8, 6), torch.randint(0, 3, (8,))
model = Classifier()
options = poptorch.Options()
options.Training.gradientAccumulation(4)
training = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
for _ in range(2):
    training(x, labels)
torchipu.InferenceStep(Classifier().eval())(x)
if "shares" in sys.argv:
    model, shared = Classifier(), torchipu.TensorLocation(replicated_sharding=True)
    options = torchipu.Options(replicas=2, optimiser_state_location=shared)
    torchipu.TrainStep(model, poptorch.optim.LAMB(model.parameters(), lr=0.1), options)(x, labels)
if "fails" in sys.argv:
    raise RuntimeError("of this script")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_each_step_is_checked_once(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", script]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("  ")]
    assert len(lines) == 2
    assert lines[0].startswith("training of ")
    assert lines[1].startswith("inference of Classifier: host and tiles agree in 1 results, ")
    assert all("host and tiles agree in " in line for line in lines)


def test_what_cannot_be_checked_is_named_with_its_reason(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", script, "shares"]) == 0
    out = capsys.readouterr().out
    assert "training of Classifier: not checked: ipu.lamb.default scales by norms of whole weights" in out


def test_a_difference_is_told_with_op_and_line(
    script: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = TABLE["aten.gelu.default"]
    wrong = replace(spec, instruction=lambda chain, op: chain.run("f_tanh", chain.argument(op, "self", "f")))
    monkeypatch.setitem(TABLE, "aten.gelu.default", wrong)
    assert main(["check", script]) == 1
    out = capsys.readouterr().out
    assert "first   aten.gelu.default, superstep " in out
    assert "train.py:14" in out


def test_a_script_that_fails_tells_what_was_checked_before(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", script, "fails"]) == 1
    out = capsys.readouterr().out
    assert "agree in" in out
    assert "the script ended early: RuntimeError: of this script" in out


def test_a_script_without_steps_and_one_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "empty.py").write_text("")
    assert main(["check", str(tmp_path / "empty.py")]) == 0
    assert "no step was called" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "none.py")]) == 2
    assert "there is no script" in capsys.readouterr().err
