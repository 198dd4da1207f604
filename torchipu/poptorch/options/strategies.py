"""Execution strategies: how blocks become stages and phases, and which of them run at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from torchipu.poptorch.enums import AutoStage, Liveness
from torchipu.poptorch.poptorch_core import createPoptorchError


class Stage:
    """Blocks that run as one, on one IPU.

    Args:
        *block_ids: Names of the blocks.
    """

    def __init__(self, *block_ids: str) -> None:
        if not all(isinstance(block_id, str) for block_id in block_ids):
            raise AssertionError(f"Block IDs are supposed to be strings but got {block_ids}")
        self._blocks = block_ids
        self._stage_id = -1
        self._ipu_id: int | None = None
        self._phase_id = -1

    @property
    def blocks(self) -> tuple[str, ...]:
        """Names of the blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Self:
        """Set the IPU; it wins over the ``ipu_id`` of the blocks.

        Args:
            ipu: Its number within the model, from 0.
        """
        if not isinstance(ipu, int):
            raise AssertionError(f"ipu takes an int, not {type(ipu)}")
        self._ipu_id = ipu
        return self

    def __repr__(self) -> str:
        ipu = "" if self._ipu_id is None else f".ipu({self._ipu_id})"
        return f"Stage({', '.join(map(repr, self._blocks))}){ipu}"


