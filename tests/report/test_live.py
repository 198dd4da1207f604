"""Runs to look at: drawings hold what the program does and nothing hostile, tables renew, and no value changes."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

import torchipu
from tests.report.test_reports import Plain, pipelined, with_io_tiles
from torchipu import artifacts, live, poptorch
from torchipu.device.cost.timeline import LINK
from torchipu.errors import OptionsError
from torchipu.explanation import Explanation
from torchipu.live import board
from torchipu.live.board import LogSurface, TerminalSurface, Watched, sparks
from torchipu.report import markup

HOSTILE = "</pre><script>alert('x')</script>\"&"


class Elements(HTMLParser):
    """Elements of a piece of HTML with their texts; unbalanced ones are an error."""

    def __init__(self, held: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(held)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture(scope="module")
def step() -> torchipu.TrainStep:
    return pipelined()


# --------------------------------------------------------------------------- drawings
def test_a_profile_draws_its_headline_and_its_slowest_ops(step: torchipu.TrainStep) -> None:
    found = Elements(step.profile._repr_html_())
    text = " ".join(found.texts)
    assert f"{step.profile.cycles_per_update:,} cycles" in text
    assert f"{step.profile.fullest_tile.total_bytes:,} of 638,976 B" in text
    for op in step.profile.slowest_ops:
        assert f"%{op.name}" in text
        assert op.source in text
    assert not found.all("script")


def test_names_in_a_profile_are_data(step: torchipu.TrainStep) -> None:
    profile = step.profile
    ops = tuple(replace(op, name=HOSTILE, source=HOSTILE) for op in profile.slowest_ops)
    found = Elements(replace(profile, slowest_ops=ops, title=HOSTILE)._repr_html_())
    assert not found.all("script")
    assert f"%{HOSTILE}" in found.texts
    told = Explanation(HOSTILE, broken_at=[HOSTILE], error=ValueError(HOSTILE))
    assert not Elements(told._repr_html_()).all("script")
    assert HOSTILE in Elements(told._repr_html_()).texts


def test_an_explanation_draws_counts_and_each_program() -> None:
    told = torchipu.explain(torch.nn.Linear(4, 2), torch.randn(3, 4))
    found = Elements(told._repr_html_())
    assert ["programs for the IPU", str(len(told.programs))] == found.texts[1:3]
    text = " ".join(found.texts)
    assert all(f"{one.profile.cycles_per_update:,} cycles" in text for one in told.programs)


def test_a_time_line_has_a_lane_for_each_ipu_as_long_as_its_work(step: torchipu.TrainStep) -> None:
    held = step.compiled.cost.timeline
    found = Elements(live.timeline(step)._repr_html_())
    assert [text for text in found.texts if text.startswith("ipu")] == ["ipu0", "ipu1"]
    scale = (markup.WIDTH - markup.LEFT) / held.cycles
    for ipu, spans in enumerate(held.spans_by_ipu):
        drawn = [one for one in found.all("rect") if one["y"] == str(ipu * markup.LANE + 2)]
        assert 0 < len(drawn) <= len(spans)
        width = sum(float(one["width"] or 0) for one in drawn)
        busy = sum(span.end - span.begin for span in spans) * scale
        # Rounded to hundredths, and gaps of less than half a pixel are filled.
        assert busy - 0.01 * len(drawn) <= width <= busy + 0.5 * len(spans)
    colours = {one["fill"] for one in found.all("rect")}
    assert {markup.COLOURS[kind] for kind in ("forward", "backward", LINK)} <= colours
    assert "ipu0 |" in str(live.timeline(step))
    assert "us" in found.texts[0]


def test_a_time_line_of_many_spans_stays_small(step: torchipu.TrainStep) -> None:
    held = step.compiled.cost.timeline
    (span, *_) = held.spans_by_ipu[0]
    many = [replace(span, begin=2 * place, end=2 * place + 1) for place in range(50_000)]
    assert len(markup.timeline(replace(held, spans_by_ipu=[many], cycles=100_000))) < 300_000


def test_a_schedule_shows_every_action_once(step: torchipu.TrainStep) -> None:
    held = step.compiled.schedule
    found = Elements(live.schedule(step)._repr_html_())
    expected = sorted(str(action) for row in held.steps for cell in row for action in cell)
    assert sorted(text for text in found.texts if text in expected) == expected
    text = str(live.schedule(step))
    assert sorted(text.replace("ipu0", "").replace("ipu1", "").replace(".", "").split()) == expected
    cut = replace(held, steps=held.steps * 1000)
    assert "more are not shown" in markup.schedule(cut)
    assert len(Elements(markup.schedule(cut)).all("td")) <= markup.MOST_CELLS


def test_each_colour_can_be_read_with_white_text() -> None:
    def luminance(colour: str) -> float:
        channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    # Source of the formula and of 4.5: WCAG 2.2, 1.4.3.
    for colour in markup.COLOURS.values():
        assert 1.05 / (luminance(colour) + 0.05) >= 4.5, colour


# --------------------------------------------------------------------------- a table that renews
class Kept:
    """A surface that keeps what it is given."""

    def __init__(self) -> None:
        self.drawn: list[dict[str, str]] = []

    def show(self, rows: list[tuple[str, str]]) -> None:
        self.drawn.append(dict(rows))

    end = show


def test_a_watched_step_returns_what_it_returns_and_draws_no_more_than_it_should() -> None:
    times = iter(range(1000))
    surface = Kept()
    with Watched(lambda x: 2 * x, surface, 5.0, clock=lambda: float(next(times))) as watched:
        assert [watched(value) for value in range(6)] == [0, 2, 4, 6, 8, 10]
    assert watched.calls == 6
    # Each call looks at the clock three times: drawn at 2, 8, 14, and once at the end.
    assert [one["calls"] for one in surface.drawn] == ["1", "3", "5", "6"]
    assert surface.drawn[-1]["host, last call"] == "1,000.0 ms"


def test_the_table_shows_the_model_of_a_step_and_what_is_noted(step: torchipu.TrainStep) -> None:
    surface = Kept()
    inputs = (torch.randn(24, 16), torch.randint(3, (24,)))
    with Watched(step, surface, 0.0) as watched:
        for loss in (3.0, 2.0, float("nan")):
            watched(*inputs)
            watched.note(loss=torch.tensor(loss))
    last = surface.drawn[-1]
    assert f"{step.profile.cycles_per_update:,} cycles" in last["IPU, an iteration"]
    assert last["loss"] == "nan  █▁?"
    assert surface.drawn[0]["calls"] == "1"


def test_sparks_go_from_the_least_to_the_greatest() -> None:
    assert sparks([0, 7, 3.5]) in ("▁█▄", "▁█▅")
    assert sparks([2, 2]) == "▁▁"
    assert sparks([float("inf"), 1.0]) == "?▁"
    assert sparks([]) == ""


def test_an_error_of_the_step_comes_through_and_gives_the_terminal_back() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)

    def fail() -> None:
        raise RuntimeError("no")

    watched = Watched(fail, TerminalSurface(console), 0.0)
    with pytest.raises(RuntimeError, match="no"), watched:
        watched()
    with contextlib.closing(io.StringIO()), Watched(lambda: 1, TerminalSurface(console), 0.0) as again:
        again()
        again.note(**{"[bold]x": 1.0})
    assert isinstance(console.file, io.StringIO)
    assert "[bold]x" in console.file.getvalue()
    assert "calls" in console.file.getvalue()


def test_a_log_gets_lines() -> None:
    console = Console(file=io.StringIO(), width=40)
    with Watched(lambda: 1, LogSurface(console), 0.0) as watched:
        watched()
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 2
    assert all(line.startswith("calls: 1  host, last call: ") for line in lines)


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A notebook, as far as it is asked: outputs with a handle by which they are replaced."""
    shown: list[Any] = []

    class Handle:
        def update(self, held: Any) -> None:
            shown[-1] = held

    def display(held: Any, display_id: bool) -> Handle:
        assert display_id
        shown.append(held)
        return Handle()

    formatters: dict[type, Any] = {}
    html = SimpleNamespace(for_type=formatters.__setitem__)
    shell = SimpleNamespace(kernel=object(), display_formatter=SimpleNamespace(formatters={"text/html": html}))
    module = ModuleType("IPython")
    module.get_ipython = lambda: shell  # type: ignore[attr-defined]
    module.display = SimpleNamespace(HTML=lambda held: held, display=display)  # type: ignore[attr-defined]
    module.formatters = formatters  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", module)
    monkeypatch.setitem(sys.modules, "IPython.display", module.display)
    return shown


