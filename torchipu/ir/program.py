"""The device program: variables on tiles, compute sets of vertices, and control flow in Poplar's terms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.mapping import TileMapping
from torchipu.ir.types import DType, Role
from torchipu.ir.vertices import Tiling


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """Storage with a tile mapping.

    Attributes:
        name: Name of the graph tensor it holds.
        shape: Sizes.
        dtype: Element type.
        ipu: IPU whose tiles hold it.
        mapping: Elements by tile.
        role: Decides its lifetime.
        depth: Copies held at once: more than 1 for a stash between forward and backward of a stage.
        off_chip: Held in Streaming Memory and brought in for the update only.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    ipu: int
    mapping: TileMapping
    role: Role
    depth: int = 1
    off_chip: bool = False

    @property
    def num_elements(self) -> int:
        """Product of the sizes."""
        return math.prod(self.shape)

    @property
    def device_bytes(self) -> int:
        """Bytes of one copy over all tiles."""
        return self.num_elements * self.dtype.device_bytes


@dataclass(frozen=True, slots=True, eq=False)
class VertexGroup:
    """Vertices of one codelet in a compute set, one vertex a run.

    Attributes:
        codelet: Name in the codelet table.
        fields: Variables by field name.
        runs: Iteration space by tile.
        op: What they compute, or a part of it.
        number: Which of the compute sets of the op it is.
        count: How many these are.
        work: Sizes on the busiest tile that the codelet's cycle formula reads.
        cycles: Cycles of the slowest vertex.
        temporary_bytes: Bytes that a tile needs while this group runs.
        writes_interleaved: Whether what the vertices write has to lie in interleaved memory.
        partial_bytes: Bytes among the temporary ones that they write so; 0 where they write results at once.
        control_bytes: Control code, beyond what the least compute set takes.
        state_bytes: State of the vertices, the same.
        over_shares: Whether the vertices of each replica take its share of what ``is_divided``.
        tiling: Gives the vertices one by one, for the tile machine; None where one vertex computes the whole op there.
    """

    codelet: str
    fields: Mapping[str, Variable]
    runs: TileMapping
    op: Op
    number: int = 0
    count: int = 1
    work: Mapping[str, int] = field(default_factory=dict)
    cycles: int = 0
    temporary_bytes: int = 0
    writes_interleaved: bool = False
    partial_bytes: int = 0
    control_bytes: int = 0
    state_bytes: int = 0
    over_shares: bool = False
    tiling: Tiling | None = None

    def is_divided(self, tensor: Tensor, held: Variable) -> bool:
        """Whether each replica takes its share of an operand or a result of the op.

        That are those of as many elements as the first operand, but for hyper-parameters, of which it has all.

        Args:
            tensor: The operand or result.
            held: The variable that holds it.
        """
        if not self.over_shares or tensor.role is Role.HYPERPARAMETER:
            return False
        return held.num_elements == self.op.inputs[0].num_elements


@dataclass(frozen=True, slots=True, eq=False)
class ComputeSet:
    """Vertices that run together in one superstep."""

    name: str
    ipu: int
    groups: tuple[VertexGroup, ...]
    op: Op


@dataclass(frozen=True, slots=True, eq=False)
class Execute:
    """Run a compute set."""

    compute_set: ComputeSet


@dataclass(frozen=True, slots=True, eq=False)
class Copy:
    """Move a variable: exchange between tiles of one IPU, IPU-Link between two.

    Attributes:
        src: Variable read.
        dst: Variable written.
        total_bytes: Bytes moved in all.
        max_tile_bytes: Bytes received by the busiest tile.
        fragments: Contiguous pieces received by the busiest tile.
        table: ``src`` or ``dst`` where that one is a table, of which the copy moves the row that has the number of the
            trip of the loop around; empty where all of both is moved.
        reads: The tensor that is moved, which is the source itself or a view of it; None for the source as it lies.
    """

    src: Variable
    dst: Variable
    total_bytes: int = 0
    max_tile_bytes: int = 0
    fragments: int = 1
    table: str = ""
    reads: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Gather:
    """Bring operands onto the tiles of the vertices that read them next, in one exchange.

    Which elements go to which tile follows from the regions of the vertices (``VertexGroup.tiling``) and the mappings
    of the variables.

    Attributes:
        variables: What is read of; ops on tiles of their own gather at the same time.
        total_bytes: Bytes moved in all.
        max_tile_bytes: Bytes received by the busiest tile.
        fragments: Contiguous pieces received by the busiest tile.
    """

    variables: tuple[Variable, ...]
    total_bytes: int
    max_tile_bytes: int
    fragments: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class HostCopy:
    """Move a variable between a host stream, or Streaming Memory, and the device.

    Attributes:
        stream: Name of the stream.
        variable: What is moved.
        to_device: Which way.
        overlap: ``none``: computation waits; ``accumulation_loop``: a function computes one micro-batch while the
            stream moves another, but for the first of an update; ``device_iteration_loop``: that one too.
    """

    stream: str
    variable: Variable
    to_device: bool
    overlap: str = "none"


