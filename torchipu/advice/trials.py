"""Changes of a program, compiled as far as cycles and memory depend on them, within a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torchipu.advice.changes import Again, Change, is_training
from torchipu.compiler import NOT_ON_TRIAL, Compiled, try_graph
from torchipu.device.memory import TileMemory, lacking_bytes, tile_memory
from torchipu.ir.graph import Graph
from torchipu.ir.program import Executable
from torchipu.options import Options
from torchipu.remembered import Remembered
from torchipu.report.garbage import collected_seldom
from torchipu.report.profile import micro_batch_size
from torchipu.target import Target

QUICK_SECONDS = 1.5
"""That a trial may take to be among those that are tried whatever time there is."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What is changed.

    Attributes:
        graph: As captured.
        options: As given.
        target: The machine, with all its tiles.
        micro_batches: Of an update, or of an inference run.
        instances: Processes.
        again: Captures the model under other options; None where nothing can.
        capture_seconds: That a capture takes.
    """

    graph: Graph
    options: Options
    target: Target
    micro_batches: int
    instances: int = 1
    again: Again | None = None
    capture_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of a change.

    Attributes:
        change: The change.
        compiled: The program; None where the change is refused.
        memory: The fullest tile of each IPU; none where the change is refused.
        samples_per_second: Of all replicas.
        refusal: Why the change is refused, in a line.
    """

    change: Change
    compiled: Compiled | None = None
    memory: tuple[TileMemory, ...] = ()
    samples_per_second: float = 0.0
    refusal: str = ""

    @property
    def cycles(self) -> int:
        """Of an update, or of an inference run; 0 where the change is refused."""
        return 0 if self.compiled is None else self.compiled.cost.cycles

    @property
    def fullest(self) -> TileMemory:
        """The fullest tile."""
        return max(self.memory, key=lambda one: one.total_bytes)

    @property
    def fullest_bytes(self) -> int:
        """Bytes of the fullest tile; 0 where the change is refused."""
        return self.fullest.total_bytes if self.memory else 0

    @property
    def lacking_bytes(self) -> int:
        """Bytes that the fullest tile, or its region for code, lacks; 0 where all fits."""
        return 0 if self.compiled is None else lacking_bytes(self.memory, self.compiled.target)

    @property
    def fits(self) -> bool:
        """Whether every tile holds what it needs."""
        return self.compiled is not None and self.lacking_bytes == 0


AS_IT_IS = Change("as it is", "")


@dataclass(slots=True)
class Trials:
    """Tries changes while there is time, each once.

    Attributes:
        subject: What is changed.
        base: The program as it is.
        seconds: After which nothing more is begun; what is expected to take longer than what is left is not begun. Of
            this thread's own time, so that a busy machine tries as much as one at rest.
        least: Changes that are tried all the same, as long as each is quick.
        left_out: Changes for which there was no time.
    """

    subject: Subject
    base: Tried
    seconds: float
    least: int = 0
    left_out: list[Change] = field(default_factory=list)
    clock: Callable[[], float] = time.thread_time
    _tried: list[Tried] = field(default_factory=list)
    _spent: float = 0.0
    _longest: float = 0.0
    _has_tried: bool = False
    _is_captured_again: bool = False
    _known: Remembered = field(default_factory=Remembered)

    def __post_init__(self) -> None:
        if self.base.compiled is not None:
            self._longest = seconds_of_trial(self.base.compiled.seconds_by_stage)

    def of(self, change: Change) -> Tried | None:
        """Return what becomes of a change; None where there is no time to try it."""
        known = next((tried for tried in self._tried if tried.change == change), None)
        if known is not None or change in self.left_out:
            return known
        expected = self._longest + (self.subject.capture_seconds if change.is_anew else 0.0)
        is_among_least = len(self._tried) < self.least and expected < QUICK_SECONDS
        if self._spent + expected > self.seconds and not is_among_least:
            self.left_out.append(change)
            return None
        self._is_captured_again = False
        began = self.clock()
        with collected_seldom():
            found = self._try(change)
        taken = self.clock() - began
        self._spent += taken
        if not self._is_captured_again:
            # The first compilation of a process has made much that later ones find: trials tell of trials.
            self._longest = max(self._longest, taken) if self._has_tried else taken
            self._has_tried = True
        self._tried.append(found)
        return found

    @property
    def found(self) -> tuple[Tried, ...]:
        """All that was tried, in that order."""
        return tuple(self._tried)

    def _again(self, options: Options, samples: int | None) -> Graph:
        assert self.subject.again is not None
        self._is_captured_again = True
        return self.subject.again(options, samples)

    def _try(self, change: Change) -> Tried:
        subject = self.subject
        try:
            options = change.options(subject.options)
            graph = change.graph(subject.graph, options, subject.options, self._again if subject.again else None)
            counted = options.gradient_accumulation if is_training(graph) else options.device_iterations
            before = subject.options
            asked = before.gradient_accumulation if is_training(graph) else before.device_iterations
            micro_batches = subject.micro_batches if counted == asked else counted
            compiled = try_graph(
                graph, options, subject.target, micro_batches=micro_batches, instances=subject.instances,
                known=self._known,
            )
            return tried_of(change, compiled, compiled.executable)
        except Exception as error:  # the user's model may fail in its own way where its inputs have other sizes
            return Tried(change, refusal=str(error).partition("\n")[0] or type(error).__name__)


def seconds_of_trial(seconds_by_stage: Mapping[str, float]) -> float:
    """Return how long a trial takes about, by what the stages of a compilation took."""
    return sum(seconds for name, seconds in seconds_by_stage.items() if name not in NOT_ON_TRIAL)


def tried_of(change: Change, compiled: Compiled, executable: Executable) -> Tried:
    """Return what became of a change.

    Args:
        change: The change.
        compiled: The program with it.
        executable: Its device program.
    """
    memory = tile_memory(executable, compiled.target, compiled.options.io_tiles)
    seconds = compiled.cost.cycles / compiled.target.clock_hz
    samples = micro_batch_size(executable) * compiled.cost.micro_batches * executable.replicas * executable.instances
    return Tried(change, compiled, memory, samples / seconds if seconds else 0.0)


def subject_of(compiled: Compiled, target: Target, again: Again | None = None, capture_seconds: float = 0.0) -> Subject:
    """Return what is changed of a program.

    Args:
        compiled: The program.
        target: The machine, with all its tiles.
        again: Captures the model under other options; None where nothing can.
        capture_seconds: That a capture takes.
    """
    return Subject(
        compiled.captured, compiled.options, target, compiled.micro_batches, compiled.instances, again, capture_seconds,
    )
