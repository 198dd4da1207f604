"""What a step tells of itself: its profile, its reports, the magnitudes of its last call."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path

from torchipu.advice.door import WHAT_IF_SECONDS, advised
from torchipu.capture.built import Built
from torchipu.compiler import Compiled
from torchipu.errors import OptionsError
from torchipu.host.bound_plan import BoundPlan
from torchipu.host.statistics import TensorStatistics
from torchipu.ir.graph import Graph
from torchipu.options import Options
from torchipu.report import Profile, format_numerics, profile_of
from torchipu.report.directory import write_directory
from torchipu.report.facts.observed import Observed
from torchipu.report.recorder import Recorded
from torchipu.step.seen import Seen, graph_again


class ReportedStep:
    """A step with a program that can be looked at; see docs/report.md."""

    options: Options
    _lock: contextlib.AbstractContextManager[bool]
    _bound: BoundPlan | None
    _built: Built | None
    _seen: Seen
    _calls: int

    @property
    def compiled(self) -> Compiled:
        """What the last compilation gave."""
        raise NotImplementedError

    @property
    def num_calls(self) -> int:
        """Calls that the step has made."""
        return self._calls

    @property
    def used_loss_scale(self) -> float | None:
        """Loss scale of the last call; None without one."""
        raise NotImplementedError

    @property
    def profile(self) -> Profile:
        """Modelled cycles, tile memory and pipeline efficiency of the last compilation."""
        compiled = self.compiled
        profile = profile_of(compiled.executable, compiled.cost, compiled.target, compiled.options.io_tiles)
        assert self._bound is not None
        if not self.options.statistics or not self._bound.has_run:
            return profile
        return dataclasses.replace(profile, statistics=format_numerics(self.statistics, self.used_loss_scale))

    def report(self, directory: str | os.PathLike[str], *, what_if_seconds: float = WHAT_IF_SECONDS) -> Path:
        """Write what the last compilation takes of the machine: its pages and data.

        ``report.html`` shows all of it; ``profile.pop``, ``trace.json.gz`` and ``summary.json`` are for other tools.

        Args:
            directory: Where to; it is made.
            what_if_seconds: For advice and alternatives, which are compiled; 0 leaves those out.

        Returns:
            ``profile.pop``, a SQLite database; ``torchipu report DIRECTORY`` shows it.

        Raises:
            OptionsError: Nothing was compiled yet.
            OSError: The directory cannot be written; what was there is as before.
        """
        recorded = Recorded(self.profile, self.compiled, is_step=True, owner=self)
        return write_directory(advised(recorded, what_if_seconds), Path(directory))

    @property
    def capture_seconds(self) -> float:
        """That the last capture of the model took."""
        return self._seen.capture_seconds

    def observed(self) -> Observed:
        """Return what was seen of the last compilation and the calls since: events, times, magnitudes."""
        self.compiled  # noqa: B018  # says what to do where nothing is compiled yet
        assert self._bound is not None
        return self._seen.observed(self._bound, counts=self.options.statistics, loss_scale=self.used_loss_scale)

    def graph_again(self, options: Options, samples: int | None) -> Graph:
        """Return the graph of the model under other options, or for other micro-batches; the step stays as it is.

        Args:
            options: Of the step.
            samples: Of a micro-batch; None for as many as in the last compilation.

        Raises:
            CaptureError: The model cannot be captured again.
        """
        with self._lock:
            return graph_again(self, self._built, self._seen.example, options, samples)

    @property
    def statistics(self) -> tuple[TensorStatistics, ...]:
        """Magnitudes of every result in the last call, in the order of the ops; ``profile.text()`` shows them too.

        Raises:
            OptionsError: The program does not count them, or there is none yet.
        """
        if not self.options.statistics:
            raise OptionsError(
                "the program does not count magnitudes", option="statistics", value=False,
                remedy="make the step with torchipu.Options(statistics=True)",
            )
        self.compiled  # noqa: B018  # says what to do where nothing is compiled yet
        assert self._bound is not None
        return self._bound.statistics()
