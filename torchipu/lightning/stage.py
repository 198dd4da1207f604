"""A stage of the Trainer on the emulated IPU: its options, its captures and its programs."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from torchipu.ir.text import format_graph
from torchipu.lightning.batches import Batch, Results, joined
from torchipu.lightning.expressions import evaluated
from torchipu.lightning.gradient_hooks import Limits
from torchipu.lightning.programs import InferenceProgram, TrainingProgram
from torchipu.lightning.step_capture import StepCapture
from torchipu.options import Options as CoreOptions
from torchipu.poptorch.executor.translation import core_options
from torchipu.poptorch.options import Options
from torchipu.poptorch.reports.profile import RunReport, write_report
from torchipu.step.base import ProgramStep

MANY_CAPTURES = 8


@dataclasses.dataclass(slots=True)
class Result:
    """What a call gave for one batch.

    Attributes:
        batch: The batch.
        capture: Of the step.
        results: What the program has handed back.
        gradients: What is accumulated after the batch, by parameter name; None where nobody looks at it.
    """

    batch: Batch
    capture: StepCapture
    results: Results
    gradients: dict[str, torch.Tensor] | None = None

    def replay(self, module: Any) -> Any:
        """Do what the step does beside computing; return what it returned."""
        at = self.batch.at
        at.outputs = self.results  # type: ignore[assignment]
        self.capture.tape.play(at)
        return evaluated(self.capture.returned, at)


Run = list[tuple[Batch, StepCapture]]
"""Batches whose step is the same program."""


class StageModel:
    """The programs of one stage; what ``strategy.poptorch_models`` holds.

    Args:
        module: The Lightning module.
        options: PopTorch's options of the stage.
        surrounding: Made anew around each run of a step that is captured.
        error: Lightning's exception for configurations.
        changes: Applied to the options of the core.
    """

    is_training = False

    def __init__(
        self, module: Any, options: Options, surrounding: Callable[[], AbstractContextManager[Any]],
        error: type[Exception], changes: dict[str, Any] | None = None,
    ) -> None:
        self.module = module
        self._options = options
        self.surrounding = surrounding
        self.error = error
        self.changes = changes or {}
        self.optimizer: torch.optim.Optimizer | None = None
        self._captures: dict[object, list[StepCapture]] = {}
        self._programs: dict[object, Any] = {}
        self._owners: dict[int, StepCapture] = {}
        self._reports: list[RunReport] = []
        self._core: CoreOptions | None = None
        self._has_warned = False
        self._told: set[str] = set()

    @property
    def options(self) -> Options:
        """PopTorch's options of the stage."""
        return self._options

    @property
    def programs(self) -> tuple[ProgramStep, ...]:
        """The programs so far."""
        return tuple(self._programs.values())

    def core(self) -> CoreOptions:
        """Return the options of the core; batch normalisations of replicas go apart, as under DDP."""
        if self._core is None:
            given = core_options(self._options, self.optimizer)
            seed = given.seed if self._options.exists("random_seed") else None
            self._core = dataclasses.replace(
                given, seed=seed, output_mode="all", output_period=1, broadcast_buffers=False, **self.changes,
            )
        return self._core

    # ------------------------------------------------------------------ captures
    def module_key(self) -> tuple[object, ...]:
        """Return what of the module is fixed in a program."""
        return (
            tuple([member.training for member in self.module.modules()]),
            tuple([(id(parameter), parameter.requires_grad) for parameter in self.module.parameters()]),
            tuple([id(buffer) for buffer in self.module.buffers()]),
        )

    def capture_for(self, batch: Batch, module_key: object) -> StepCapture:
        """Return a capture that holds for a batch, made now if there is none."""
        key = (batch.key, module_key)
        known = self._captures.setdefault(key, [])
        found = next((capture for capture in known if capture.holds(batch.at)), None)
        if found is None:
            found = self._capture(batch, known)
            known.append(found)
        return found

    def planned(self, batches: Sequence[Batch], module_key: object) -> Run:
        """Return batches with their captures; counters of the module go on from one to the next."""
        run: Run = []
        counters: dict[str, Any] = {}
        for batch in batches:
            batch.at.names.update(counters)
            capture = self.capture_for(batch, module_key)
            counters |= capture.advanced(batch.at)
            run.append((batch, capture))
        return run

    def _capture(self, batch: Batch, known: Sequence[StepCapture]) -> StepCapture:
        core = self.core()
        capture = self._new_capture(batch, core)
        with torch.inference_mode(False), torch.enable_grad():
            graph = capture.captured(
                [tensor.detach() for tensor in self._example(batch, capture)], strict_ops=core.strict_ops
            )
        same = next((self._owners[id(other)] for other in known if _is_same(graph, other)), capture)
        self._owners[id(capture)] = same
        capture.tape.warn_of_states(batch.call.hook, self._told)
        if capture.tape.has_numbers and not capture.guards and not known:
            capture.tape.warn_of_numbers(batch.call.hook)
        if len(known) >= MANY_CAPTURES and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{batch.call.hook} depends on Python values that change often: it has been captured {len(known) + 1} "
                "times. Keep such values in tensors, or change them less often", stacklevel=2,
            )
        return capture

    def _new_capture(self, batch: Batch, core: CoreOptions) -> StepCapture:
        """Return a capture that has not run yet."""
        return StepCapture(
            self.module, batch.call, self._options, self.surrounding, is_training=self.trains,
            loss_scale=core.backward_scale * batch.weight, error=self.error,
        )

    def _example(self, batch: Batch, capture: StepCapture) -> list[torch.Tensor]:
        """Return the inputs of a capture but for its numbers."""
        return batch.example()

    def goes_on_from(self, known: StageModel) -> bool:
        """Whether the programs of an earlier run of the Trainer are still right."""
        return (
            known.module is self.module and known.changes == self.changes and known.trains == self.trains
            and type(known) is type(self) and known._options.toDict() == self._options.toDict()
        )

    def take_over(self, following: Any) -> None:
        """Go on in another run of the Trainer, with what its own stage was made for.

        Args:
            following: The stage of that run; its optimiser's hyper-parameters are read at each call.
        """
        self.optimizer = following.optimizer

    @property
    def trains(self) -> bool:
        """Whether there is something to train."""
        return self.is_training and self.optimizer is not None

    def owner(self, capture: StepCapture) -> StepCapture:
        """Return the capture whose programs are used: the first with the same graph."""
        return self._owners[id(capture)]

    def _program(self, key: object, make: Callable[[], Any]) -> Any:
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = make()
        return found

    def _seed(self) -> int | None:
        """Return the seed of the next program: each has random bits of its own."""
        seed = self.core().seed
        return None if seed is None else (seed + len(self._programs)) % 2**62

    def _compiled(self, program: ProgramStep) -> None:
        report = write_report(program, self._options, is_training=self.is_training)
        if report is not None:
            self._reports.append(report)

    def complete_reports(self) -> None:
        """Let the reports of the programs tell of their runs."""
        for report in self._reports:
            report.complete()

    def _run(self, program: Any, run: Run) -> list[torch.Tensor]:
        """Run a program on batches of the same shapes; return its outputs in the order of the tape."""
        batches = [batch for batch, _ in run]
        tensors = joined(batches)
        example = batches[0].example()
        rows = [capture.slots(batch.at) for batch, capture in run for _ in range(batch.pieces)]
        slots = torch.tensor(rows)
        results: list[torch.Tensor] = program.run([*tensors, slots], [*example, slots[0]])
        return results

    @staticmethod
    def _results(run: Run, outputs: Sequence[torch.Tensor]) -> Iterable[Result]:
        first = 0
        for batch, capture in run:
            yield Result(batch, capture, Results(outputs, first, batch.pieces, capture.tape.reductions))
            first += batch.pieces