class _IExecutionStrategy:
    """What all strategies have: the blocks that they know, and the stage of each.

    Attributes:
        backend_code: Its number in PopTorch's executables.
    """

    backend_code = -1

    def stage(self, block_id: str) -> Stage:
        """Return the stage of a block.

        Args:
            block_id: Name of the block.

        Raises:
            AssertionError: There is no such block.
        """
        stages = self._stages()
        if block_id not in stages:
            raise AssertionError(f"Unknown block {block_id}")
        return stages[block_id]

    def listed_blocks(self) -> Sequence[str]:
        """Return the names of the blocks that the user listed; none where stages follow from the blocks that begin."""
        return ()

    def onStart(self) -> None:
        """Forget what an earlier capture has numbered."""

    def placement(self, block_id: str, ipu_id: int | None) -> Stage:
        """Return the stage of a block that begins during capture, its IPU and number settled.

        Args:
            block_id: Name of the block.
            ipu_id: IPU that the block asks for; None if it does not say.

        Raises:
            AssertionError: The strategy does not know the block, or the block lacks the IPU that it needs.
        """
        raise NotImplementedError

    def default_ipu(self, stage: Stage) -> int:
        """Return the IPU of a stage that names none and whose block names none.

        Args:
            stage: Of a block that begins.
        """
        return stage._stage_id

    def check_ipu(self, stage: Stage, ipu: int) -> None:
        """Refuse an IPU for a stage.

        Args:
            stage: Of a block that begins.
            ipu: Its IPU.

        Raises:
            Error: The stage cannot be there.
        """

    def backendOptions(self) -> dict[str, Any]:
        """Return what the strategy adds to `Options.toDict`."""
        return {"execution_mode": self.backend_code}

    def _stages(self) -> dict[str, Stage]:
        """Return the stage of each known block."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._parts()))})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)

    def __hash__(self) -> int:
        return hash(repr(self))

    def _parts(self) -> Sequence[object]:
        """Return what the strategy was made of."""
        raise NotImplementedError


class _StagedExecution(_IExecutionStrategy):
    """Stages in a list, or numbered as blocks begin.

    Args:
        *args: One `AutoStage`, or in order of the stages: a `Stage`, the name of a block, or a list of names.
    """

    def __init__(self, *args: AutoStage | Stage | str | Sequence[str]) -> None:
        automatic = [argument for argument in args if isinstance(argument, AutoStage)]
        if automatic and len(args) != 1:
            raise AssertionError("An AutoStage must be the only argument")
        self._automatic = automatic[0] if automatic else None if args else AutoStage.SameAsIpu
        self._listed: dict[str, Stage] = {}
        self._seen: dict[str, Stage] = {}
        for stage_id, argument in enumerate(() if automatic else args):
            stage = _as_stage(argument)
            stage._stage_id = stage_id
            _add_blocks(self._listed, stage)

    def onStart(self) -> None:
        """Forget what an earlier capture has numbered."""
        self._seen = {}

    def placement(self, block_id: str, ipu_id: int | None) -> Stage:
        """Return the stage of a block that begins during capture, its IPU and number settled."""
        if self._automatic is None:
            if block_id not in self._listed:
                raise AssertionError(f"Unknown Block '{block_id}' list of expected Blocks: {list(self._listed)}")
            return self._listed[block_id]
        if block_id not in self._seen:
            stage = Stage(block_id)
            if self._automatic is AutoStage.SameAsIpu:
                if ipu_id is None:
                    raise AssertionError(
                        f"poptorch.AutoStage.SameAsIpu was selected but no IPU was specified for block {block_id}"
                    )
                stage._stage_id = ipu_id
            else:
                # Stage 0 is what runs before any block.
                stage._stage_id = len(self._seen) + 1
            self._seen[block_id] = stage
        return self._seen[block_id]

    def listed_blocks(self) -> Sequence[str]:
        """Return the names of the blocks in the stages; none where stages are numbered as blocks begin."""
        return list(self._listed)

    def _stages(self) -> dict[str, Stage]:
        return self._seen if self._automatic is not None else self._listed

    def _parts(self) -> Sequence[object]:
        if self._automatic is not None:
            return [self._automatic]
        return list(dict.fromkeys(self._listed.values()))


def _as_stage(argument: object) -> Stage:
    """Return the stage that an argument of a strategy stands for."""
    if isinstance(argument, Stage):
        return argument
    if isinstance(argument, str):
        return Stage(argument)
    if not isinstance(argument, (list, tuple)):
        raise AssertionError(f"A stage is a poptorch.Stage, a block ID or a list of block IDs, not {type(argument)}")
    return Stage(*argument)


def _listed(noun: str, parts: Sequence[Stage | Phase], at: Stage | Phase, note: str) -> str:
    """Return a line for each stage or phase, with an arrow at one of them."""
    lines = []
    for number, part in enumerate(parts):
        stages = part.stages if isinstance(part, Phase) else [part]
        places = [f" on IPU {stage._ipu_id}" if stage._ipu_id is not None else "" for stage in stages]
        text = "; ".join(", ".join(stage.blocks) + place for stage, place in zip(stages, places, strict=True))
        lines.append(f"\n  {noun} {number}: {text}" + (f"   <-- {note}" if part is at else ""))
    return "".join(lines)


def _add_blocks(stages: dict[str, Stage], stage: Stage) -> None:
    for block_id in stage.blocks:
        known = [*dict.fromkeys(stages.values()), *([] if stage in stages.values() else [stage])]
        if block_id in stages:
            raise AssertionError(
                f"{block_id} associated with more than one stage" + _listed("Stage", known, stage, f"{block_id} again")
            )
        stages[block_id] = stage


class PipelinedExecution(_StagedExecution):
    """Stages work on different micro-batches at the same time.

    Args:
        *args: One `AutoStage`, or in order of the stages: a `Stage`, the name of a block, or a list of names.
    """

    backend_code = 0


class ShardedExecution(_StagedExecution):
    """One stage works at a time.

    Args:
        *args: One `AutoStage`, or in order of the stages: a `Stage`, the name of a block, or a list of names.
    """

    backend_code = 1


class Phase:
    """Stages that run at the same time, each on an IPU of its own.

    Args:
        *stages: Stages, or names of blocks, which then make one stage.
    """

    def __init__(self, *stages: Stage | str) -> None:
        if not stages:
            raise AssertionError("A phase needs at least one stage or block")
        if all(isinstance(stage, str) for stage in stages):
            self._all = [Stage(*stages)]  # type: ignore[arg-type]
        else:
            if not all(isinstance(stage, Stage) for stage in stages):
                raise AssertionError(f"A phase is made of stages or of block IDs, not of {stages}")
            self._all = list(stages)  # type: ignore[arg-type]

    def stage(self, index: int) -> Stage:
        """Return one of the stages.

        Args:
            index: Its place in the phase.
        """
        return self._all[index]

    @property
    def stages(self) -> list[Stage]:
        """The stages, in order."""
        return list(self._all)

    def ipus(self, *ipus: int) -> Self:
        """Set the IPU of each stage.

        Args:
            *ipus: As many as there are stages.
        """
        if len(ipus) != len(self._all):
            raise AssertionError(f"The phase has {len(self._all)} stages but got {len(ipus)} IPUs")
        for stage, ipu in zip(self._all, ipus, strict=True):
            stage.ipu(ipu)
        return self

    def __repr__(self) -> str:
        return f"Phase({', '.join(map(repr, self._all))})"


class _PhasedExecution(_IExecutionStrategy):
    """Phases one after another, with tensors in Streaming Memory between them.

    Args:
        *phases: In order: a `Phase`, a list of stages, or a list of names of blocks, which make one stage.
    """

    backend_code = 2

    def __init__(self, *phases: Phase | Sequence[Stage] | Sequence[str]) -> None:
        if not phases:
            raise AssertionError(f"{type(self).__name__} needs at least one phase: there is no AutoStage for phases")
        if any(isinstance(phase, AutoStage) for phase in phases):
            raise AssertionError(f"{type(self).__name__} takes phases: there is no AutoStage for phases")
        self._phases = [_as_phase(phase) for phase in phases]
        self._listed: dict[str, Stage] = {}
        self._separate_backward = False
        self._tensors_liveness = Liveness.AlwaysLive
        for number, phase in enumerate(self._phases):
            for stage_id, stage in enumerate(phase.stages):
                stage._phase_id, stage._stage_id = number, stage_id
                _add_blocks(self._listed, stage)

    def phase(self, index: int) -> Phase:
        """Return one of the phases.

        Args:
            index: Its place.
        """
        if not (0 <= index < len(self._phases)):
            raise AssertionError(f"There are {len(self._phases)} phases, and no phase {index}")
        return self._phases[index]

    def useSeparateBackwardPhase(self, use: bool = True) -> Self:
        """Give the last backward a phase of its own, apart from the last forward.

        Args:
            use: Whether to.
        """
        if not isinstance(use, bool):
            raise AssertionError(f"useSeparateBackwardPhase takes a bool, not {type(use)}")
        self._separate_backward = use
        return self

    def placement(self, block_id: str, ipu_id: int | None) -> Stage:
        """Return the stage of a block that begins during capture, its phase settled."""
        if block_id not in self._listed:
            raise AssertionError(f"Unknown Block '{block_id}' list of expected Blocks: {list(self._listed)}")
        return self._listed[block_id]

    def forward_phase(self, phase: int) -> int:
        """Return the number that the device gives to the forward of a phase."""
        return phase * self._step

    def backward_phase(self, phase: int) -> int:
        """Return the number that the device gives to the backward of a phase."""
        last = len(self._phases) if self._separate_backward else len(self._phases) - 1
        return (2 * last - phase) * self._step

    @property
    def num_phases(self) -> int:
        """Number of phases of a training step."""
        return self.backward_phase(0) + 1

    @property
    def _step(self) -> int:
        """How far apart the numbers of phases lie."""
        return 1

    def phases(self, *, is_training: bool) -> int:
        """Return how many phases a micro-batch goes through.

        Args:
            is_training: Whether it comes back.
        """
        return self.num_phases if is_training else self.forward_phase(len(self._phases) - 1) + 1

    @property
    def has_one_stage_each(self) -> bool:
        """Whether no phase spreads over several IPUs."""
        return all(len(phase.stages) == 1 for phase in self._phases)

    def listed_blocks(self) -> Sequence[str]:
        """Return the names of the blocks in the phases."""
        return list(self._listed)

    def _stages(self) -> dict[str, Stage]:
        return self._listed

    def _parts(self) -> Sequence[object]:
        return self._phases

    def backendOptions(self) -> dict[str, Any]:
        """Return what the strategy adds to `Options.toDict`."""
        return {"execution_mode": self.backend_code, "separate_backward_phase": self._separate_backward}


def _as_phase(argument: object) -> Phase:
    """Return the phase that an argument of a strategy stands for."""
    if isinstance(argument, Phase):
        return argument
    if isinstance(argument, (Stage, str)):
        return Phase(argument)
    if not isinstance(argument, (list, tuple)):
        raise AssertionError(
            f"A phase is a poptorch.Phase, a list of stages or a list of block IDs, not {type(argument)}"
        )
    return Phase(*argument)


class SerialPhasedExecution(_PhasedExecution):
    """All phases on the same IPUs.

    Args:
        *phases: In order: a `Phase`, a list of stages, or a list of names of blocks, which make one stage.
    """

    def setTensorsLiveness(self, liveness: Liveness) -> Self:
        """Set where tensors are between phases.

        Args:
            liveness: The place.
        """
        if not isinstance(liveness, Liveness):
            raise AssertionError(f"setTensorsLiveness takes a poptorch.Liveness, not {type(liveness)}")
        self._tensors_liveness = liveness
        return self

    @property
    def _step(self) -> int:
        return {Liveness.OffChipAfterFwdNoOverlap: 2, Liveness.OffChipAfterEachPhase: 4}.get(self._tensors_liveness, 1)

    def backendOptions(self) -> dict[str, Any]:
        """Return what the strategy adds to `Options.toDict`."""
        return super().backendOptions() | {
            "serial_phases_execution": True, "tensors_liveness": self._tensors_liveness.value,
        }


class ParallelPhasedExecution(_PhasedExecution):
    """Even phases on even IPUs and odd phases on odd ones, so that transfers of one overlap with another's work.

    Where neither stage nor block names an IPU, the stages of an even phase are on IPU 0, 2, ... and those of an odd one
    on IPU 1, 3, ...

    Args:
        *phases: In order: a `Phase`, a list of stages, or a list of names of blocks, which make one stage.
    """

    def default_ipu(self, stage: Stage) -> int:
        """Return the next IPU of the phase's parity."""
        return 2 * stage._stage_id + stage._phase_id % 2

    def check_ipu(self, stage: Stage, ipu: int) -> None:
        """Refuse an odd IPU for an even phase and the other way round."""
        if stage._phase_id % 2 != ipu % 2:
            parity = "odd" if stage._phase_id % 2 else "even"
            raise createPoptorchError(
                f"Phase {stage._phase_id} uses IPU {ipu}, but in poptorch.ParallelPhasedExecution an {parity} phase "
                f"must use {parity} IPUs (blocks {', '.join(stage.blocks)}): set them with phase(n).ipus(...)"
                + _listed("Phase", self._phases, self._phases[stage._phase_id], f"IPU {ipu}")
            )

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> Self:
        """Move tensors to Streaming Memory after the forward.

        Args:
            off_chip: Whether to.
        """
        if not isinstance(off_chip, bool):
            raise AssertionError(f"sendTensorsOffChipAfterFwd takes a bool, not {type(off_chip)}")
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self

    def backendOptions(self) -> dict[str, Any]:
        """Return what the strategy adds to `Options.toDict`."""
        return super().backendOptions() | {
            "serial_phases_execution": False, "tensors_liveness": self._tensors_liveness.value,
        }


def num_forward_stages(ipus: Sequence[int]) -> int:
    """Return how many forward stages a pipeline has.

    Work begins on IPU 0, and every block on another IPU than the one before it begins a stage: a first block on
    IPU 1 does, and so does a return to an earlier IPU.

    Args:
        ipus: IPU of each block, in the order in which blocks begin.
    """
    return 1 + sum(ipu != before for before, ipu in zip([0, *ipus], ipus, strict=False))
