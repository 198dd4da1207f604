"""``torchipu report``: writes reports of a script's programs, and shows those that were written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from torchipu.advice.door import WHAT_IF_SECONDS
from torchipu.explanation import explain_script
from torchipu.report.directory import read_directory
from torchipu.report.limits import Limit, limit_of
from torchipu.report.summary import summary_of
from torchipu.report.terminal import table_of, text_of

FOLDER = "report"
"""Where reports go that have no place of their own."""


def print_reports(
    subject: str, arguments: Sequence[str], output: str | None, *, what_if_seconds: float | None = None,
    limits: Sequence[str] = (),
) -> int:
    """Show a report, or run a script, write its reports and show them.

    Args:
        subject: A script, a directory with reports, or a ``profile.pop``.
        arguments: Of the script.
        output: Where reports of a script go.
        what_if_seconds: For advice and alternatives of each program of a script; None for as many as usual.
        limits: Such as ``max_tile>95%``: what a figure may not be.

    Returns:
        The exit status: 1 when the script ended early, or compiled nothing, or a figure is beyond a limit.

    Raises:
        FileNotFoundError: There is no such script or directory.
        OSError: The reports cannot be written.
        ReportError: A report cannot be read.
    """
    checked = [limit_of(text) for text in limits]
    if not subject.endswith(".py"):
        return _show(Path(subject), checked)
    explanation = explain_script(subject, arguments)
    status, seconds = 0, WHAT_IF_SECONDS if what_if_seconds is None else what_if_seconds
    for folder in explanation.report(output or Path(FOLDER) / Path(subject).stem, what_if_seconds=seconds):
        status = max(status, _show(folder, checked))
    if explanation.error is not None:
        error = explanation.error
        print(f"torchipu report: the run ended early: {type(error).__name__}: {error}", file=sys.stderr)
    if not explanation.programs:
        print(
            'torchipu report: nothing was compiled for the IPU: use torch.compile(model, backend="ipu"), a step of '
            "torchipu or poptorch, and call it", file=sys.stderr,
        )
    return status if explanation.programs and explanation.error is None else 1


def _show(path: Path, limits: Sequence[Limit]) -> int:
    """Show the reports of a directory; return 1 where one of them is beyond a limit."""
    console, status = Console(), 0
    for name, facts in read_directory(path).items():
        title = f"{name}: {facts.figure('program')}"
        if console.is_terminal:
            console.print(table_of(facts, title))
        else:
            print(text_of(facts, title))
        for limit in limits:
            words = limit.broken(summary_of(facts))
            if words:
                status = 1
                print(f"torchipu report: {name}: {words}", file=sys.stderr)
    return status