def test_a_notebook_has_one_output_that_is_replaced(kernel: list[Any]) -> None:
    with live.watch(lambda: 1, seconds=0.0) as watched:
        for _ in range(3):
            watched()
    assert len(kernel) == 1
    assert Elements(kernel[0]).texts[:2] == ["calls", "3"]


def test_time_lines_and_schedules_draw_themselves_in_a_notebook(kernel: list[Any], step: torchipu.TrainStep) -> None:
    live.draw_in_notebooks()
    drawn = sys.modules["IPython"].formatters  # type: ignore[attr-defined]
    for value in (step.compiled.cost.timeline, step.compiled.schedule):
        assert Elements(drawn[type(value)](value)).found


def test_without_a_terminal_a_log_is_written_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    watched = live.watch(lambda: 1)
    assert isinstance(watched._surface, LogSurface)
    assert watched._seconds == 10.0
    assert board.notebook() is None
    with pytest.raises(ValueError, match="seconds must be 0 or more, got -1"):
        live.watch(lambda: 1, seconds=-1)


# --------------------------------------------------------------------------- TensorBoard
def test_scalars_are_those_of_the_profile(step: torchipu.TrainStep) -> None:
    found: dict[str, tuple[float, int | None]] = {}
    writer = SimpleNamespace(add_scalar=lambda tag, value, at: found.__setitem__(tag, (value, at)))
    live.write_scalars(step, writer, global_step=7)
    profile = step.profile
    assert found["ipu/cycles_per_update"] == (profile.cycles_per_update, 7)
    assert found["ipu/ipu1/efficiency"] == (profile.efficiency_by_ipu[1], 7)
    for ipu in range(2):
        spent = [value for tag, (value, _) in found.items() if tag.startswith(f"ipu/ipu{ipu}/") and "_cycles" in tag]
        assert sum(spent) == sum(profile.cycles_by_category_by_ipu[ipu].values())


