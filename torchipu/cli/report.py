"""``torchipu report``: writes reports of a script's programs, shows those that were written, and compares two."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from torchipu.advice.door import WHAT_IF_SECONDS
from torchipu.cli.onnx import ENDING, explain_model
from torchipu.errors import ReportError
from torchipu.explanation import explain_script
from torchipu.report.compare import differences
from torchipu.report.directory import PAGE, page_in, read_directory, write_comparison
from torchipu.report.facts.gather import Facts
from torchipu.report.limits import Limit, limit_of
from torchipu.report.summary import summary_of
from torchipu.report.terminal import changes_of, table_of, text_of

FOLDER = "report"
"""Where reports go that have no place of their own."""


def print_reports(flags: argparse.Namespace) -> int:
    """Show a report, or run a script, write its reports and show them.

    Args:
        flags: Of the command line: ``subject``, ``arguments``, ``output``, ``open``, ``diff``, ``what_if`` and
            ``fail_if``.

    Returns:
        The exit status: 1 when the script ended early, or compiled nothing, or a figure is beyond a limit.

    Raises:
        FileNotFoundError: There is no such script or directory.
        OSError: The reports cannot be written.
        ReportError: A report cannot be read, or two hold no programs of the same names.
    """
    if not flags.subject.endswith((".py", ENDING)):
        return _show_written(flags)
    limits = [limit_of(text) for text in flags.fail_if]
    is_model = flags.subject.endswith(ENDING)
    explanation = explain_model(flags.subject, flags) if is_model else explain_script(flags.subject, flags.arguments)
    seconds = WHAT_IF_SECONDS if flags.what_if is None else flags.what_if
    folders = explanation.report(flags.output or Path(FOLDER) / Path(flags.subject).stem, what_if_seconds=seconds)
    status = 0
    for folder in folders:
        status = max(status, _beyond(_show(folder), limits))
    if folders and flags.diff:
        _compare(folders[0].parent, Path(flags.diff), to_open=flags.open)
    elif folders and flags.open:
        _open(folders[0] / PAGE)
    if explanation.error is not None:
        error = explanation.error
        print(f"torchipu report: the run ended early: {type(error).__name__}: {error}", file=sys.stderr)
    if not explanation.programs:
        print(
            'torchipu report: nothing was compiled for the IPU: use torch.compile(model, backend="ipu"), a step of '
            "torchipu or poptorch, and call it", file=sys.stderr,
        )
    return status if explanation.programs and explanation.error is None else 1


def _show_written(flags: argparse.Namespace) -> int:
    """Show what lies in a directory; what follows its name are flags too, and no arguments of a script."""
    later = argparse.ArgumentParser(prog="torchipu report")
    later.add_argument("--open", action="store_true", default=flags.open)
    later.add_argument("--diff", default=flags.diff)
    later.add_argument("--fail-if", action="append", default=[*flags.fail_if], dest="fail_if")
    flags = later.parse_args(flags.arguments, argparse.Namespace(subject=flags.subject))
    path, limits = Path(flags.subject), [limit_of(text) for text in flags.fail_if]
    if flags.diff:
        _compare(path, Path(flags.diff), to_open=flags.open)
        return _beyond(read_directory(path), limits)
    found = _show(path)
    if flags.open:
        name, facts = next(iter(found.items()))
        _open(page_in(_folder(name), facts))
    return _beyond(found, limits)


def _beyond(found: Mapping[str, Facts], limits: Sequence[Limit]) -> int:
    """Tell which figures are beyond limits; return 1 where one is."""
    status = 0
    for name, facts in found.items():
        for limit in limits:
            words = limit.broken(summary_of(facts))
            if words:
                status = 1
                print(f"torchipu report: {name}: {words}", file=sys.stderr)
    return status


def _show(path: Path) -> Mapping[str, Facts]:
    console = Console()
    found = read_directory(path)
    for name, facts in found.items():
        title = f"{name}: {facts.figure('program')}"
        if console.is_terminal:
            console.print(table_of(facts, title))
        else:
            print(text_of(facts, title))
        if (_folder(name) / PAGE).is_file():
            print(f"page: {_folder(name) / PAGE}")
    return found


def _compare(path: Path, other: Path, *, to_open: bool) -> None:
    """Print what changed most from each program of one directory to that of another, and write their pages."""
    pages = []
    for (name, facts), (other_name, other_facts) in _pairs(read_directory(path), read_directory(other)):
        pages.append(write_comparison(_folder(name), facts, _folder(other_name), other_facts))
        print(changes_of(f"{name} -> {other_name}", differences(facts, other_facts)))
        print(f"page: {pages[-1]}")
    if to_open:
        _open(pages[0])


def _pairs(
    found: Mapping[str, Facts], others: Mapping[str, Facts],
) -> list[tuple[tuple[str, Facts], tuple[str, Facts]]]:
    """Return programs of two directories that belong together: the only ones, or those of the same name."""
    if len(found) == len(others) == 1:
        return [(next(iter(found.items())), next(iter(others.items())))]
    by_name = {Path(name).name: (name, facts) for name, facts in others.items()}
    pairs = [((name, facts), by_name[Path(name).name]) for name, facts in found.items() if Path(name).name in by_name]
    if not pairs:
        raise ReportError(
            f"the reports have no program in common: one has {', '.join(Path(name).name for name in found)}, the "
            f"other {', '.join(by_name)}", remedy="give the directories of two programs",
        )
    return pairs


def _folder(name: str) -> Path:
    """Return the directory of a report that `read_directory` names."""
    path = Path(name)
    return path.parent if path.is_file() else path


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        print(f"torchipu report: there is no browser to open {page} with: open it yourself", file=sys.stderr)
