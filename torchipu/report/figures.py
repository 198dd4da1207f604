"""The figures that a profile holds; how they come about is in ``profile``, how they read in ``text``."""

from __future__ import annotations

from dataclasses import dataclass

from torchipu.device.memory import TileMemory


@dataclass(frozen=True, slots=True)
class GenericOp:
    """An op without a record of its own: values are exact, cycles come from the generic estimate."""

    target: str
    count: int
    source: str


@dataclass(frozen=True, slots=True)
class CodeletUse:
    """How much a codelet is used.

    Attributes:
        name: Name of the codelet.
        compute_sets: Compute sets in the program that run it.
        cycles: Compute cycles of an iteration over all its runs.
        code_bytes: Bytes of code on a tile.
    """

    name: str
    compute_sets: int
    cycles: int
    code_bytes: int


@dataclass(frozen=True, slots=True)
class OpCycles:
    """Cycles that one op takes in an iteration, its syncs and exchanges included."""

    name: str
    kind: str
    function: str
    source: str
    cycles: int


@dataclass(frozen=True, slots=True)
class ChoiceCycles:
    """Cycles that depend on data.

    Attributes:
        kind: ``cond`` or ``while_loop``.
        function: Where it is.
        source: The user's line.
        cycles: Of each branch, of which the dearest is counted; or of one trip of a loop, of which one is counted.
    """

    kind: str
    function: str
    source: str
    cycles: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Figures:
    """What one iteration, a weight update or an inference run, takes of the machine.

    Attributes:
        target: Name of the machine.
        title: Its name for people.
        clock_hz: Tile clock.
        tile_memory_bytes: Bytes that a tile has.
        num_ipus: IPUs that the model uses.
        replicas: Copies of the model, each on as many IPUs.
        is_training: Whether an iteration ends in an update of weights.
        micro_batches: Micro-batches of an iteration.
        micro_batch_size: Samples of a micro-batch: the first size of the first input.
        device_iterations: Iterations of a call.
        cycles_per_update: Cycles of an iteration.
        microseconds_per_update: The same in time.
        samples_per_second: Samples of an iteration, of all replicas, over its time.
        memory_by_ipu: The fullest tile of each IPU.
        efficiency_by_ipu: Share of the time in which each IPU works, 0 to 1.
        pipeline_fill: Micro-batches over pipeline cycles, 0 to 1.
        cycles_by_category_by_ipu: Cycles of each IPU by category, ``idle`` among them.
        cycles_by_function: Cycles of one run of each function.
        num_compute_sets: Compute sets in the program.
        supersteps_per_update: Compute sets run in an iteration.
        codelets: In order of cycles.
        slowest_ops: The ten ops that take most.
        choices: Branches and loops whose cycles depend on data.
        generic_ops: Ops without a record.
        timeline: Text chart of an iteration.
        statistics: Table of the magnitudes of results in the last call; empty where they are not counted.
        host_buffer_bytes: Of the host's memory that buffers of inputs take, of one replica.
        host_waits_by_ipu: Cycles in which each IPU waits for the host to fill them; ``host`` has them too.
    """

    target: str
    title: str
    clock_hz: float
    tile_memory_bytes: int
    num_ipus: int
    replicas: int
    is_training: bool
    micro_batches: int
    micro_batch_size: int
    device_iterations: int
    cycles_per_update: int
    microseconds_per_update: float
    samples_per_second: float
    memory_by_ipu: tuple[TileMemory, ...]
    efficiency_by_ipu: tuple[float, ...]
    pipeline_fill: float
    cycles_by_category_by_ipu: tuple[dict[str, int], ...]
    cycles_by_function: dict[str, int]
    num_compute_sets: int
    supersteps_per_update: int
    codelets: tuple[CodeletUse, ...]
    slowest_ops: tuple[OpCycles, ...]
    choices: tuple[ChoiceCycles, ...]
    generic_ops: tuple[GenericOp, ...]
    timeline: str
    statistics: str = ""
    host_buffer_bytes: int = 0
    host_waits_by_ipu: tuple[int, ...] = ()

    @property
    def fullest_tile(self) -> TileMemory:
        """Memory of the fullest tile of all IPUs."""
        return max(self.memory_by_ipu, key=lambda memory: memory.total_bytes)


def rate_words(rate: float) -> str:
    """Return samples a second for people: whole ones, or three digits where there are fewer.

    Args:
        rate: In samples a second.
    """
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
