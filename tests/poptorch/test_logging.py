"""The log: its levels, the layout of a line, the limit on repeats; the machine; trace points."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from tests.poptorch.test_names import run_python
from torchipu import poptorch
from torchipu.poptorch import _logging


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Put level and limit back."""
    level = _logging.logger.level
    yield
    _logging.logger.setLevel(level)
    _logging.setMaxRepeats(_logging.UNLIMITED_REPEATS)


@pytest.mark.parametrize(("level", "written"), [
    ("TRACE", "trace debug info warning error"), (0, "trace debug info warning error"),
    ("DEBUG", "debug info warning error"), (1, "debug info warning error"), ("INFO", "info warning error"),
    (2, "info warning error"), ("WARN", "warning error"), (3, "warning error"), ("ERR", "error"), (4, "error"),
    ("OFF", ""), (6, ""), ("TRACE_ALL", "trace debug info warning error"), ("DEBUG_IR", "debug info warning error"),
])
def test_level_lets_through_what_is_as_grave(
    level: str | int, written: str, capsys: pytest.CaptureFixture[str]
) -> None:
    poptorch.setLogLevel(level)
    _logging.logger.log(_logging.TRACE, "a line")
    for method in ("debug", "info", "warning", "error"):
        getattr(_logging.logger, method)("a line")
    lines = capsys.readouterr().err.splitlines()
    assert " ".join(line.split("] [")[2].split("]")[0] for line in lines) == written


def test_line_has_time_name_level_and_message(capsys: pytest.CaptureFixture[str]) -> None:
    poptorch.setLogLevel("INFO")
    _logging.logger.info("so %s", "it goes")
    line = capsys.readouterr().err
    assert re.fullmatch(r"\[\d\d:\d\d:\d\d\.\d{3}\] \[poptorch::python\] \[info\] so it goes\n", line)


@pytest.mark.parametrize(("level", "text"), [
    (5, "Invalid log level integer"), (7, "Invalid log level integer"),
    ("LOUD", "Unknown log level: LOUD. Valid values are DEBUG, ERR, INFO, OFF, TRACE and WARN"),
])
def test_unknown_level_is_refused(level: str | int, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        poptorch.setLogLevel(level)


def test_level_of_popart_is_checked() -> None:
    _logging.setPopartLogLevel("DEBUG")
    with pytest.raises(ValueError, match="Level must be one of"):
        _logging.setPopartLogLevel("LOUD")


def test_repeated_lines_stop_after_the_limit_and_begin_anew_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    poptorch.Options().maxRepeatLogs(2)
    for message in [*["again"] * 5, "other", "again"]:
        _logging.logger.warning(message)
    messages = [line.split("] ")[-1] for line in capsys.readouterr().err.splitlines()]
    assert messages == ["again", "again", "again (repeated messages suppressed)", "other", "again"]


def test_no_limit_writes_every_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert poptorch.Options().maxRepeatLogs(None).max_repeat_logs == 2**64 - 1
    for _ in range(9):
        _logging.logger.warning("again")
    assert capsys.readouterr().err.count("again") == 9


def test_the_emulated_machine_is_there() -> None:
    assert poptorch.ipuHardwareIsAvailable() is True
    assert poptorch.ipuHardwareIsAvailable(16) is True
    assert poptorch.ipuHardwareIsAvailable(0) is False
    assert poptorch.ipuHardwareIsAvailable(10**6) is False
    assert poptorch.ipuHardwareVersion() == 2


class Traced:
    """An object with a method."""

    def double(self, value: int) -> int:
        """Return twice the value."""
        return 2 * value


def test_channel_does_nothing_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PVTI_OPTIONS", raising=False)
    channel, traced = poptorch.profiling.Channel("mine"), Traced()
    assert channel.instrument(traced, "double") is traced
    assert traced.__dict__ == {}
    with channel.tracepoint("span"):
        assert traced.double(2) == 4


def test_channel_labels_methods_and_spans_where_pvti_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    class Tracepoint:
        def __init__(self, channel: str, label: str) -> None:
            self.label = f"{channel}: {label}"

        def __enter__(self) -> None:
            events.append(f"begin {self.label}")

        def __exit__(self, *error: object) -> None:
            events.append(f"end {self.label}")

    pvti = ModuleType("pvti")
    pvti.createTraceChannel = lambda name: f"channel {name}"  # type: ignore[attr-defined]
    pvti.Tracepoint = Tracepoint  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pvti", pvti)
    monkeypatch.setenv("PVTI_OPTIONS", '{"enable":"true"}')
    channel, traced = poptorch.profiling.Channel("mine"), Traced()
    channel.instrument(traced, "double")
    with channel.tracepoint("span"):
        assert traced.double(2) == 4
    assert events == [
        "begin channel mine: mine.span", "begin channel mine: mine.double", "end channel mine: mine.double",
        "end channel mine: mine.span",
    ]


@pytest.mark.parametrize(("code", "is_logged"), [
    ("raise ValueError('the end')", True), ("raise SystemExit('the end')", False), ("raise KeyboardInterrupt", False),
])
def test_the_exception_that_ends_a_program_is_logged_once(code: str, is_logged: bool) -> None:
    done = run_python(f"import poptorch\npoptorch.Options()\npoptorch.Options()\n{code}")
    assert done.returncode
    lines = [line for line in done.stderr.splitlines() if "[poptorch::python] [critical]" in line]
    assert len(lines) == is_logged
    assert all(line.endswith("ValueError: the end") for line in lines)
    assert ("Traceback" in done.stderr) == ("System" not in code)


STATE = (
    "import os, sys, faulthandler, torch\n"
    "def told():\n"
    "    return (os.environ.get('RDMAV_FORK_SAFE'), faulthandler.is_enabled(), sys.excepthook is sys.__excepthook__, "
    "hasattr(torch.nn.Module, 'autocast'), dict(os.environ) == before[0], vars(torch.nn.Module).keys() == before[1])\n"
    "os.environ.pop('RDMAV_FORK_SAFE', 0); before = dict(os.environ), dict(vars(torch.nn.Module)).keys()\n"
    "import poptorch; print(*told())\n"
)


FIRST_USES = ("poptorch.Options()", "poptorch.inferenceModel(torch.nn.ReLU())", "poptorch.autocast")
IN_FORKS = f"""
for use in {FIRST_USES}:
    sys.stdout.flush()
    if os.fork() == 0:
        exec(use)
        print(*told(), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0
"""


def test_the_first_use_prepares_the_process_and_importing_does_not() -> None:
    imported, *used = run_python(STATE + IN_FORKS).stdout.splitlines()
    assert imported.split() == ["None", "False", "True", "False", "True", "True"]
    assert [told.split()[:4] for told in used] == [["1", "True", "False", "True"]] * len(FIRST_USES)
