"""``torchipu report --fail-if``: limits of figures decide the exit status, and what is no limit says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import torchipu
from torchipu.cli import main
from torchipu.errors import ReportError
from torchipu.report.limits import limit_of

SUMMARY = {
    "fullest_tile_bytes": 950, "tile_memory_bytes": 1000, "samples_per_second": 120.5, "fits": True, "title": "M",
}


@pytest.mark.parametrize(("text", "words"), [
    ("max_tile>95%", ""), ("max_tile>=95%", "max_tile is 0.95, and may not be >= 0.95 (--fail-if max_tile>=95%)"),
    ("max_tile > 0.9", "max_tile is 0.95, and may not be > 0.9 (--fail-if max_tile > 0.9)"),
    ("samples_per_second<200", "samples_per_second is 120.5, and may not be < 200 (--fail-if samples_per_second<200)"),
    ("samples_per_second<100", ""), ("fits==0", ""), ("fullest_tile_bytes!=950", ""),
])
def test_a_limit_is_broken_or_holds(text: str, words: str) -> None:
    assert limit_of(text).broken(SUMMARY) == words


@pytest.mark.parametrize("text", ["", "max_tile", "max_tile>", ">95%", "max_tile>high", "max_tile=>9", "a b>1", "x>1e"])
def test_what_is_no_limit_is_refused(text: str) -> None:
    with pytest.raises(ReportError, match="--fail-if expects a figure, one of >=, <=, ==, !=, >, <, and a number, got"):
        limit_of(text)


def test_figures_that_there_are_not_and_words_are_refused() -> None:
    with pytest.raises(ReportError, match=r"there is no figure 'max_tiles'; did you mean 'max_tile'\?"):
        limit_of("max_tiles>1").broken(SUMMARY)
    with pytest.raises(ReportError, match="title is 'M', which is no number"):
        limit_of("title>1").broken(SUMMARY)


def test_the_command_fails_where_a_limit_is_broken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step = torchipu.InferenceStep(nn.Linear(4, 4))
    step.compile(torch.zeros(2, 4))
    step.report(tmp_path / "run", what_if_seconds=0)
    run = str(tmp_path / "run")
    assert main(["report", "--fail-if", "max_tile>95%", "--fail-if", "graph_breaks>0", run]) == 0
    assert main(["report", "--fail-if", "max_tile>1%", run]) == 1
    assert "may not be > 0.01 (--fail-if max_tile>1%)" in capsys.readouterr().err
    assert main(["report", "--fail-if", "tiles", run]) == 2
    assert "torchipu report: --fail-if expects a figure" in capsys.readouterr().err
