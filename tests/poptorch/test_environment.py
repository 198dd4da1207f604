"""Variables of the environment by which users look at the graph of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.poptorch.models import Classifier, batch
from torchipu import poptorch
from torchipu.poptorch import _logging
from torchipu.poptorch.executor.machine import target_of


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


def test_a_graph_that_cannot_be_written_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("POPTORCH_EXPORT_PROTO_FILE", str(tmp_path / "nothere" / "graph"))
    caplog.set_level("WARNING", logger=_logging.logger.name)
    step = compiled()
    assert step.isCompiled()
    assert "POPTORCH_EXPORT_PROTO_FILE" in caplog.text


@pytest.mark.parametrize(
    ("variables", "tiles"),
    [
        ({}, 1472),
        ({"POPTORCH_IPU_MODEL": "1"}, 1472),
        ({"POPTORCH_IPU_MODEL": "1", "POPTORCH_IPU_MODEL_VERSION": "ipu1"}, 1216),
        ({"POPTORCH_SMALL_IPU_MODEL": "1"}, 4),
        ({"POPTORCH_SMALL_IPU_MODEL": "1", "POPTORCH_IPU_MODEL_VERSION": "ipu1"}, 4),
        ({"POPTORCH_SMALL_IPU_MODEL": "1", "POPTORCH_IPU_MODEL": "1"}, 1472),
        ({"POPTORCH_SMALL_IPU_MODEL": "0"}, 1472),
    ],
)
def test_the_small_model_has_four_tiles(
    variables: dict[str, str], tiles: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert target_of(poptorch.Options()).num_tiles == tiles


def test_a_program_runs_on_the_small_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_SMALL_IPU_MODEL", "1")
    model, (x, _) = Classifier(), batch(4)
    torch.testing.assert_close(poptorch.inferenceModel(model)(x), model(x))


def test_the_model_that_the_program_asks_for_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_SMALL_IPU_MODEL", "1")
    assert target_of(poptorch.Options().useIpuModel(True)).num_tiles == 1472


@pytest.mark.parametrize(
    "text", ['{"deviceIteration": 2}', '{"deviceIterations": "two"}', '{"deviceIterations": ', "[]"],
)
def test_options_of_the_environment_that_are_refused_name_it(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPTORCH_DEFAULT_OPTIONS", text)
    with pytest.raises(Exception) as caught:  # noqa: PT011 - each of another type
        poptorch.Options()
    assert "POPTORCH_DEFAULT_OPTIONS" in "".join(caught.value.__notes__)


def test_a_log_that_cannot_be_opened_goes_to_stderr_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("POPTORCH_LOG_DEST", str(tmp_path / "nothere" / "log"))
    for number in range(3):
        _logging.logger.warning("line %d", number)
    text = capsys.readouterr().err
    assert text.count("POPTORCH_LOG_DEST") == 1
    assert all(f"line {number}" in text for number in range(3))
    assert "Traceback" not in text
