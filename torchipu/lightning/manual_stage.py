"""Training by manual optimisation: the programs of a step that calls backward and its optimisers itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchipu.capture.built import Built
from torchipu.capture.captured import Captured
from torchipu.capture.gradient_scaling import scaled
from torchipu.capture.optimiser import FIRST_MOMENTS, SECOND_MOMENTS, OptimiserImport, import_optimiser
from torchipu.capture.segments import Segment, Segments
from torchipu.distributed.members import Members, members_of
from torchipu.host.generic import TORCH_DTYPES
from torchipu.ir.graph import Tensor
from torchipu.lightning.batches import Batch, Results
from torchipu.lightning.manual_capture import ManualCapture, with_gradients
from torchipu.lightning.programs import StepProgram
from torchipu.lightning.stage import Result, StageModel, not_pipelined
from torchipu.lightning.step_capture import StepCapture
from torchipu.options import Options as CoreOptions
from torchipu.poptorch.executor.translation import core_options
from torchipu.step.base import ProgramStep
from torchipu.step.in_common import described_optimiser
from torchipu.step.training import TYPES

Place = tuple[int, int]


class SegmentProgram(StepProgram):
    """One segment of a step as a program.

    Args:
        module: The Lightning module.
        optimizers: All of its optimisers.
        options: What to emulate.
        capture: Of the whole step.
        segment: Which part of it.
        cells: Gradients on the host.
        options_of: Gives the options that an optimiser asks for.
        on_compiled: Called when the program is there.
    """

    default_output_mode = "all"

    def __init__(
        self, module: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer], options: CoreOptions,
        capture: ManualCapture, segment: Segment, cells: dict[Tensor, torch.Tensor],
        options_of: Callable[[torch.optim.Optimizer], CoreOptions], on_compiled: Callable[[ProgramStep], None],
    ) -> None:
        super().__init__(module, options)
        self.optimizers, self.capture, self.segment, self.cells = optimizers, capture, segment, cells
        self.options_of, self.on_compiled = options_of, on_compiled
        self._imports: list[OptimiserImport] = []

    @property
    def micro_batches(self) -> int:
        """One: gradients are accumulated by the step."""
        return 1

    @property
    def iterations(self) -> int:
        """One."""
        return 1

    @property
    def _updating(self) -> list[torch.optim.Optimizer]:
        return [self.optimizers[update.optimiser] for update in self.segment.updates]

    def _find_members(self) -> Members | None:
        return members_of(self.options.process_group)

    def _described(self) -> dict[str, object]:
        return {
            "optimisers": [described_optimiser(one) for one in self._updating], "calls so far": self._calls,
            "segment": self.segment.graph.name,
        }

    # ------------------------------------------------------------------ building
    def _build(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Built:
        capture, segment = self._capture(arguments, keywords), self.segment
        capture = dataclasses.replace(
            capture, graph=segment.graph, arguments=segment.arguments, parameters=segment.parameters,
            buffers=segment.buffers, written={},
            constants={t: value for t, value in capture.constants.items() if t in segment.graph.inputs},
        )
        self._imports = [
            self._imported(number, update.optimiser, update.gradients, capture)
            for number, update in enumerate(segment.updates)
        ]
        graph = dataclasses.replace(
            segment.graph,
            inputs=(*segment.graph.inputs, *(t for one in self._imports for t in one.inputs)),
            ops=(*segment.graph.ops, *(op for one in self._imports for op in one.ops)),
            updates=(*segment.graph.updates, *(pair for one in self._imports for pair in one.updates)),
        )
        states = self._module_states(capture)
        states |= {cell: self.cells[cell] for cell in segment.cells}
        for one in self._imports:
            states |= one.host
        return Built(capture, graph, states, frozenset(state for state, _ in graph.updates))

    def _imported(
        self, number: int, optimiser: int, gradients: dict[str, Tensor], capture: Captured,
    ) -> OptimiserImport:
        optimizer = self.optimizers[optimiser]
        asked = self.options_of(optimizer)
        types = {
            key: TYPES[chosen] for keys, chosen in (
                (FIRST_MOMENTS, asked.first_moment_type), (SECOND_MOMENTS, asked.second_moment_type),
            ) for key in keys
        }
        imported = import_optimiser(
            optimizer, self.model, capture.parameters, gradients, state_types=types, ignores_own_step=True,
            label=f"{number}." if number else "",
        )
        return scaled(imported, gradients.values(), max_norm=asked.max_grad_norm)

    # ------------------------------------------------------------------ running
    def _refresh(self) -> None:
        assert self._bound is not None
        for one in self._imports:
            one.refresh()
            for tensor, value in one.hyperparameters.items():
                self._bound.state_view(tensor).copy_(value.view(torch.int64))

    def _deliver(self, values: list[torch.Tensor]) -> Any:
        return values

    def _keep(self) -> Callable[[], None]:
        """Note which states optimisers have: those of a first step are created before it has run."""
        before = [(one.state, {p: dict(state) for p, state in one.state.items()}) for one in self._updating]

        def undo() -> None:
            for states, known in before:
                for parameter in [parameter for parameter in states if parameter not in known]:
                    del states[parameter]
                for parameter, state in known.items():
                    states[parameter].clear()
                    states[parameter].update(state)

        return undo


@dataclasses.dataclass(frozen=True, slots=True)
class StepPrograms:
    """The programs of one capture, run one after the other.

    Attributes:
        segments: How they belong together.
        programs: One for each.
        cells: Gradients on the host that they hand on.
    """

    segments: Segments
    programs: tuple[SegmentProgram, ...]
    cells: dict[Tensor, torch.Tensor]

    def run(
        self, tensors: Sequence[torch.Tensor], example: Sequence[torch.Tensor], module: torch.nn.Module,
        before: Callable[[Sequence[int]], None],
    ) -> dict[Place, torch.Tensor]:
        """Run all of them.

        Args:
            tensors: Inputs of the step.
            example: Those of one micro-batch.
            module: The Lightning module, whose gradients are read and written.
            before: Called before a program with the numbers of the steps that it makes.

        Returns:
            What each segment has computed, by segment and place: ``[replicas, ...]``.
        """
        values: dict[Place, torch.Tensor] = {}
        with torch.inference_mode(False), torch.no_grad():
            for name, cell in self.segments.held.items():
                gradient = module.get_parameter(name).grad
                assert gradient is not None
                self.cells[cell].copy_(gradient)
            for level, program in enumerate(self.programs):
                before([update.step for update in program.segment.updates])
                sources = self.segments.sources[level]
                given = [tensors[s] if isinstance(s, int) else values[s] for s in sources]
                shown = [example[s] if isinstance(s, int) else values[s][0] for s in sources]
                values.update({(level, place): v for place, v in enumerate(program.run(given, shown))})
            self._leave_gradients(module, values)
        return values

    def _leave_gradients(self, module: torch.nn.Module, values: dict[Place, torch.Tensor]) -> None:
        """Let parameters have the gradients that are left at the end."""
        left = self.segments.gradients
        for name, parameter in module.named_parameters():
            if name not in left:
                parameter.grad = None
                continue
            found = left[name]
            if isinstance(found, Tensor):
                parameter.grad = self.cells[found].clone()
            elif found is not None:
                parameter.grad = values[found][0].to(parameter.dtype)


class ManualStage(StageModel):
    """Training by ``automatic_optimization = False``: a batch of Lightning's is one run of the step's programs.

    Attributes:
        optimizers: The user's own.
        pieces: Micro-batches in a full batch: the replicas.
    """

    is_training = True
    pieces = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.optimizers: list[torch.optim.Optimizer] = []
        self._steps: dict[object, StepPrograms] = {}

    def goes_on_from(self, known: StageModel) -> bool:
        """Never: each ``fit`` has optimisers of its own, which the programs hold."""
        return False

    @property
    def trains(self) -> bool:
        """Whether there is something to train; the step itself says."""
        return True

    def run(self, batch: Batch) -> Result:
        """Run the step on a batch."""
        optimised = tuple(id(p) for one in self.optimizers for group in one.param_groups for p in group["params"])
        [(_, capture)] = self.planned([batch], (self.module_key(), optimised))
        assert isinstance(capture, ManualCapture)
        owner = self.owner(capture)
        assert isinstance(owner, ManualCapture)
        steps = self._programs_of(owner, batch.pieces)
        slots = torch.tensor([capture.slots(batch.at) for _ in range(batch.pieces)])
        gradients = self._gradients(capture)
        tensors = [*batch.tensors, slots, *gradients]
        example = [*batch.example(), slots[0], *gradients]
        values = steps.run(tensors, example, self.module, lambda numbers: capture.do_early(numbers, batch.at))
        assert owner._captured is not None
        outputs = [
            values[place].to(dtype)
            for place, dtype in zip(steps.segments.results, owner._captured.output_dtypes, strict=False)
        ]
        return Result(batch, capture, Results(outputs, 0, batch.pieces, capture.tape.reductions))

    def _gradients(self, capture: ManualCapture) -> list[torch.Tensor]:
        gradients = [self.module.get_parameter(name).grad for name in capture.held]
        return [gradient.detach() for gradient in gradients if gradient is not None]

    def _new_capture(self, batch: Batch, core: CoreOptions) -> StepCapture:
        members = members_of(core.process_group)
        replicas = self._replicas(batch.pieces) * (1 if members is None else members.size)
        return ManualCapture(
            self.module, batch.call, self._options, self.surrounding, is_training=True, error=self.error,
            held=with_gradients(self.module), replicas=replicas, averages=core.accumulation_reduction == "mean",
        )

    def _example(self, batch: Batch, capture: StepCapture) -> list[torch.Tensor]:
        assert isinstance(capture, ManualCapture)
        return [*batch.example(), *self._gradients(capture)]

    def _replicas(self, pieces: int) -> int:
        return self.core().replicas if pieces == self.pieces else 1

    def _programs_of(self, owner: ManualCapture, pieces: int) -> StepPrograms:
        """Return the programs of a capture, made now if there are none."""
        found = self._steps.get(id(owner))
        if found is not None:
            return found
        segments, core = owner.segments(), self.core()
        tensors = {cell for segment in segments.parts for cell in segment.cells}
        cells = {cell: torch.zeros(cell.shape, dtype=TORCH_DTYPES[cell.dtype]) for cell in tensors}
        programs = []
        for level, segment in enumerate(segments.parts):
            options = dataclasses.replace(
                core, gradient_accumulation=1, device_iterations=1, replicas=self._replicas(pieces), seed=self._seed(),
                execution=not_pipelined(core.execution),
            )
            program = SegmentProgram(
                self.module, self.optimizers, options, owner, segment, cells, self._options_of, self._compiled,
            )
            self._programs[id(owner), level] = program
            programs.append(program)
        found = self._steps[id(owner)] = StepPrograms(segments, tuple(programs), cells)
        return found

    def _options_of(self, optimizer: torch.optim.Optimizer) -> CoreOptions:
        return core_options(self._options, optimizer)