def test_tensorboard_reads_the_scalars(step: torchipu.TrainStep, tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    writer = live.tensorboard_writer(tmp_path)
    live.write_scalars(step, writer, global_step=3)
    writer.close()  # type: ignore[attr-defined]
    events = reading.EventAccumulator(str(tmp_path)).Reload()
    (one,) = events.Scalars("ipu/fullest_tile_bytes")
    assert (one.step, one.value) == (3, step.profile.fullest_tile.total_bytes)


def test_without_tensorboard_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r'pip install "torchipu\[tensorboard\]"'):
        live.tensorboard_writer(tmp_path)


# --------------------------------------------------------------------------- TORCH_TRACE
TRACED = """
import torch, torchipu
torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
compiled = torch.compile(net, backend="ipu")
compiled(torch.randn(3, 4)).square().mean().backward()
x = torch.randn(2, 4)
print(torch.allclose(torchipu.InferenceStep(net)(x), net(x), atol=1e-6))
"""


def test_the_structured_log_holds_plan_memory_and_schedule_of_each_program(tmp_path: Path) -> None:
    told = subprocess.run(
        [sys.executable, "-c", TRACED], capture_output=True, text=True, check=True,
        env={**os.environ, "TORCH_TRACE": str(tmp_path / "trace ü")},
    )
    assert told.stdout == "True\n"
    (log,) = (tmp_path / "trace ü").glob("*.log")
    found = artifacts_of(log.read_text(encoding="utf-8"))
    kinds = {name.removeprefix("ipu_").partition("_")[0] for name in found}
    assert kinds == {"plan", "memory", "schedule"}
    programs = {name.removeprefix("ipu_plan_") for name in found if name.startswith("ipu_plan_")}
    assert len(programs) == 3  # forward, backward, and the step
    for program in programs:
        assert "weights" in found[f"ipu_plan_{program}"]
        memory = json.loads(found[f"ipu_memory_{program}"])
        assert max(memory["bytes_by_tile"]["ipu0"]) == memory["fullest_tiles"][0]["total_bytes"]
        schedule = json.loads(found[f"ipu_schedule_{program}"])
        assert all(0 <= run["begin"] <= run["end"] <= schedule["cycles_per_update"] for run in schedule["runs"])


