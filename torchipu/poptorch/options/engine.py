"""Options of the engine, from the program and from ``POPLAR_ENGINE_OPTIONS``."""

from __future__ import annotations

from typing import Any

from torchipu.poptorch.options import Options
from torchipu.poptorch.options.options import engine_options_of_environment


def engine_options(options: Options) -> dict[str, Any]:
    """Return the options of the engine; those of the environment come first, as in Poplar.

    Args:
        options: The executor's.
    """
    return {**options._popart.options.get("engineOptions", {}), **engine_options_of_environment()}


def is_on(value: object) -> bool:
    """Whether an option of the engine, which is text, says yes."""
    return str(value).lower() in ("true", "1")
