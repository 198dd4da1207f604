"""Variables of the environment by which users look at the graph of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.poptorch.models import Classifier, batch
from torchipu import poptorch
from torchipu.poptorch import _logging


def compiled() -> poptorch.PoplarExecutor:
    step = poptorch.inferenceModel(Classifier())
    step.compile(batch(4)[0])
    return step


@pytest.mark.parametrize(("length", "is_cut"), [("40", True), ("0", False), ("", False), ("many", False)])
def test_the_trace_shows_as_much_of_the_graph_as_asked_for(
    length: str, is_cut: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POPTORCH_MAX_GRAPH_LEN", length)
    monkeypatch.setattr(_logging.logger, "level", _logging.TRACE)
    _logging.logger.manager._clear_cache()
    compiled()
    monkeypatch.undo()
    _logging.logger.manager._clear_cache()
    _, _, text = capsys.readouterr().err.partition("Graph of the compiled model:\n")
    assert text
    assert ("POPTORCH_MAX_GRAPH_LEN=0 shows all" in text) == is_cut
    assert ("relu" in text) != is_cut
    if is_cut:
        assert text.index("\n... (") <= 40


def test_the_ops_are_written_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "graph"))
    step = compiled()
    written = json.loads((tmp_path / "graph").read_text(encoding="utf-8"))
    assert written == json.loads(step._debugGetPopartIR())
    assert "MatMul" in {op["type"] for op in written["maingraph"]}
