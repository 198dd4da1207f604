"""The bar of `showCompilationProgressBar`: on standard error, terminal or not, unless it is switched off."""

from __future__ import annotations

import datetime
import re

import pytest
import torch
from torch import nn

from tests.poptorch.models import Classifier, batch
from torchipu import poptorch

X = torch.ones(2, 3)


def test_compilation_shows_a_bar_on_captured_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    step = poptorch.inferenceModel(nn.Linear(3, 3))
    step.compile(X)
    printed = capsys.readouterr()
    assert re.search(r"Graph compilation: 100%\|.*\| 100/100 \[", printed.err)
    assert printed.err.index("Graph compilation:   0%") < printed.err.index("Graph compilation: 100%")
    assert printed.out == ""
    step(X)
    assert capsys.readouterr().err == ""  # compiled already


def test_training_shows_one_bar_per_compilation(capsys: pytest.CaptureFixture[str]) -> None:
    step = poptorch.trainingModel(Classifier())
    for size in (4, 2):
        step(*batch(size))
        shown = capsys.readouterr().err
        assert shown.endswith("it/s]\n")
        # A bar is drawn again when it is closed, if some time has passed; it ends one line.
        assert shown.count("\n") == 1
        assert "Graph compilation: 100%" in shown
        step.destroy()


def test_the_bar_can_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    step = poptorch.inferenceModel(nn.Linear(3, 3), poptorch.Options().showCompilationProgressBar(False))
    step(X)
    assert capsys.readouterr().err == ""
    with pytest.raises(poptorch.Error, match="Please set showCompilationProgressBar option"):
        step.compilationTime()
    shown = poptorch.inferenceModel(nn.Linear(3, 3))
    shown(X)
    assert isinstance(shown.compilationTime(), datetime.timedelta)


def test_a_model_that_does_not_compile_leaves_an_unfinished_bar(capsys: pytest.CaptureFixture[str]) -> None:
    class Wrong(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("of the model")

    with pytest.raises(ValueError, match="of the model"):
        poptorch.inferenceModel(Wrong())(X)
    printed = capsys.readouterr().err
    assert "Graph compilation:" in printed
    assert "100%" not in printed
    assert printed.endswith("\n")  # what is printed next begins a line
