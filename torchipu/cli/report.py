"""``torchipu report``: writes reports of a script's programs, and shows those that were written."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from torchipu.explanation import explain_script
from torchipu.report.directory import read_directory
from torchipu.report.terminal import table_of, text_of

FOLDER = "report"
"""Where reports go that have no place of their own."""


def print_reports(subject: str, arguments: Sequence[str], output: str | None) -> int:
    """Show a report, or run a script, write its reports and show them.

    Args:
        subject: A script, a directory with reports, or a ``profile.pop``.
        arguments: Of the script.
        output: Where reports of a script go.

    Returns:
        The exit status: 1 when the script ended early, or compiled nothing.

    Raises:
        FileNotFoundError: There is no such script or directory.
        OSError: The reports cannot be written.
        ReportError: A report cannot be read.
    """
    if not subject.endswith(".py"):
        _show(Path(subject))
        return 0
    explanation = explain_script(subject, arguments)
    for folder in explanation.report(output or Path(FOLDER) / Path(subject).stem):
        _show(folder)
    if explanation.error is not None:
        error = explanation.error
        print(f"torchipu report: the run ended early: {type(error).__name__}: {error}", file=sys.stderr)
    if not explanation.programs:
        print(
            'torchipu report: nothing was compiled for the IPU: use torch.compile(model, backend="ipu"), a step of '
            "torchipu or poptorch, and call it", file=sys.stderr,
        )
    return 0 if explanation.programs and explanation.error is None else 1


def _show(path: Path) -> None:
    console = Console()
    for name, facts in read_directory(path).items():
        title = f"{name}: {facts.figure('program')}"
        if console.is_terminal:
            console.print(table_of(facts, title))
        else:
            print(text_of(facts, title))
