"""The reports that options of the engine ask for: the profile of a program, and the magnitudes of a call."""

from __future__ import annotations

import atexit
import os
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from torchipu.advice.door import Advised, advice_in, advised
from torchipu.poptorch._logging import logger
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.engine import engine_options, is_on
from torchipu.poptorch.reports.debug_contexts import contexts_of
from torchipu.report.directory import write_directory
from torchipu.report.facts.gather import Facts
from torchipu.report.numerics import write_numerics
from torchipu.report.recorder import Recorded
from torchipu.step.base import ProgramStep

REPORT_SWITCHES = ("autoReport.all", "autoReport.outputGraphProfile", "autoReport.outputExecutionProfile")
"""Any of these has the profile written; the others of ``autoReport`` choose parts of PopVision's own files."""


def is_reported(options: Options) -> bool:
    """Whether options of the engine ask for reports."""
    engine = engine_options(options)
    return any(is_on(engine.get(switch, "")) for switch in REPORT_SWITCHES)


def report_folder(options: Options, *, is_training: bool) -> Path | None:
    """Return where reports of a program go, ``<autoReport.directory>/<model name>``; None if none was asked for.

    Args:
        options: The executor's.
        is_training: Which folder it is, unless the options name one.
    """
    if not is_reported(options):
        return None
    name = options.model_name if options.exists("model_name") else "training" if is_training else "inference"
    return Path(engine_options(options).get("autoReport.directory", ".")) / name


FIRST_RUNS = 10
"""Calls after which a report is written that tells of them, lest the process never comes to its end."""


@dataclass(eq=False)
class RunReport:
    """The report of a program, written when it was compiled, and again with what its runs have shown.

    Attributes:
        step: What has the program.
        options: The executor's.
        folder: Where the report is.
        advice: Facts and tables of the first report that take long to find, and do not depend on runs.
        calls: That the step had made when the report was written.
        process: That writes it: a copy of this one that ends does not.
    """

    step: ProgramStep
    options: Options
    folder: Path
    advice: Advised
    calls: int = 0
    process: int = field(default_factory=os.getpid)

    def note_run(self) -> None:
        """Write the report once a few calls have been made."""
        if self.step.num_calls == FIRST_RUNS:
            self.complete()

    def complete(self) -> None:
        """Write the report with times and magnitudes of the runs, where there were any since it was written.

        What cannot be written is logged, and leaves the report as it was: a training does not end by it.
        """
        if self.step.num_calls == self.calls or os.getpid() != self.process:
            return
        self.calls = self.step.num_calls
        recorded = Recorded(self.step.profile, self.step.compiled, is_step=True, owner=self.step)
        try:
            _write(recorded.facts().extended(*self.advice), self.step, self.options, self.folder)
        except OSError as error:
            logger.warning("The report in %s does not tell of the runs: %s", self.folder, error)


_OPEN: weakref.WeakSet[RunReport] = weakref.WeakSet()


@atexit.register
def _complete_all() -> None:
    for one in list(_OPEN):
        one.complete()


def write_report(step: ProgramStep, options: Options, *, is_training: bool) -> RunReport | None:
    """Write the profile of a program where the options of the engine ask for one.

    ``profile.pop`` is a SQLite database of this package's own, as ``torchipu report`` reads it: PopVision's format is
    not public. Beside it lie the trace of an iteration, a summary, and ``debug.cbor``, which says where each op was
    written.

    Args:
        step: What has the program.
        options: The executor's.
        is_training: As of `report_folder`.

    Returns:
        What writes it again when the program has run: its owner keeps it, and completes it when the program ends;
        the end of the process does so too. None if no report was asked for, and, with a warning, where the directory
        cannot be written.
    """
    folder = report_folder(options, is_training=is_training)
    if folder is None:
        return None
    facts = advised(Recorded(step.profile, step.compiled, is_step=True, owner=step))
    try:
        _write(facts, step, options, folder)
    except OSError as error:
        logger.warning("There is no report of the program in %s: %s", folder, error)
        return None
    found = RunReport(step, options, folder, advice_in(facts), step.num_calls)
    _OPEN.add(found)
    return found


def _write(facts: Facts, step: ProgramStep, options: Options, folder: Path) -> None:
    contexts = tuple(contexts_of(step.compiled.graph, facts, options._source_location_excludes))
    path = write_directory(facts, folder, contexts)
    logger.info("Wrote the profile of the program to %s", path)


def write_magnitudes(step: ProgramStep, options: Options, *, is_training: bool) -> None:
    """Write the magnitudes of a call beside the profile: ``numerics.json``, and ``.txt`` with advice on the loss scale.

    Args:
        step: What has run, and counts them if the options ask for it.
        options: The executor's.
        is_training: As of `report_folder`.
    """
    if not step.options.statistics:
        return
    folder = report_folder(options, is_training=is_training)
    if folder is not None:
        write_numerics(step.statistics, step.used_loss_scale, folder)
        logger.debug("Wrote the magnitudes of the last call to %s", folder)
