"""A proposal of `torchipu.autopipeline`: what it says, and how it is accepted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

from torchipu.capture.block import BeginBlock, BlockForward
from torchipu.errors import PlacementError, nearest
from torchipu.ir.modules import block_name
from torchipu.options import Options
from torchipu.partition.trial import Trial


@dataclass(slots=True)
class Proposal:
    """Blocks, stages and recomputation for a model; print it to see why.

    Attributes:
        model: The model.
        trial: The choice, as the machine model sees it.
        reasons: Why it is this one, a line each.
        compare_with: Tries another choice; see `compare`.
    """

    model: torch.nn.Module
    trial: Trial
    reasons: tuple[str, ...]
    compare_with: Callable[[Mapping[str, int]], Trial] = field(repr=False)

    @property
    def options(self) -> Options:
        """Options with stages, recomputation and enough micro-batches; the model needs its blocks: see `accept`."""
        return self.trial.options

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """Names of the blocks of each stage; a block begins at the module of its name."""
        return tuple(stage.blocks for stage in self.options.stages or ())

    @property
    def cycles(self) -> float:
        """Modelled cycles of an update, or of an inference run, for each of its micro-batches."""
        return self.trial.cycles

    def accept(self) -> Options:
        """Mark the blocks in the model and return the options that belong to them.

        Example: ``step = torchipu.TrainStep(model, optimizer, torchipu.autopipeline(model, (x, y), 4).accept())``.
        """
        for stage, ipu in zip(self.trial.stages, self.trial.ipus, strict=True):
            for block in stage:
                for path in block:
                    BeginBlock(self.model.get_submodule(path), block_name(block[0]), ipu)
        return self.options

    def compare(self, starts: Mapping[str, int]) -> float:
        """Return the modelled cycles per micro-batch of a split of one's own, under the same options.

        Args:
            starts: IPU by the path of the module at which a block begins, in the order of the forward. All ways of
                recomputation are tried; the fastest that fits counts, else the one that overflows least.

        Raises:
            PlacementError: A path names no module.
        """
        return self.compare_with(starts).cycles

    def __str__(self) -> str:
        compiled, cost = self.trial.compiled, self.trial.compiled.cost
        kind = "weight update" if any(name.startswith("U") for name in compiled.executable.functions) else "run"
        lines = [
            f"{_count(len(self.stages), 'stage')} on {_count(len(self.trial.memory), 'IPU')} of "
            f"{compiled.target.title}: {cost.cycles:,} cycles a {kind} of {self.trial.micro_batches} micro-batches; "
            f"{self.trial.words}",
            f"{'stage':<6}{'ipu':>4}{'forward':>12}{'backward':>12}{'recompute':>12}{'busy':>8}{'fullest tile':>16}"
            "  blocks",
        ]
        for stage, (blocks, ipu) in enumerate(zip(self.stages, self.trial.ipus, strict=True)):
            forward, backward = cost.functions.get(f"{stage}F"), cost.functions.get(f"{stage}B")
            again = backward.recompute_cycles if backward else 0
            once = backward.cycles - again if backward else 0
            lines.append(
                f"{stage:<6}{ipu:>4}{forward.cycles if forward else 0:>12,}{once:>12,}"
                f"{again:>12,}{cost.efficiency_by_ipu[ipu]:>8.1%}{self.trial.memory[ipu].total_bytes:>14,} B  "
                f"{shortened(blocks)}"
            )
        return "\n".join([*lines, *(f"- {reason}" for reason in self.reasons)])


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def shortened(blocks: tuple[str, ...]) -> str:
    """Return names of blocks, a long row by its ends."""
    if len(blocks) <= 3:
        return ", ".join(blocks)
    return f"{blocks[0]} ... {blocks[-1]} ({len(blocks)} blocks)"


def check_paths(model: torch.nn.Module, paths: Mapping[str, int]) -> None:
    """Raise PlacementError unless every path names a module of the model."""
    known = dict(model.named_modules())
    for path in paths:
        if path not in known:
            raise PlacementError(
                f"the model has no module {path!r}{nearest(path, known)}",
                remedy="name modules as model.named_modules() does",
            )


def check_unmarked(model: torch.nn.Module) -> None:
    """Raise PlacementError if modules are marked already: their blocks would hold within those proposed."""
    for path, module in model.named_modules():
        if isinstance(module.forward, BlockForward):
            raise PlacementError(
                f"module {path or 'model'!r} begins block {module.forward.spec[0]!r} already",
                remedy="give autopipeline the model as it was before BeginBlock; Proposal.compare judges a split of "
                "your own",
            )