@dataclass(frozen=True, slots=True, eq=False)
class AllReduce:
    """Sum, or average, variables over the replicas, or exchange them.

    Attributes:
        variables: What is reduced, on one IPU of each replica.
        mean: Whether the sum is divided by the number of replicas.
        replicas: How many take part.
        kind: ``all_reduce``; ``reduce_scatter``, which leaves each replica its share of the sums; ``all_gather``,
            which gives all of them the shares of each; ``broadcast`` of one replica's; ``all_to_all``, a share from
            each to each; or ``point_to_point``, from one to another.
    """

    variables: tuple[Variable, ...]
    mean: bool
    replicas: int = 2
    kind: str = "all_reduce"


@dataclass(frozen=True, slots=True, eq=False)
class Sync:
    """Wait for all tiles of a scope: ``ipu``, ``replica`` or ``host``."""

    scope: str


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """Run a function of the executable; ``micro_batch`` selects the slot of streams and stashes."""

    function: str
    micro_batch: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sequence:
    """Run programs one after another."""

    body: tuple[Program, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Repeat:
    """Run a program a fixed number of times.

    Attributes:
        count: How often.
        body: What is run.
        op: The loop of the user's that asked for it; None for the iterations of ``main``, and for an op that a tile
            computes in parts.
    """

    count: int
    body: Program
    op: Op | None = None


@dataclass(frozen=True, slots=True, eq=False)
class If:
    """Run one of two programs, as the single element of a variable says.

    Attributes:
        condition: Boolean that the tiles agree on.
        then: Run where it is true.
        otherwise: Run where it is false.
        op: What asked for it.
    """

    condition: Variable
    then: Program
    otherwise: Program
    op: Op


@dataclass(frozen=True, slots=True, eq=False)
class RepeatWhile:
    """Run a program as often as a test that runs before it says.

    Attributes:
        test: Computes the condition.
        condition: Boolean that the tiles agree on.
        body: Run while it is true.
        op: What asked for it.
    """

    test: Program
    condition: Variable
    body: Program
    op: Op


@dataclass(frozen=True, slots=True, eq=False)
class OnIpus:
    """Run programs side by side, one an IPU, until the next sync: one pipeline cycle."""

    bodies: tuple[Program, ...]


Program = Execute | Copy | Gather | HostCopy | AllReduce | Sync | Call | Sequence | Repeat | If | RepeatWhile | OnIpus


def parts_of(program: Program) -> tuple[Program, ...]:
    """Return the programs that a program of control flow runs itself; calls of functions are none."""
    match program:
        case Sequence(body=parts) | OnIpus(bodies=parts):
            return parts
        case Repeat(body=part):
            return (part,)
        case If(then=then, otherwise=otherwise):
            return (then, otherwise)
        case RepeatWhile(test=test, body=part):
            return (test, part)
    return ()


def leaves_of(program: Program) -> Iterator[Program]:
    """Yield what a program of control flow runs in the end, in the order in which it is written down."""
    parts = parts_of(program)
    for part in parts:
        yield from leaves_of(part)
    if not parts:
        yield program


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """All that one compilation yields for the device.

    Attributes:
        programs: Entry points by name; ``main`` runs once a call.
        functions: Bodies that ``Call`` names: ``0F`` is the forward of stage 0, ``U0`` the update on IPU 0.
        variables: All variables.
        addresses: Begin and end within the tile by variable name, in bytes.
        num_ipus: IPUs used.
        code_bytes: Bytes of code by codelet name.
        replicas: Copies of all this, each on IPUs of its own, of which a process runs so many.
        instances: Processes that do.
        views: The op that makes each value which has no variable of its own: it is seen in the variable of its operand.
        returned: States that the host hands back as results, as they are before an iteration; nothing is streamed.
        outlined: Whether parts that are alike share control code, vertex state and exchange code.
    """

    programs: Mapping[str, Program]
    functions: Mapping[str, Program]
    variables: tuple[Variable, ...]
    addresses: Mapping[str, tuple[int, int]]
    num_ipus: int = 1
    code_bytes: Mapping[str, int] = field(default_factory=dict)
    replicas: int = 1
    instances: int = 1
    views: Mapping[Tensor, Op] = field(default_factory=dict)
    returned: tuple[Tensor, ...] = ()
    outlined: bool = True
