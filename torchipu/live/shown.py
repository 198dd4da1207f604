"""What a notebook draws and a terminal prints: time lines and schedules of steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torchipu.device.cost import LEGEND
from torchipu.device.cost.timeline import Timeline, chart
from torchipu.ir.schedule import Schedule
from torchipu.report import markup


class Shown:
    """A drawing in a notebook, and a text anywhere else.

    Args:
        text: Of it.
        draw: Gives the HTML.
    """

    def __init__(self, text: str, draw: Callable[[], str]) -> None:
        self._text = text
        self._draw = draw

    def _repr_html_(self) -> str:
        return self._draw()

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return self._text


def timeline(step: Any) -> Shown:
    """Return what each IPU does when in an iteration, as the model of the machine has it.

    Args:
        step: A `TrainStep` or `InferenceStep`.

    Raises:
        OptionsError: Nothing was compiled yet.
    """
    held: Timeline = step.compiled.cost.timeline
    clock_hz = step.compiled.target.clock_hz
    return Shown(f"{chart(held)}\n({LEGEND})", lambda: markup.timeline(held, clock_hz))


def schedule(step: Any) -> Shown:
    """Return which stage computes which micro-batch in which cycle of the pipeline.

    Args:
        step: A `TrainStep` or `InferenceStep`.

    Raises:
        OptionsError: Nothing was compiled yet.
    """
    held: Schedule = step.compiled.schedule
    return Shown(grid_of(held), lambda: markup.schedule(held))


def grid_of(held: Schedule) -> str:
    """Return a schedule as text, a line for each IPU."""
    rows = [[" ".join(map(str, cell)) or "." for cell in row] for row in held.steps]
    columns = list(zip(*rows, strict=True)) if rows else []
    width = max((len(cell) for row in rows for cell in row), default=1)
    return "\n".join(
        f"ipu{ipu}  " + "  ".join(f"{cell:<{width}}" for cell in cells).rstrip() for ipu, cells in enumerate(columns)
    )


def draw_in_notebooks() -> None:
    """Let IPython draw time lines and schedules wherever they are the value of a cell; without IPython do nothing."""
    shell = shell_of_ipython()
    if shell is None:
        return
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type(Schedule, markup.schedule)
    formatter.for_type(Timeline, markup.timeline)


def shell_of_ipython() -> Any:
    """Return the shell of IPython that runs this process, or None."""
    module = sys.modules.get("IPython")
    return module.get_ipython() if module is not None else None