def test_handlers_that_pytest_puts_on_every_logger_ask_for_no_artifacts(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(artifacts.trace_log, "handlers", [caplog.handler])
    assert not artifacts.is_wanted()
    artifacts.trace_log.addHandler(logging.StreamHandler())
    assert artifacts.is_wanted()


def artifacts_of(log: str) -> dict[str, str]:
    """Read what a structured log holds of ours: a line of JSON, and the lines of the payload behind tabs."""
    found: dict[str, str] = {}
    name = ""
    for line in log.splitlines():
        if line.startswith("\t"):
            if name:
                found[name] += line[1:] + "\n"
            continue
        held = json.loads(line[line.index("{") :])
        name = held.get("artifact", {}).get("name", "")
        name = name if name.startswith("ipu_") else ""
        if name:
            found[name] = ""
    return found


# --------------------------------------------------------------------------- profiling changes nothing
def test_looking_at_a_training_changes_no_value(tmp_path: Path) -> None:
    inputs = (torch.randn(8, 1, 8, 8), torch.randint(3, (8,)))

    def trained(*, looked_at: bool) -> list[torch.Tensor]:
        torch.manual_seed(1)
        model = Plain()
        options = torchipu.Options(gradient_accumulation=2, stochastic_rounding=True)
        step = torchipu.TrainStep(model, torch.optim.Adam(model.parameters()), options)
        surface = Kept()
        with Watched(step, surface, 0.0) if looked_at else contextlib.nullcontext(step) as called:
            losses = []
            for number in range(3):
                losses.append(called(*inputs))
                if looked_at:
                    step.report(tmp_path / str(number))
                    live.write_scalars(step, SimpleNamespace(add_scalar=lambda *values: None))
                    _ = (str(live.timeline(step)), live.schedule(step)._repr_html_(), step.profile._repr_html_())
        return [*losses, *(one.detach() for one in model.parameters())]

    for one, other in zip(trained(looked_at=False), trained(looked_at=True), strict=True):
        assert torch.equal(one, other)


def test_a_step_that_overlaps_its_streams_has_a_lane_for_them() -> None:
    step = with_io_tiles()
    found = Elements(live.timeline(step)._repr_html_())
    assert [text for text in found.texts if text in ("ipu0", "io0")] == ["ipu0", "io0"]
    drawn = [one for one in found.all("rect") if one["y"] == str(markup.LANE + 2)]
    assert {one["fill"] for one in drawn} == {markup.COLOURS["transfer"]}


def test_an_executor_of_poptorch_is_watched_and_drawn_as_its_program() -> None:
    executor = poptorch.inferenceModel(torch.nn.Linear(4, 2))
    with pytest.raises(OptionsError, match="PoplarExecutor has no program to look at"):
        live.timeline(executor)
    with pytest.raises(OptionsError, match="function has no program to look at"):
        live.write_scalars(lambda: 1, SimpleNamespace())
    surface = Kept()
    with Watched(executor, surface, 0.0) as watched:
        watched(torch.randn(3, 4))
        first = surface.drawn[-1]["IPU, an iteration"]
        executor.destroy()
        watched(torch.randn(12, 4))
    assert surface.drawn[-1]["IPU, an iteration"] != first
    assert "ipu0" in str(live.timeline(executor))
