"""The enumerations of PopTorch, with its members and values."""

from __future__ import annotations

import enum


class SharingStrategy(enum.IntEnum):
    """How the process of an `AsynchronousDataAccessor` is made and given the data set."""

    SharedMemory = 0
    """A spawned process; tensors of the data set go through shared memory."""
    FileSystem = 1
    """A spawned process likewise: the data set, which PopTorch put into a temporary file, goes through a pipe."""
    Fork = 2
    """A forked process."""
    ForkServer = 3
    """A process forked from this one if no thread is lost by it, and else from a server that has imported torch."""


class OutputMode(enum.IntEnum):
    """Which micro-batches' results a call returns."""

    Final = 0
    """Those of the last micro-batch of each replica."""
    EveryN = 1
    """Those of every n-th device iteration."""
    All = 2
    """All."""
    Sum = 3
    """The sum over device iterations and accumulation, for each replica."""
    Default = 4
    """Final for training, All for inference."""


AnchorMode = OutputMode
"""The name of `OutputMode` before PopTorch 2.4."""


class DataLoaderMode(enum.IntEnum):
    """Where a `DataLoader` prepares its batches."""

    Sync = 0
    """In this process and its workers, as torch does."""
    Async = 1
    """In another process, which fills a ring of shared memory."""
    AsyncRebatched = 2
    """As Async, and that process joins small pieces of the workers to whole batches."""


class ConnectionType(enum.IntEnum):
    """When to attach to a device."""

    Always = 0
    """When compilation begins."""
    OnDemand = 1
    """When the executable is to be loaded."""
    Never = 2
    """Not at all: compile only."""


class HalfFloatCastingBehavior(enum.IntEnum):
    """How mixed types were cast before PopTorch 3.1; without effect."""

    FloatDowncastToHalf = 0
    HalfUpcastToFloat = 1
    Default = 2


class ReductionType(enum.IntEnum):
    """How values of micro-batches and replicas are combined."""

    Sum = 0
    """Added."""
    Mean = 1
    """Averaged."""
    NoReduction = 2
    """Left apart."""


class MeanReductionStrategy(enum.IntEnum):
    """When a mean over accumulation and replicas is divided."""

    Running = 0
    """With each gradient that is added, so that a half accumulator does not overflow."""
    Post = 1
    """Once, after the sum."""
    PostAndLoss = 2
    """As Post; deprecated."""


class SyncPattern(enum.IntEnum):
    """Which IPUs synchronise with each other."""

    Full = 0
    """All."""
    SinglePipeline = 1
    """Those of one pipeline."""
    ReplicaAndLadder = 2
    """Two groups, in turn."""


class MatMulSerializationMode(enum.Enum):
    """Which dimension of a product `serializedMatMul` splits."""

    InputChannels = "input_channels"
    ReducingDim = "reducing_dim"
    OutputChannels = "output_channels"
    Disabled = "none"


class OverlapMode(enum.Enum):
    """Whether transfers from and to the host overlap with computation."""

    NoOverlap = "no_overlap"
    OverlapAccumulationLoop = "overlap_accumulation_loop"
    OverlapDeviceIterationLoop = "overlap_device_iteration_loop"


class AutoStage(enum.IntEnum):
    """How blocks become stages where no list of stages is given."""

    SameAsIpu = 0
    """The stage is the ``ipu_id`` of the block."""
    AutoIncrement = 1
    """Each new block is the next stage."""


class Liveness(enum.IntEnum):
    """Where tensors are between the phases of `SerialPhasedExecution`."""

    AlwaysLive = 0
    """On the device."""
    OffChipAfterFwd = 1
    """Off the chip after the forward."""
    OffChipAfterFwdNoOverlap = 2
    """The same, without overlap of transfers and computation."""
    OffChipAfterEachPhase = 3
    """Off the chip after every phase."""


class MultiConvPlanType(enum.IntEnum):
    """How the convolutions of a `MultiConv` share the tiles."""

    Parallel = 0
    """Side by side."""
    Serial = 1
    """One after another."""


class CommGroupType(enum.IntEnum):
    """Which replicas form a group."""

    All = 0
    """All."""
    Consecutive = 1
    """Neighbours: 0 1, 2 3, ..."""
    Orthogonal = 2
    """Those at equal distance: 0 2, 1 3, ..."""
    NoGrouping = 3
    """Each by itself."""


class VariableRetrievalMode(enum.IntEnum):
    """Which replicas' values of a grouped parameter are read back."""

    OnePerGroup = 0
    """The first of each group."""
    AllReplicas = 2
    """Every one."""
