"""What a notebook draws and a terminal prints: time lines and schedules of steps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torchipu.device.cost import LEGEND
from torchipu.device.cost.timeline import Timeline, chart
from torchipu.errors import OptionsError
from torchipu.ir.schedule import Schedule
from torchipu.report import markup
from torchipu.step.base import ProgramStep


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


def profiled_of(step: Any) -> ProgramStep | None:
    """Return the step with a program behind what is called: itself, or that of an executor of PopTorch's.

    Args:
        step: Anything that is called.

    Returns:
        It; None where there is none, or where nothing is compiled yet.
    """
    held = step if isinstance(step, ProgramStep) else getattr(step, "_executable", None)
    return held if isinstance(held, ProgramStep) and held.is_compiled else None


def compiled_step(step: Any) -> ProgramStep:
    """Return the step with a program behind what is called.

    Args:
        step: As of `profiled_of`.

    Raises:
        OptionsError: There is none, or nothing is compiled yet.
    """
    found = profiled_of(step)
    if found is None:
        raise OptionsError(
            f"{type(step).__name__} has no program to look at", option="step", value=step,
            remedy="give a TrainStep, an InferenceStep or an executor of PopTorch's, and call or compile it before",
        )
    return found


def timeline(step: Any) -> Shown:
    """Return what each IPU does when in an iteration, as the model of the machine has it.

    Args:
        step: A `TrainStep`, an `InferenceStep`, or an executor of PopTorch's.

    Raises:
        OptionsError: Nothing was compiled yet.
    """
    compiled = compiled_step(step).compiled
    held, clock_hz = compiled.cost.timeline, compiled.target.clock_hz
    return Shown(f"{chart(held)}\n({LEGEND})", lambda: markup.timeline(held, clock_hz))


def schedule(step: Any) -> Shown:
    """Return which stage computes which micro-batch in which cycle of the pipeline.

    Args:
        step: As of `timeline`.

    Raises:
        OptionsError: Nothing was compiled yet.
    """
    held = compiled_step(step).compiled.schedule
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
