"""A table of a run that renews itself: in a notebook, on a terminal, or as lines of a log."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from torchipu.live.shown import profiled_of, shell_of_ipython
from torchipu.report import markup
from torchipu.report.figures import Figures

SPARKS = "▁▂▃▄▅▆▇█"
KEPT = 40
"""Values of which a line is drawn."""


class Surface(Protocol):
    """Where a board is drawn."""

    def show(self, rows: list[tuple[str, str]]) -> None:
        """Draw it anew."""

    def end(self, rows: list[tuple[str, str]]) -> None:
        """Draw it for the last time."""


class Watched:
    """A step that is watched: call it in place of the step, within ``with``.

    Args:
        step: What is called: a `TrainStep`, an `InferenceStep`, an executor of PopTorch's, or any function.
        surface: Where the table is drawn.
        seconds: Between two drawings, at least.
        clock: Gives seconds.
    """

    def __init__(
        self, step: Callable[..., Any], surface: Surface, seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.step = step
        self.calls = 0
        self.spent = 0.0
        self._surface, self._seconds, self._clock = surface, seconds, clock
        self._last = 0.0
        self._drawn: float | None = None
        self._noted: dict[str, list[float]] = {}
        self._modelled: list[tuple[str, str]] = []
        self._program: object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None,
    ) -> None:
        self._surface.end(self.rows())

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the step, and draw the table anew if it is time to; what the step returns is returned as it is."""
        begin = self._clock()
        result = self.step(*arguments, **keywords)
        self._last = self._clock() - begin
        self.calls += 1
        self.spent += self._last
        profiled = profiled_of(self.step)
        if profiled is not None and profiled.compiled is not self._program:
            self._program = profiled.compiled
            self._modelled = list(_modelled(profiled.profile))
        self._draw()
        return result

    def note(self, **values: float) -> None:
        """Show values of the user's, such as a loss.

        Args:
            **values: By name; tensors of one element are read.
        """
        for name, value in values.items():
            kept = self._noted.setdefault(name, [])
            kept.append(float(value))
            del kept[:-KEPT]
        self._draw()

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values of the table."""
        mean = self.spent / self.calls if self.calls else 0.0
        found = [
            ("calls", f"{self.calls:,}"),
            ("host, last call", f"{self._last * 1e3:,.1f} ms"),
            ("host, mean call", f"{mean * 1e3:,.1f} ms"),
            *self._modelled,
        ]
        return found + [(name, f"{kept[-1]:.6g}  {sparks(kept)}") for name, kept in self._noted.items()]

    def _draw(self) -> None:
        now = self._clock()
        if self._drawn is None or now - self._drawn >= self._seconds:
            self._drawn = now
            self._surface.show(self.rows())


def watch(step: Callable[..., Any], seconds: float = 0.25) -> Watched:
    """Return a step that shows a table of its run while it is called.

    In a notebook the table is an output that renews itself, without widgets; on a terminal it stays in its place;
    elsewhere, as in a log, a line is written every ten seconds.

    Args:
        step: What is called.
        seconds: Between two drawings, at least.

    Raises:
        ValueError: ``seconds`` is less than 0.
    """
    if seconds < 0:
        raise ValueError(f"seconds must be 0 or more, got {seconds}")
    if notebook() is not None:
        return Watched(step, NotebookSurface(), seconds)
    console = Console(file=sys.stderr)
    if console.is_terminal:
        return Watched(step, TerminalSurface(console), seconds)
    return Watched(step, LogSurface(console), max(seconds, 10.0))


def notebook() -> Any:
    """Return the shell of a notebook, or None on a terminal."""
    shell = shell_of_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


class NotebookSurface:
    """An output of a notebook, which is replaced."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, rows: list[tuple[str, str]]) -> None:
        """Draw it anew."""
        display = importlib.import_module("IPython.display")
        held = display.HTML(markup.table(rows))
        if self._handle is None:
            self._handle = display.display(held, display_id=True)
        else:
            self._handle.update(held)

    end = show


class TerminalSurface:
    """A table that stays in its place.

    Args:
        console: The terminal.
    """

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False)

    def show(self, rows: list[tuple[str, str]]) -> None:
        """Draw it anew."""
        if not self._live.is_started:
            self._live.start()
        table = Table(box=SIMPLE_HEAD, show_header=False)
        for name, value in rows:
            table.add_row(escape(name), escape(value))
        self._live.update(table, refresh=True)

    def end(self, rows: list[tuple[str, str]]) -> None:
        """Draw it for the last time, and give the terminal back."""
        try:
            self.show(rows)
        finally:
            self._live.stop()


class LogSurface:
    """Lines of a log.

    Args:
        console: Where they go.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def show(self, rows: list[tuple[str, str]]) -> None:
        """Write a line."""
        self._console.print("  ".join(f"{name}: {value}" for name, value in rows), markup=False, soft_wrap=True)

    end = show


def sparks(values: list[float]) -> str:
    """Return a line of values, from the least to the greatest of them; what is no finite number is a question mark."""
    finite = [value for value in values if abs(value) < float("inf")]
    least, most = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(SPARKS) - 1) / (most - least) if most > least else 0.0
    return "".join(SPARKS[round((value - least) * scale)] if abs(value) < float("inf") else "?" for value in values)


def _modelled(profile: Figures) -> Iterator[tuple[str, str]]:
    """Yield what the model of the machine says of a step."""
    fullest = profile.fullest_tile
    speed = f"{profile.samples_per_second:,.0f} samples/s (modelled)"
    yield "IPU, an iteration", f"{profile.cycles_per_update:,} cycles, {speed}"
    busy = "  ".join(f"ipu{ipu} {share:.0%}" for ipu, share in enumerate(profile.efficiency_by_ipu))
    yield "IPUs at work", busy
    yield "fullest tile", f"{fullest.total_bytes / profile.tile_memory_bytes:.1%} of its memory"
