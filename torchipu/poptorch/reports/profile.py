"""The reports that options of the engine ask for: the profile of a program, and the magnitudes of a call."""

from __future__ import annotations

from pathlib import Path

from torchipu.advice.door import advised
from torchipu.poptorch._logging import logger
from torchipu.poptorch.options import Options
from torchipu.poptorch.options.engine import engine_options, is_on
from torchipu.poptorch.reports.debug_contexts import contexts_of
from torchipu.report.directory import write_directory
from torchipu.report.numerics import write_numerics
from torchipu.report.recorder import Recorded
from torchipu.step.base import ProgramStep

REPORT_SWITCHES = ("autoReport.all", "autoReport.outputGraphProfile", "autoReport.outputExecutionProfile")
"""Any of these has the profile written; the others of ``autoReport`` choose parts of PopVision's own files."""


def report_folder(options: Options, *, is_training: bool) -> Path | None:
    """Return where reports of a program go, ``<autoReport.directory>/<model name>``; None if none was asked for.

    Args:
        options: The executor's.
        is_training: Which folder it is, unless the options name one.
    """
    engine = engine_options(options)
    if not any(is_on(engine.get(switch, "")) for switch in REPORT_SWITCHES):
        return None
    name = options.model_name if options.exists("model_name") else "training" if is_training else "inference"
    return Path(engine.get("autoReport.directory", ".")) / name


def write_report(step: ProgramStep, options: Options, *, is_training: bool) -> Path | None:
    """Write the profile of a program where the options of the engine ask for one.

    The file is a SQLite database of this package's own, as ``torchipu report`` reads it: PopVision's format is not
    public. Beside it lie the trace of an iteration, a summary, and ``debug.cbor``, which says where each op was
    written.

    Args:
        step: What has the program.
        options: The executor's.
        is_training: As of `report_folder`.

    Returns:
        The file, ``profile.pop``; None if none was asked for.
    """
    folder = report_folder(options, is_training=is_training)
    if folder is None:
        return None
    facts = advised(Recorded(step.profile, step.compiled, is_step=True, owner=step))
    contexts = tuple(contexts_of(step.compiled.graph, facts, options._source_location_excludes))
    path = write_directory(facts, folder, contexts)
    logger.info("Wrote the profile of the program to %s", path)
    return path


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
