"""One choice of stages, compiled as far as its cycles and its memory: the machine model has the last word."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, replace

from torchipu.compiler import Compiled, try_graph
from torchipu.device.memory import TileMemory, tile_memory
from torchipu.ir.graph import Graph
from torchipu.ir.modules import Module, block_name, coarse_modules, with_blocks
from torchipu.options import Options, Stage
from torchipu.partition.model import ALL, STAGE
from torchipu.partition.search import Cuts
from torchipu.target import Target

BLOCKS_A_STAGE = 1.5
"""Where blocks are recomputed, a module of less than this part of a stage is one; larger ones are taken apart."""

Blocks = Sequence[Sequence[str]]  # of a stage: of each block the paths of its modules


@dataclass(frozen=True, slots=True)
class Trial:
    """What the machine model says of a choice.

    Attributes:
        stages: The blocks of each stage, of each block the paths of its modules; the first one names it.
        ipus: The IPU of each stage.
        options: With stages, recomputation and enough micro-batches.
        compiled: Cycles.
        memory: The fullest tile of each IPU.
        micro_batches: Of an update.
    """

    stages: tuple[tuple[tuple[str, ...], ...], ...]
    ipus: tuple[int, ...]
    options: Options
    compiled: Compiled
    memory: tuple[TileMemory, ...]
    micro_batches: int

    @property
    def fits(self) -> bool:
        """Whether every tile holds what it needs."""
        return all(memory.total_bytes <= self.compiled.target.tile_memory_bytes for memory in self.memory)

    @property
    def overflow_bytes(self) -> int:
        """Bytes that the fullest tile lacks; negative where there is room."""
        return max(memory.total_bytes for memory in self.memory) - self.compiled.target.tile_memory_bytes

    @property
    def words(self) -> str:
        """What is recomputed, in words."""
        chosen = self.options.recompute
        if isinstance(chosen, str):
            return "nothing is recomputed" if chosen == "none" else "every stage but the last is recomputed as a whole"
        again = [str(number) for number, stage in enumerate(self.stages) if block_name(stage[0][0]) in chosen]
        return f"the blocks of stage{'s' * (len(again) > 1)} {', '.join(again)} are recomputed from their inputs"

    @property
    def cycles(self) -> float:
        """A micro-batch's share of the cycles of an update."""
        return self.compiled.cost.cycles / self.micro_batches


def try_stages(
    graph: Graph, stages: Sequence[Blocks], ipus: Sequence[int], recompute: str | tuple[str, ...],
    options: Options, target: Target, *, is_training: bool, micro_batches: int,
) -> Trial:
    """Compile a choice of stages.

    Args:
        graph: As captured, without blocks.
        stages: The blocks of each stage, of each block the paths of its modules.
        ipus: The IPU of each stage.
        recompute: The option.
        options: The user's.
        target: The machine.
        is_training: Whether there is a backward.
        micro_batches: Of an update, or of an inference run.
    """
    placed = list(zip(stages, ipus, strict=True))
    listed = tuple(Stage(tuple(block_name(block[0]) for block in stage), ipu) for stage, ipu in placed)
    chosen = replace(options, stages=listed, recompute=recompute)
    if is_training:
        chosen = replace(chosen, gradient_accumulation=micro_batches)
    else:
        chosen = replace(chosen, device_iterations=micro_batches)
    blocks = [(block, ipu) for stage, ipu in placed for block in stage]
    marked = with_blocks(graph, {path: (block_name(block[0]), ipu) for block, ipu in blocks for path in block})
    compiled = try_graph(marked, chosen, target, micro_batches=micro_batches)
    memory = tile_memory(compiled.executable, target, chosen.io_tiles)
    kept = tuple(tuple(map(tuple, stage)) for stage in stages)
    return Trial(kept, tuple(ipus), chosen, compiled, memory, micro_batches)


def recomputed(stages: Sequence[Blocks], kinds: Sequence[str]) -> str | tuple[str, ...]:
    """Return the option ``recompute`` of a choice.

    Args:
        stages: The blocks of each stage.
        kinds: What each stage recomputes.
    """
    if STAGE in kinds:
        return "stage"
    return tuple(
        block_name(block[0]) for stage, kind in zip(stages, kinds, strict=True) if kind == ALL for block in stage
    ) or "none"


def blocks_of(root: Module, modules: Sequence[Module], cuts: Cuts, whole: Container[int]) -> tuple[Blocks, ...]:
    """Return the blocks of each stage: modules as large as they may be without a cut in them.

    What a stage recomputes it keeps the inputs of its blocks for, so that parts of a module that a cut divides are one
    block on either side.

    Args:
        root: The model.
        modules: The units' modules.
        cuts: The unit at which each stage begins.
        whole: Units that do not cut a larger module in two.
    """
    positions = [modules[begin].begin for begin in cuts.begins]
    starts = {module.begin for number, module in enumerate(modules) if number in whole} | set(positions)
    largest = root.cycles / (len(positions) * BLOCKS_A_STAGE) if ALL in cuts.kinds else root.cycles
    stages: list[list[list[str]]] = [[] for _ in positions]
    for module in coarse_modules(root, positions[1:], largest):
        stage = max(number for number, position in enumerate(positions) if number == 0 or position <= module.begin)
        if cuts.kinds[stage] == ALL and stages[stage] and module.begin not in starts:
            stages[stage][-1].append(module.path)
        else:
            stages[stage].append([module.path])
    return tuple(tuple(map(tuple, stage)) for stage in stages)