class InferenceStage(StageModel):
    """Validation, tests and prediction."""

    def run(self, batches: Sequence[Batch]) -> list[Result]:
        """Run a step on batches that a call takes together.

        Args:
            batches: At most as many as `group_size`; of several shapes if need be.
        """
        key = self.module_key()
        pairs = self.planned(batches, key)
        core = self.core()
        full = core.device_iterations * core.replicas
        results: list[Result] = []
        for run in _runs(pairs, lambda pair: self.owner(pair[1])):
            pieces = sum(batch.pieces for batch, _ in run)
            if pieces == full:
                outputs = self._run(self._of(run, core.device_iterations, core.replicas), run)
                results += self._results(run, outputs)
            else:
                for one in run:
                    results += self._results([one], self._run(self._of([one], one[0].pieces, 1), [one]))
        return results

    def _of(self, run: Run, device_iterations: int, replicas: int) -> InferenceProgram:
        owner = self.owner(run[0][1])

        def make() -> InferenceProgram:
            core = self.core()
            is_full = (device_iterations, replicas) == (core.device_iterations, core.replicas)
            # A single batch fills no pipeline: it runs one stage after the other.
            pipelines = is_full and device_iterations > 1
            options = dataclasses.replace(
                core, device_iterations=device_iterations, replicas=replicas, gradient_accumulation=1,
                execution=core.execution if pipelines else not_pipelined(core.execution), seed=self._seed(),
            )
            return InferenceProgram(self.module, options, owner, self._compiled)

        program: InferenceProgram = self._program((id(owner), device_iterations, replicas), make)
        return program


