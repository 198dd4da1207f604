"""Reports that engine options ask for: there from the compilation on, and complete when the program has run."""

from __future__ import annotations

import base64
import gc
import gzip
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.poptorch.models import Classifier, batch, options, sgd, twin_of
from torchipu import poptorch
from torchipu.poptorch.reports import profile
from torchipu.report.database import read_database
from torchipu.report.facts.gather import Facts

SCRIPT = """
import os, signal, sys, torch
from tests.poptorch.models import Classifier, batch, options, sgd, twin_of
from torchipu import poptorch
model = Classifier()
training = poptorch.trainingModel(model, options().enableProfiling(sys.argv[1]), sgd(model))
for _ in range(int(sys.argv[2])):
    training(*batch(4))
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "fails":
    raise ValueError("of the user")
"""


def executor(folder: Path, *, is_counted: bool = False) -> poptorch.PoplarExecutor:
    """Return one that trains, whose report goes to a folder."""
    chosen = options().enableProfiling(folder)
    if is_counted:
        chosen._Popart.set("torchipu.statistics", True)
    model = Classifier()
    return poptorch.trainingModel(model, chosen, sgd(model))


def reported(folder: Path) -> Facts:
    return read_database(folder / "training" / "profile.pop")


def calls_in(facts: Facts) -> int:
    """Return how many calls the page Host knows of."""
    return next((one.calls for one in facts.tables["host"] if one.kind == "python"), 0)


@pytest.mark.parametrize("end", ["destroy", "detachFromDevice", "del"])
def test_the_report_tells_of_the_runs_when_the_program_ends(tmp_path: Path, end: str) -> None:
    training = executor(tmp_path, is_counted=True)
    training.compile(*batch(4))
    assert reported(tmp_path).tables["host"] == ()
    first = reported(tmp_path)
    for _ in range(3):
        training(*batch(4))
    assert calls_in(reported(tmp_path)) == 0  # nothing is written while the model trains
    if end == "del":
        del training
        gc.collect()
    else:
        getattr(training, end)()
    facts = reported(tmp_path)
    assert calls_in(facts) == 3
    assert {one.kind for one in facts.tables["host"]} >= {"kernel", "python", "between calls"}
    assert len(facts.tables["numerics"]) > 5
    assert facts.figure("loss_scale_over_time") == [[0, 1.0]]
    for name in ("operations", "steps", "tiles", "advice", "alternatives"):
        assert facts.tables[name] == first.tables[name]
    shown = re.search(r'id="data">([^<]*)<', (tmp_path / "training" / "report.html").read_text(encoding="utf-8"))
    assert shown
    page = json.loads(gzip.decompress(base64.b64decode(shown[1])))
    assert len(page["tables"]["host"]["number"]) == len(facts.tables["host"])


def test_a_report_is_written_once_for_the_same_runs(tmp_path: Path) -> None:
    training = executor(tmp_path)
    training(*batch(4))
    training.detachFromDevice()
    page = tmp_path / "training" / "report.html"
    page.write_text("mine")
    training.destroy()
    assert page.read_text() == "mine"


def test_after_a_few_runs_the_report_tells_of_them_for_a_process_that_never_ends(tmp_path: Path) -> None:
    training = executor(tmp_path)
    for _ in range(profile.FIRST_RUNS):
        training(*batch(4))
    assert calls_in(reported(tmp_path)) == profile.FIRST_RUNS
    training(*batch(4))
    assert calls_in(reported(tmp_path)) == profile.FIRST_RUNS


def test_a_report_that_cannot_be_completed_is_as_it_was_and_the_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
) -> None:
    training = executor(tmp_path)
    training(*batch(4))
    before = (tmp_path / "training" / "profile.pop").read_bytes()

    def full(*arguments: object) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(profile, "write_directory", full)
    logger = profile.logger
    monkeypatch.setattr(logger, "propagate", True)
    training.detachFromDevice()
    assert "does not tell of the runs" in caplog.text
    assert "No space left on device" in caplog.text
    assert (tmp_path / "training" / "profile.pop").read_bytes() == before


