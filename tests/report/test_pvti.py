"""pvti and pva.openTrace: spans nest as they ran, each process has its file, and foreign files are refused."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

import pva
import pvti
from tests.poptorch.models import Classifier, batch, options, sgd
from torchipu import poptorch
from torchipu.errors import ReportError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    where = tmp_path / "traces ü"
    monkeypatch.setenv("PVTI_OPTIONS", json.dumps({"enable": "true", "directory": str(where)}))
    return where


def trace_in(folder: Path) -> pva.Trace:
    pvti.flush()
    (path,) = folder.glob("*.pvti")
    return pva.openTrace(path)


def labels(events: object) -> list[object]:
    return [[event.label, labels(event.children())] if event.children() else event.label for event in events]


def every(events: object) -> Iterator[pva.Event]:
    for event in events:
        yield event
        yield from every(event.children())


def test_spans_nest_as_they_ran_and_threads_have_their_own(folder: Path) -> None:
    channel = pvti.createTraceChannel("Application")
    with pvti.Tracepoint(channel, "Epoch 1"):
        with pvti.Tracepoint(channel, "first"):
            pass
        pvti.Tracepoint.begin(channel, "second")
        pvti.Tracepoint.event(channel, "a moment")
        pvti.Tracepoint.end(channel, "second")
    pvti.Tracepoint.end(channel, "never begun")

    def elsewhere() -> None:
        with pvti.Tracepoint(channel, "other thread"):
            pass

    thread = threading.Thread(target=elsewhere, name="worker")
    thread.start()
    thread.join()
    trace = trace_in(folder)
    (process,) = trace.processes
    assert trace.process(os.getpid()) is process
    here, there = process.threads
    assert labels(here.events) == [["Epoch 1", ["first", ["second", ["a moment"]]]]]
    assert (there.name, labels(there.events)) == ("worker", ["other thread"])
    assert process.thread(there.tid) is there
    epoch = here.events[0]
    assert epoch.channel == "Application"
    inner = epoch.children()
    assert all(epoch.timestamp <= one.timestamp for one in inner)
    assert sum(one.duration for one in inner) <= epoch.duration
    with pytest.raises(KeyError, match="there is no thread -1"):
        process.thread(-1)
    with pytest.raises(KeyError, match="there is no process -1"):
        trace.process(-1)


def test_graphs_hold_their_values_in_order(folder: Path) -> None:
    series = pvti.Graph("Loss", "nats").addSeries("Training")
    for value in (3.0, 2.5, 2):
        series.add(value)
    with pytest.raises(ValueError, match="could not convert"):
        series.add("low")  # type: ignore[arg-type]
    samples = trace_in(folder).samples
    assert [(one.graph, one.unit, one.series, one.value) for one in samples] == [
        ("Loss", "nats", "Training", value) for value in (3.0, 2.5, 2.0)
    ]
    assert [one.timestamp for one in samples] == sorted(one.timestamp for one in samples)


def test_names_are_data(folder: Path) -> None:
    hostile = "</script>'); DROP TABLE events; -- \"ü\x00\n"
    with pvti.Tracepoint(pvti.createTraceChannel(hostile), hostile):
        pass
    (event,) = trace_in(folder).processes[0].threads[0].events
    assert (event.label, event.channel) == (hostile, hostile)


def test_methods_are_labelled_by_their_qualified_names(folder: Path) -> None:
    class Traced:
        def double(self, value: int) -> int:
            return 2 * value

    traced = pvti.instrument(Traced(), ["double"], pvti.createTraceChannel("mine"))
    assert traced.double(4) == 8
    (event,) = trace_in(folder).processes[0].threads[0].events
    assert event.label == f"{__name__}.{Traced.__qualname__}.double"


def test_a_call_of_an_executor_shows_its_phases_and_no_value_changes(folder: Path) -> None:
    def trained() -> tuple[torch.Tensor, list[torch.Tensor]]:
        model = Classifier()
        training = poptorch.trainingModel(model, options(iterations=2, accumulation=2), sgd(model))
        with pvti.Tracepoint(pvti.createTraceChannel("user"), "Epoch 1"):
            for _ in range(2):
                _, loss = training(*batch(16))
        training.destroy()
        return loss, [one.detach().clone() for one in model.parameters()]

    loss, weights = trained()
    trace = trace_in(folder)
    (epoch,) = [one for one in trace.processes[0].threads[0].events if one.label == "Epoch 1"]
    call = "poptorch._poplar_executor.PoplarExecutor.__call__"
    first, second = epoch.children()
    assert (first.label, second.label) == (call, call)
    prefix = "poptorch.trainingModel."
    execution = [f"{prefix}inputPreparation", f"{prefix}modelExecution"]
    assert labels(first.children()) == [
        [f"{prefix}modelCompilation", [f"{prefix}graphPreprocessing"]], *execution,
    ]
    assert labels(second.children()) == execution
    os.environ["PVTI_OPTIONS"] = ""
    plain_loss, plain_weights = trained()
    assert torch.equal(loss, plain_loss)
    assert all(torch.equal(one, other) for one, other in zip(weights, plain_weights, strict=True))
    assert list(every(trace_in(folder).processes[0].threads[0].events)) != []


def test_waits_for_batches_are_spans(folder: Path) -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6.0))
    loader = poptorch.DataLoader(options(iterations=2), data, batch_size=1)
    values = [one[0].tolist() for one in loader]
    found = [one.label for one in trace_in(folder).processes[0].threads[0].events]
    assert values == [[0, 1], [2, 3], [4, 5]]
    assert found == ["poptorch.DataLoader.__next__"] * 4  # the last finds the end


SCRIPT = """
import os, pvti
channel = pvti.createTraceChannel("script")
with pvti.Tracepoint(channel, "parent"):
    child = os.fork()
    if not child:
        with pvti.Tracepoint(channel, "child"):
            pass
        pvti.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


