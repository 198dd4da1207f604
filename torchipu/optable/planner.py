"""The host half of a record: what its emitter may ask of the planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torchipu._kernels.table.kernel import I, Kernel, S
from torchipu._kernels.table.reduce import Folding
from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.blocks import Blocks
from torchipu.optable.host_tensor import HostTensor, Rounding
from torchipu.optable.samples import Samples


@dataclass(frozen=True, slots=True)
class Joined:
    """One kernel call for neighbouring runs of a step that computes what each of them does, bit for bit.

    Attributes:
        strides: For each argument the bytes from that of a run to that of the next; 0 for one that all of them share.
        ints: Integer parameters of the call.
        items: Its size.
        grain: Items of one chunk.
    """

    strides: tuple[int, ...]
    ints: tuple[Any, ...]
    items: int
    grain: int


Joining = Callable[[int], Joined]
"""Makes the call for so many runs."""
CHUNKS_OF_JOINED = 8  # of a call of many items: enough for some threads, few enough that beginning one costs little


def more_items(strides: tuple[int, ...], ints: tuple[Any, ...], items: int, grain: int, runs: int) -> Joined:
    """Return the call for several runs of a kernel whose items alone tell where it reads and writes.

    Args:
        strides: See ``Joined``.
        ints: Of one run.
        items: Of one run.
        grain: Of one run; what an item computes must not depend on it.
        runs: How many.
    """
    return Joined(strides, ints, runs * items, max(grain, -(-runs * items // CHUNKS_OF_JOINED)))


@dataclass(slots=True, eq=False)
class Mark:
    """A place among the steps of a plan that others go on with."""


@dataclass(frozen=True, slots=True)
class ChainFold:
    """How the value of a chain is reduced, in the order in which its elements lie.

    Attributes:
        out: FLOAT, ``[results][chunks]``, or ``[chunks][results][columns]`` down columns.
        folding: What becomes of the values.
        results: Rows, or stacks of columns.
        length: Elements of a row, or rows of a stack.
        columns: Elements side by side down which is reduced; 0 where rows are reduced.
        chunk: Elements of a row, or rows of a stack, that are reduced together.
        chunks: Into which they are cut.
        scale: Multiplies the results.
        root: Whether the square root of that is taken.
        is_cut: Whether there are several chunks; a number, where sizes decide.
    """

    out: HostTensor
    folding: Folding
    results: int
    length: int
    columns: int
    chunk: int
    chunks: int
    scale: float = 1.0
    root: bool = False
    is_cut: Any = False


class HostPlanner(Protocol):
    """What the emitter of a record may ask of the planner; implemented in ``host.planner``.

    Attributes:
        is_hoisting: Whether steps that depend on weights alone run less often than the others.
        runs: How often the others run before an update, for micro-batches and replicas together.
        multiplies_bfloats: Whether products of what torch has as bfloat16 are products of bfloats, not of floats.
    """

    is_hoisting: bool
    runs: int
    multiplies_bfloats: bool

    def value(self, tensor: Tensor, dtype: DType | None = None, *, contiguous: bool = True) -> HostTensor:
        """Return where a tensor's value lies, after a cast or a copy to row-major order where asked for.

        A cast alone keeps the order in which the elements lie.
        """
        ...

    def stored_type(self, tensor: Tensor) -> DType:
        """Return as what a value lies that kernels compute with as floats: halves or bfloats, unless floats are there.

        It is for kernels that make floats of what they read: of few of the elements, or of a row in scratch.
        """
        ...

    def may_have_floats(self, tensor: Tensor) -> bool:
        """Whether a half's floats are there, or its maker can leave them."""
        ...

    def foldable(self, tensor: Tensor) -> HostTensor | None:
        """Return where a value lies that a chain stores for the op that is emitted alone; None for any other.

        It is FLOAT or HALF, all of its memory, and without gaps in some order of the dimensions.
        """
        ...

    def fold_chain(self, tensor: Tensor, fold: ChainFold) -> None:
        """Let the chain that stores such a value reduce it instead."""
        ...

    def output(
        self, tensor: Tensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return row-major storage for a result; with another ``dtype``, the planner casts after the op.

        Args:
            tensor: The result.
            dtype: In which it is computed.
            rounded_as: The result of another op whose rounding makes a half of this one, where what lies between the
                two gives halves of halves and may as well come first.
        """
        ...

    def product_output(self, tensor: Tensor, like: HostTensor | None = None) -> HostTensor:
        """Return storage for a product of bfloats: of bfloats too where nothing reads floats.

        Args:
            tensor: The product.
            like: An operand, in the order of whose dimensions the product lies where it may lie so; else row-major.
        """
        ...

    def placed_output(self, tensor: Tensor) -> HostTensor:
        """Return storage for a result of an op whose record has ``places``: by any strides where it is part of a whole.

        Such a place is one that ``places`` has taken; everywhere else storage is row-major.
        """
        ...

    def value_as_held(self, tensor: Tensor, dtype: DType | None = None) -> HostTensor:
        """Return where a value lies: row-major, or in another order of its dimensions, which some programs keep.

        Args:
            tensor: Whose value.
            dtype: Type asked for; None for its own.
        """
        ...

    def expected_order(self, tensor: Tensor) -> tuple[int, ...] | None:
        """Return the order of dimensions in which the caller expects a result; None where nobody does."""

    def expected_output(self, tensor: Tensor) -> HostTensor:
        """Return storage for a result, in the order in which the caller expects it; row-major where nobody does."""

    def output_as_held(
        self, tensor: Tensor, held: HostTensor, dtype: DType | None = None, *, rounded_as: Tensor | None = None,
    ) -> HostTensor:
        """Return storage for a result: in the order in which an operand lies where it may lie so, or else row-major.

        Args:
            tensor: The result.
            held: The operand, of as many dimensions, in any layout.
            dtype: In which it is computed; None for its own. What becomes half by random bits is row-major.
            rounded_as: By whose rounding it becomes half, if not by its own.
        """
        ...

    def alias(self, tensor: Tensor, view: HostTensor) -> None:
        """Say that a result is a view of storage that exists; nothing is copied."""
        ...

    def update_in_place(self, state: Tensor, result: Tensor) -> HostTensor:
        """Return the storage of a state, which holds ``result`` from the op's step on (``reads_outputs`` there)."""
        ...

    def all_reduced(self, total: Tensor) -> HostTensor:
        """Return storage that holds, in the update, the sum of what each replica has accumulated."""
        ...

    def scratch(self, shape: Sequence[int], dtype: DType = DType.FLOAT) -> HostTensor:
        """Return row-major storage that lives while the op's steps run (or longer, if its writer is hoisted)."""
        ...

    def stays_floats(self, held: HostTensor) -> bool:
        """Whether what an op computes there is no result that becomes halves as it is stored."""
        ...

    def packs_once(self, held: HostTensor) -> bool:
        """Whether a value of weights that seldom change lies there: what is packed of it serves many calls."""
        ...

    def only_where(self, flag: Any) -> AbstractContextManager[None]:
        """Let a plan have the steps that are emitted meanwhile only where a flag is not 0.

        Args:
            flag: True, or a number that is computed of sizes.
        """
        ...

    def constant(self, values: Sequence[int] | Sequence[float], dtype: DType) -> HostTensor:
        """Return 1-d storage that holds constants."""
        ...

    def random_state(self, op: Op) -> HostTensor:
        """Return LONG[4]: seed, replica, number of the op within the program, micro-batch counter."""
        ...

    def rounding(self, op: Op, result: Tensor) -> Rounding:
        """Return how a half result of an op is rounded."""
        ...

    def wanted(self, tensor: Tensor) -> bool:
        """Whether anything reads this result."""
        ...

    def wanted_outside(self, tensor: Tensor) -> bool:
        """Whether anything outside the chain being emitted reads this result."""
        ...

    def step(
        self, kernel: Kernel[I, S], outputs: Sequence[HostTensor], inputs: Sequence[HostTensor], *,
        ints: I | tuple[()] = (), scalars: S | tuple[()] = (), items: int = 1, grain: int = 1,
        scratch_bytes: int = 0, reads_outputs: bool = False, together: bool = False, adds_up: bool = False,
        joining: Joining | None = None, writes: Sequence[Blocks | None] = (), samples: Samples | None = None,
        overwrites: Sequence[frozenset[int]] = (), rounds: int = 1, op: Op | None = None,
    ) -> None:
        """Append a kernel call; its ``args`` are the outputs, then the inputs.

        Args:
            kernel: The host kernel, a record of the table.
            outputs: Storage written.
            inputs: Storage read.
            ints: Its integers, of the class that the record names.
            scalars: Its real numbers, likewise.
            items: Size of the iteration space shared among threads.
            grain: Items of one chunk; chosen from shapes alone, so that results do not depend on threads.
            scratch_bytes: Private bytes each thread needs.
            reads_outputs: Whether the kernel also reads what it overwrites (accumulation).
            together: Whether the call is made once for all replicas, after each of them has run what comes before: the
                executor puts the number of replicas and the bytes between their memories into the fields ``replicas``
                and ``apart`` of ``ints``.
            adds_up: Whether the kernel adds onto its outputs, an item of it onto a part that depends on the item alone
                and not on values: micro-batches may then add one after another item by item.
            joining: Makes one call for several micro-batches or replicas whose arguments lie one behind the other.
            writes: What of each output the items write, as far as it is known.
            overwrites: For each output the inputs that may lie where it does, since each element of them is read before
                it is written; nothing where that is not known, or where the kernel may refuse a value.
            samples: How the items share out samples, each of which is computed by itself, whatever the grain; None
                where they do not.
            rounds: In how many equal parts items are made, one after another: later ones read what earlier ones made.
            op: Whose step it is, and of whose operands it may refuse a value, if not of the op that is emitted.
        """
        ...

    def body(self, body: Graph, operands: Sequence[HostTensor]) -> list[HostTensor]:
        """Append the steps of a graph that an op runs and return where its results lie.

        Args:
            body: One of ``Op.bodies``.
            operands: Storage of its inputs.
        """
        ...

    def place(self, mark: Mark) -> None:
        """Put a mark before the next step."""
        ...

    def go(self, mark: Mark, unless: HostTensor | None = None) -> None:
        """Append a jump to a mark, taken always or unless a boolean is true."""
        ...

    def loop(self, counter: HostTensor) -> AbstractContextManager[None]:
        """Say that the steps appended within run again and again: what they keep lasts until the last has ended.

        Args:
            counter: LONG[1], trips made so far; random ops draw anew with each.
        """
        ...


Emitter = Callable[[Op, HostPlanner], None]