class TrainingStage(StageModel):
    """Training: batches, grouped into weight updates.

    Attributes:
        optimizer: The user's own, or None where ``configure_optimizers`` gave none.
        accumulate: Batches in a weight update; the Trainer may change it from epoch to epoch.
        pieces: Micro-batches in a full batch: replicas x micro-batches a replica.
        iterations_of_batch: Weight updates in one batch, where a loader of PopTorch's gives all of them at once.
        shows_gradients: Whether gradients are handed back: before an update, or after every batch (``by batch``).
        limits: By what gradients are clipped, where a hook says so.
    """

    is_training = True
    shows_gradients: bool | str = False
    limits: Limits | None = None
    accumulate = 1
    pieces = 1
    iterations_of_batch = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._carried: dict[str, torch.Tensor] = {}

    def run(self, updates: Sequence[Sequence[Batch]]) -> list[Result]:
        """Train.

        Args:
            updates: The batches of each weight update.
        """
        key = (self.module_key(), self._optimised())
        for update in updates:
            if len({batch.pieces for batch in update}) > 1:
                for batch in update:
                    batch.weight = self.pieces // batch.pieces
        pairs = iter(self.planned([batch for update in updates for batch in update], key))
        planned = [[next(pairs) for _ in update] for update in updates]
        if not self.trains:
            return [result for update in planned for result in self._without_update(update)]
        results: list[Result] = []
        if self.shows_gradients and self.iterations_of_batch == 1:
            return [result for update in planned for result in self._update_in_parts(update)]
        for same in _runs(planned, self._shape_of):
            if self._shape_of(same[0]) is not None:
                results += self._updates(same)
            else:
                for update in same:
                    results += self._update_in_parts(update)
        return results

    def take_over(self, following: Any) -> None:
        """Let the programs go on with the optimiser of another run."""
        super().take_over(following)
        self.shows_gradients = following.shows_gradients
        for program in self._programs.values():
            if self.optimizer is not None and isinstance(program, TrainingProgram):
                program.take(self.optimizer)

    def _optimised(self) -> tuple[int, ...]:
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return tuple([id(parameter) for group in groups for parameter in group["params"]])

    def _shape_of(self, update: Run) -> object:
        """Return what is the same in updates that run in one call; None for one whose batches differ."""
        owners = {id(self.owner(capture)) for _, capture in update}
        return (owners.pop(), len(update)) if len(owners) == 1 else None

    def _updates(self, updates: Sequence[Run]) -> Iterable[Result]:
        """Run whole updates in one call."""
        run = [pair for update in updates for pair in update]
        batch, capture = run[0]
        owner = self.owner(capture)
        core = self.core()
        replicas = core.replicas if batch.pieces == self.pieces else 1
        count = len(updates) * (self.iterations_of_batch if batch.pieces == self.pieces else 1)
        micro_batches = len(run) * batch.pieces // (replicas * count)
        divisor = self.accumulate * batch.pieces
        if batch.pieces == self.pieces:
            divisor //= self.iterations_of_batch

        def make() -> TrainingProgram:
            is_full = len(updates[0]) == self.accumulate and batch.pieces == self.pieces
            if is_full:
                owner.check_depth(gradient_accumulation=micro_batches, device_iterations=core.device_iterations)
            return self._training_program(owner, micro_batches, replicas, divisor, is_full=is_full)

        program = self._program((id(owner), micro_batches, replicas, divisor, self.limits), make)
        program.iterations = count
        return self._results(run, self._run(program, run))

    def _update_in_parts(self, update: Run) -> list[Result]:
        """Run one update as several programs, which hand the gradients on."""
        for held in self._carried.values():
            held.zero_()
        results: list[Result] = []
        parts = [[pair] for pair in update] if self.shows_gradients == "by batch" else list(
            _runs(update, lambda pair: self.owner(pair[1]))
        )
        divisor = self.accumulate * self.pieces
        for number, run in enumerate(parts):
            owner = self.owner(run[0][1])
            pieces = sum(batch.pieces for batch, _ in run)
            replicas = self.core().replicas if all(batch.pieces == self.pieces for batch, _ in run) else 1
            is_last = number == len(parts) - 1

            def make(
                owner: StepCapture = owner, micro_batches: int = pieces // replicas, replicas: int = replicas,
                is_last: bool = is_last,
            ) -> TrainingProgram:
                return self._training_program(
                    owner, micro_batches, replicas, divisor, is_full=False, carried=self._carried, updates=is_last,
                )

            key = (id(owner), pieces, replicas, "part", divisor, is_last, self.limits)
            program = self._program(key, make)
            results += self._results(run, self._run(program, run))
            if self.shows_gradients:
                factor = 1.0 / (program.options.loss_scaling * program.gradient_divisor)
                results[-1].gradients = {name: program.carried[name] * factor for name in program.gradients}
        return results

    def _training_program(
        self, owner: StepCapture, micro_batches: int, replicas: int, divisor: int, *, is_full: bool,
        carried: dict[str, torch.Tensor] | None = None, updates: bool = True,
    ) -> TrainingProgram:
        core = self.core()
        assert self.optimizer is not None
        if self.limits is not None:
            core = dataclasses.replace(core, max_grad_norm=self.limits[0], max_grad_value=self.limits[1])
        options = dataclasses.replace(
            core, gradient_accumulation=micro_batches, replicas=replicas, mean_reduction="post", seed=self._seed(),
            execution=core.execution if is_full else not_pipelined(core.execution),
        )
        return TrainingProgram(
            self.module, self.optimizer, options, owner, self._compiled, divisor=divisor, carried=carried,
            updates=updates,
        )

    def _without_update(self, update: Run) -> Iterable[Result]:
        """Run the step forward alone, where no optimiser is configured."""
        for one in update:
            owner = self.owner(one[1])

            def make(owner: StepCapture = owner, pieces: int = one[0].pieces) -> InferenceProgram:
                options = dataclasses.replace(
                    self.core(), device_iterations=pieces, replicas=1, gradient_accumulation=1, seed=self._seed(),
                    execution=not_pipelined(self.core().execution),
                )
                return InferenceProgram(self.module, options, owner, self._compiled)

            program = self._program((id(owner), "forward"), make)
            yield from self._results([one], self._run(program, [one]))


def not_pipelined(execution: str) -> str:
    """Return how a call too short for a pipeline runs: a stage after the other, to the same values."""
    return "sharded" if execution in ("pipelined", "1f1b", "interleaved") else execution


def _runs(items: Sequence[Any], key: Callable[[Any], object]) -> Iterable[list[Any]]:
    """Yield neighbours of one key."""
    run: list[Any] = []
    for item in items:
        if run and key(item) != key(run[0]):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _is_same(graph: Any, other: StepCapture) -> bool:
    """Whether a capture is that of another one again."""
    before = other._captured
    if before is None or format_graph(graph.graph) != format_graph(before.graph):
        return False
    ours, theirs = list(graph.constants.values()), list(before.constants.values())
    return len(ours) == len(theirs) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)
    )
