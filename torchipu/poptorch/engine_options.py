"""Options of the engine, from the program and from ``POPLAR_ENGINE_OPTIONS``, and the reports that they ask for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torchipu.compiler import Compiled
from torchipu.poptorch._logging import logger
from torchipu.poptorch.debug_file import write_debug_file
from torchipu.poptorch.options import Options, engine_options_of_environment
from torchipu.report.figures import Figures
from torchipu.report.json import write_json

REPORT_SWITCHES = ("autoReport.all", "autoReport.outputGraphProfile", "autoReport.outputExecutionProfile")
"""Any of these has the profile written; the others of ``autoReport`` choose parts of PopVision's own files."""
REPORT_NAME = "profile.pop"


def engine_options(options: Options) -> dict[str, Any]:
    """Return the options of the engine; those of the environment come first, as in Poplar.

    Args:
        options: The executor's.
    """
    return {**options._popart.options.get("engineOptions", {}), **engine_options_of_environment()}


def is_on(value: object) -> bool:
    """Whether an option of the engine, which is text, says yes."""
    return str(value).lower() in ("true", "1")


def write_report(profile: Figures, compiled: Compiled, options: Options, *, is_training: bool) -> Path | None:
    """Write the profile of a program where the options of the engine ask for one.

    The file is JSON, as ``torchipu report`` reads it: PopVision's own format is not public. ``debug.cbor`` beside it
    says where each op was written.

    Args:
        profile: Of the program.
        compiled: The program.
        options: The executor's.
        is_training: Which folder it goes to, unless the options name one.

    Returns:
        The file, ``<autoReport.directory>/<model name>/profile.pop``; None if none was asked for.
    """
    engine = engine_options(options)
    if not any(is_on(engine.get(switch, "")) for switch in REPORT_SWITCHES):
        return None
    name = options.model_name if options.exists("model_name") else "training" if is_training else "inference"
    path = Path(engine.get("autoReport.directory", ".")) / name / REPORT_NAME
    write_json(profile, path)
    write_debug_file(compiled, path.parent, options._source_location_excludes)
    logger.info("Wrote the profile of the program to %s", path)
    return path