def test_a_child_process_has_a_file_of_its_own(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "forks.py"
    script.write_text(SCRIPT, encoding="utf-8")
    subprocess.run([sys.executable, script], check=True)
    files = sorted(folder.glob("forks__*.pvti"))
    found = [labels(pva.openTrace(path).processes[0].threads[0].events) for path in files]
    assert sorted(found) == [["child"], ["parent"]]


# --------------------------------------------------------------------------- switches and bad input
@pytest.mark.parametrize("text", ["", '{"enable":"false"}', "{}"])
def test_nothing_is_written_unless_asked_for(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PVTI_OPTIONS", text)
    channel = pvti.createTraceChannel("none")
    with pvti.Tracepoint(channel, "span"):
        pvti.Tracepoint.begin(channel, "x")
        pvti.Tracepoint.end(channel, "x")
        pvti.Graph("g").addSeries("s").add(1)
    pvti.flush()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "words"), [
    ("yes", "Expecting value"), ("[1]", "it is a list"), ('{"enable": ', "Expecting value"),
])
def test_options_that_are_no_object_are_refused(text: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVTI_OPTIONS", text)
    with pytest.raises(ReportError, match=f"PVTI_OPTIONS must be a JSON object, got .*{words}"):
        pvti.createTraceChannel("mine")


def test_a_folder_that_cannot_be_written_warns_once_and_the_program_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PVTI_OPTIONS", json.dumps({"enable": "true", "directory": str(tmp_path / "file" / "in")}))
    channel = pvti.createTraceChannel("mine")
    with pvti.Tracepoint(channel, "span"):
        pass
    with pytest.warns(UserWarning, match="cannot be written, and ends here"):
        pvti.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pvti.Tracepoint(channel, "span"):
            pass
        pvti.flush()


def test_files_that_are_no_traces_are_refused(folder: Path, tmp_path: Path) -> None:
    with pvti.Tracepoint(pvti.createTraceChannel("mine"), "span"):
        pass
    pvti.flush()
    (whole,) = folder.glob("*.pvti")
    path = tmp_path / "other.pvti"
    with pytest.raises(FileNotFoundError, match="there is no trace"):
        pva.openTrace(path)
    data = whole.read_bytes()
    for content, words in (
        (b"", "is empty"), (b'{"traceEvents": []}', "is no trace of torchipu"), (data[: len(data) // 2], "is damaged"),
    ):
        path.write_bytes(content)
        with pytest.raises(ReportError, match=words):
            pva.openTrace(path)
    for statement, words in (
        ("UPDATE format SET version = 99", "has version 99 of the format"),
        ("UPDATE format SET name = 'another'", "is a database, but no trace of torchipu"),
        ("DROP TABLE format", "is a database, but no trace of torchipu"),
        ("DROP TABLE channels", "is damaged: no such table: channels"),
    ):
        path.write_bytes(data)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
            connection.commit()
        with pytest.raises(ReportError, match=words):
            pva.openTrace(path)