@pytest.mark.parametrize(("how", "calls", "told"), [
    ("ends", 2, 2), ("fails", 2, 2), ("killed", 2, 0), ("killed", profile.FIRST_RUNS, profile.FIRST_RUNS),
])
def test_the_end_of_the_process_completes_the_report_and_its_death_leaves_it(
    tmp_path: Path, how: str, calls: int, told: int,
) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    ended = subprocess.run(
        [sys.executable, str(script), str(tmp_path), str(calls), how], env=environment, capture_output=True, text=True,
        check=False,
    )
    assert ended.returncode == {"ends": 0, "fails": 1, "killed": -signal.SIGKILL}[how], ended.stderr
    assert calls_in(reported(tmp_path)) == told
    assert not list((tmp_path / "training").glob(".*.part"))


def test_waits_for_the_loader_are_told_apart(tmp_path: Path) -> None:
    chosen = options().enableProfiling(tmp_path)
    data = torch.utils.data.TensorDataset(*batch(16))
    model = Classifier()
    training = poptorch.trainingModel(model, chosen, sgd(model))
    for inputs in poptorch.DataLoader(chosen, data, batch_size=4):
        training(*inputs)
    training.destroy()
    found = {one.kind: one for one in reported(tmp_path).tables["host"]}
    assert found["loader"].calls == 3  # before each call but the first
    assert (found["python"].calls, found["between calls"].calls) == (4, 4)


def small_machine(folder: Path | None) -> poptorch.Options:
    """Return options for tiles that do not hold the classifier, and for its report in a folder."""
    chosen = options()
    if folder is not None:  # enableProfiling lets such programs run
        chosen._Popart.setEngineOptions({"autoReport.all": "true", "autoReport.directory": str(folder)})
    chosen._Popart.set("torchipu.target", "mk2,tile_memory_bytes=16384,code_region_bytes=16384")
    return chosen


def test_a_program_that_does_not_fit_leaves_a_report_that_says_so(tmp_path: Path) -> None:
    model = Classifier()
    before, optimizer = twin_of(model), sgd(model, momentum=0.9)
    training = poptorch.trainingModel(model, small_machine(tmp_path), optimizer)
    with pytest.raises(poptorch.Error, match=r"tile \d+ of ipu 0 needs \d+ B") as refused:
        training(*batch(4))
    folder = tmp_path / "training"
    assert f"the report in {folder} shows what takes the memory" in refused.value.message
    facts = reported(tmp_path)
    assert facts.figure("tile_memory_bytes") == 16384
    assert re.match(r"tile \d+ of ipu 0 lacks [\d,]+ B", next(
        one.finding for one in facts.tables["advice"] if one.rule == "out of memory"
    ))
    assert len(facts.tables["operations"]) > 5
    assert (folder / "report.html").exists()
    torch.testing.assert_close(dict(model.state_dict()), dict(before.state_dict()), rtol=0, atol=0)
    assert not optimizer.state
    training.destroy()
    poptorch.trainingModel(model, options(), optimizer)(*batch(4))


def test_a_program_that_does_not_fit_has_no_report_where_none_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(poptorch.Error, match=r"tile \d+ of ipu 0 needs \d+ B") as refused:
        poptorch.inferenceModel(Classifier(), small_machine(None))(batch(4)[0])
    assert "report" not in refused.value.message
    assert not list(tmp_path.iterdir())


def test_a_report_of_what_does_not_fit_that_cannot_be_written_leaves_the_error_as_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "inference").write_text("no folder")
    with pytest.raises(poptorch.Error, match=r"tile \d+ of ipu 0 needs \d+ B") as refused:
        poptorch.inferenceModel(Classifier(), small_machine(tmp_path))(batch(4)[0])
    assert "shows what takes the memory" not in refused.value.message
    assert "There is no report of the program in" in caplog.text
