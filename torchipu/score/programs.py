"""Compiles the workload of a row, and keeps what rows have in common."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Protocol

import torch

from torchipu.compiler import Compiled, try_graph
from torchipu.device.memory import tile_memory
from torchipu.device.memory.always import Always
from torchipu.device.memory.by_tile import TileMap, tile_maps
from torchipu.device.memory.liveness import Liveness
from torchipu.device.memory.shares import Shares
from torchipu.estimation import workload as estimation
from torchipu.ir.modules import with_blocks
from torchipu.options import Options, TensorLocation
from torchipu.step import InferenceStep, TrainStep
from torchipu.target import lookup_target

CAPTURES = 16
"""Captures that are kept: rows of one model follow each other."""


class Workload(Protocol):
    """A model with its inputs, hashable: equal workloads are captured once."""

    def __hash__(self) -> int:
        """Return the same for equal workloads."""

    def model(self) -> torch.nn.Module:
        """Return the model, in the mode that it runs in."""

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """Return the inputs of one micro-batch."""

    def optimiser(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """Return what trains the model; None for inference."""

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """Return block and IPU by the path of a module; empty for one IPU."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a compiled workload costs.

    Attributes:
        cycles: Of a weight update, or of an inference run.
        split: Cycles of the busiest IPU by category; what others take longer is ``idle``.
        tile_bytes: The fullest of all tiles.
        bytes_by_category: Of that tile.
        overflow: Whether a tile, or its region for code, is too small.
    """

    cycles: int
    split: Mapping[str, int]
    tile_bytes: int
    bytes_by_category: Mapping[str, int]
    overflow: bool

    @property
    def device_cycles(self) -> int:
        """Cycles without those of the host's streams."""
        return self.cycles - self.split["host"]

    @property
    def device_split(self) -> dict[str, float]:
        """Categories that are not 0, without the host's streams."""
        return {name: cycles for name, cycles in self.split.items() if cycles and name != "host"}


@cache
def outcome_of(workload: Workload, options: Frozen) -> Outcome:
    """Capture and compile a workload."""
    compiled = _compiled(workload, options)
    target = compiled.target
    memory = tile_memory(compiled.executable, target, options.io_tiles)
    fullest = max(memory, key=lambda one: one.total_bytes)
    code = sum(fullest.bytes_by_category[name] for name in ("code", "exchange code"))
    cost = compiled.cost
    split = min(cost.cycles_by_category_by_ipu, key=lambda spent: spent["idle"])
    return Outcome(
        cost.cycles, split, fullest.total_bytes, fullest.bytes_by_category,
        fullest.total_bytes > target.tile_memory_bytes or code > target.code_region_bytes,
    )


@cache
def memory_of(workload: Workload, options: Frozen) -> tuple[TileMap, ...]:
    """Capture and compile a workload; return what fills every tile of each IPU."""
    compiled = _compiled(workload, options)
    liveness, shares = Liveness(compiled.executable), Shares(compiled.target.num_tiles)
    maps, _ = tile_maps(liveness, shares, Always(liveness, shares, compiled.target))
    return maps


def _compiled(workload: Workload, options: Frozen) -> Compiled:
    chosen = options.options()
    target = lookup_target(chosen.target)
    if options.tiles:
        target = replace(target, num_tiles=options.tiles)
    if options.chips > 1:
        target = replace(
            target, num_tiles=options.chips * target.num_tiles, sync_cycles=target.ipu_sync_cycles,
        )
    graph = _captured(workload).graph(chosen)
    if workload.blocks():
        graph = with_blocks(graph, workload.blocks())
    micro_batches = max(chosen.gradient_accumulation, chosen.device_iterations)
    # What replicas sum they sum over all; what they share out they share out among those of their process.
    own = replace(chosen, replicas=chosen.replicas // options.processes)
    return try_graph(graph, own, target, micro_batches=micro_batches, instances=options.processes)


def forget() -> None:
    """Compile again what was compiled, for a constant of the cost model has changed; captures stay."""
    outcome_of.cache_clear()
    memory_of.cache_clear()


@dataclass(frozen=True, slots=True)
class Frozen:
    """Options that rows state, hashable.

    Attributes:
        target: The machine.
        partials: Type of partial sums.
        memory: Available memory of each IPU; empty for the default.
        accumulation: Micro-batches of an update.
        iterations: Micro-batches of an inference run.
        replicas: Copies of the model.
        processes: That run as many of them each.
        off_chip: Whether states of the optimiser are off the chip, shared out among the replicas of a process.
        recompute: As the option.
        overlap: Whether inputs and outputs are streamed beside computation.
        io_tiles: Tiles for that.
        stochastic: Whether halves are rounded stochastically.
        tiles: Tiles of the machine; 0 for all.
        chips: IPUs whose tiles the program has as if they were those of one: every sync is one between IPUs.
        indices: Which rows indices name, as the option.
        prefetch: Buffers of each input that the host fills ahead.
        outlining: Whether parts that are alike share their code.
    """

    target: str = "mk2"
    partials: str = "float"
    memory: tuple[float, ...] = ()
    accumulation: int = 1
    iterations: int = 1
    replicas: int = 1
    processes: int = 1
    off_chip: bool = False
    recompute: str | tuple[str, ...] = "auto"
    overlap: bool = False
    io_tiles: int = 0
    stochastic: bool = False
    tiles: int = 0
    chips: int = 1
    indices: str = "uniform"
    prefetch: int = 1
    outlining: bool = True

    def options(self) -> Options:
        """Return the options; what does not fit is told, and is no error."""
        overlap = "accumulation_loop" if self.overlap else "none"
        return Options(
            target=self.target, partials_type=self.partials, available_memory=dict(enumerate(self.memory)) or None,
            gradient_accumulation=self.accumulation, device_iterations=self.iterations, replicas=self.replicas,
            optimiser_state_location=TensorLocation(on_chip=False, replicated_sharding=True) if self.off_chip else None,
            recompute=self.recompute, overlap_inputs=overlap, overlap_outputs=overlap, io_tiles=self.io_tiles,
            stochastic_rounding=self.stochastic, allow_out_of_memory=True, process_group="alone", verify=False,
            indices_distribution=self.indices, prefetch_depth=self.prefetch, outlining=self.outlining,
        )


@lru_cache(maxsize=CAPTURES)
def _captured(workload: Workload) -> estimation.Workload:
    """Return a workload that is captured once for all options; its weights have no values."""
    with torch.device("meta"):
        model = workload.model()
    optimiser = workload.optimiser(model)
    step = InferenceStep(model, None) if optimiser is None else TrainStep(model, optimiser, None)
    return estimation.Workload(step, workload.inputs(), {})


@dataclass(frozen=True)
class OnDevice:
    """A workload whose operands all lie on the device, and that trains nothing: what tools that time one op run."""

    def inputs(self) -> tuple[torch.Tensor, ...]:
        """None: nothing is streamed in."""
        return ()

    def optimiser(self, model: torch.nn.Module) -> torch.optim.Optimizer | None:
        """None: the model writes its own weights."""
        return None

    def blocks(self) -> Mapping[str, tuple[str, int]]:
        """None: one IPU."""
        return {}


class Resident(torch.nn.Module):
    """A module whose operands are buffers.

    Args:
        dtype: Of all.
        **operands: Shapes by name.
    """

    x: torch.Tensor
    w: torch.Tensor
    g: torch.Tensor
    b: torch.Tensor
    index: torch.Tensor

    def __init__(self, dtype: torch.dtype, **operands: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in operands.items():
            self.register_buffer(name, torch.zeros(shape, dtype=dtype))
        self.eval()
