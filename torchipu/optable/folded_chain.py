"""A chain of elementwise ops of which one value is reduced as it comes, and not stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchipu._kernels.table.elementwise import CHAIN_FOLD, ChainFoldInts, ChainFoldScalars, SlotKind
from torchipu._kernels.table.reduce import REDUCE_FEW, Folding
from torchipu.ir.sizes import of_numbers
from torchipu.optable.alternatives import EitherTensor, chosen
from torchipu.optable.blocks import Blocks
from torchipu.optable.chain import Value
from torchipu.optable.emission import SHARE_NS, Emission, Stored, turns_of
from torchipu.optable.host_tensor import collapse
from torchipu.optable.pair_products import PairProduct
from torchipu.optable.planner import ChainFold
from torchipu.optable.samples import Samples

TAKEN = {"f_square": Folding.SUM_SQUARES, "f_abs": Folding.SUM_MAGNITUDES}
BOTH = {Folding.SUM: "f_mul", Folding.SUM_SQUARES: "f_sub", Folding.SUM_MAGNITUDES: "f_sub"}
"""What a sum may take over of the last instructions: of one value, and then of two."""
NEAR_LANES = 16
"""Elements behind a block of sums, which are kept in whole vectors."""


@dataclass(slots=True, kw_only=True)
class FoldedEmission(Emission):
    """Turns the nodes of a chain into slots and instructions, and one of its values into what is reduced.

    Args:
        chain: The finished chain.
        results: Other values and where they are stored.
        value: What is reduced, in a register of floats.
        fold: How, and where results go.

    Attributes:
        folding: What becomes of what is reduced in the end.
        reduced: That: the value, or what it comes about by, which the reduction then does by itself.
        direct: The result that each value is written to in place, by number of the value.
    """

    value: Value
    fold: ChainFold
    folding: Folding = field(init=False)
    reduced: tuple[Value, ...] = field(init=False)
    direct: dict[int, int] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.chain.nodes
        self.num_outputs = len(self.results) + 1
        self.turns = turns_of(self.results)
        self.folding, self.reduced = self.fold.folding, (self.value,)
        if not any(value == self.value for value, _ in self.results):
            self._take_last_instructions()

    def _product(self) -> PairProduct | None:
        return None  # which reduces nothing

    def _take_last_instructions(self) -> None:
        """Let the reduction do what the value comes about by: squares, magnitudes, products and differences."""
        folding, (value,) = self.folding, self.reduced
        node = self.nodes[value.number]
        if folding is Folding.SUM and node.operation in TAKEN:
            folding, value = TAKEN[node.operation], node.inputs[0]
            if self._is_one_number(value):
                return
            self.folding, self.reduced, node = folding, (value,), self.nodes[value.number]
        reads_both = self.fold.columns or self.fold.length > REDUCE_FEW
        is_both = node.operation == BOTH.get(folding) and not any(map(self._is_one_number, node.inputs))
        if reads_both and is_both and not any(value == stored for stored, _ in self.results):
            self.reduced = node.inputs

    def _is_one_number(self, value: Value) -> bool:
        """Whether a value is one number for all elements, of which a line alone is there."""
        node = self.nodes[value.number]
        return node.constant is not None or (
            node.operand is not None and not any(collapse(node.operand.shape, node.operand.strides)[1][0])
        )

    def _kept_uses(self) -> dict[int, int]:
        return {**Emission._kept_uses(self), **{value.number: len(self.nodes) for value in self.reduced}}

    def _direct_results(self) -> dict[int, int]:
        # A class with slots is made anew, and super() without arguments does not know it.
        self.direct = Emission._direct_results(self)
        return self.direct

    def _append_step(self) -> None:
        fold = self.fold
        slots = [self._slot(value, self.direct) for value in self.reduced]
        if any(self.slots[slot].kind in (SlotKind.CONSTANT, SlotKind.UNIFORM) for slot in slots):
            raise ValueError("a chain reduces one number for all elements")
        block, scratch, program = self._laid_out()
        together = 0 if fold.columns or fold.is_cut else block // fold.length
        if fold.columns:
            items = fold.results * -(-fold.columns // block) * fold.chunks
            elements = fold.chunk * _least(fold.columns, block)
        else:
            items = -(-fold.results // together) if together else fold.results * fold.chunks
            elements = (together or 1) * fold.chunk
        self.chain.plan.step(
            CHAIN_FOLD, [*(held for _, held in self.results), fold.out], self.inputs,
            ints=ChainFoldInts(
                self.folding, len(self.results), slots[0], slots[1] if len(slots) > 1 else -1, fold.length,
                fold.results, fold.columns, fold.chunk, fold.chunks, together, fold.root, scratch + 64, block,
                len(self.slots), len(self.program), program,
            ),
            scalars=ChainFoldScalars(fold.scale, (*self.scalars, 0.0, 0.0, 0.0)),
            items=items, grain=_grain(elements, self.cost_ns),
            scratch_bytes=scratch + 128 + (2 * 4 * (block + NEAR_LANES) if fold.columns else 0),
            writes=[*(None for _ in self.results), self._written(block, together)],
            samples=self._samples(block, together),
        )

    def _written(self, block: int, together: int) -> Blocks | None:
        """Return which results an item writes."""
        fold = self.fold
        if fold.is_cut is not False:
            return None
        if fold.columns:
            return Blocks.of((fold.results, fold.columns), (1, block))
        return Blocks.of((fold.results,), (together or 1,))

    def _samples(self, block: int, together: int) -> Samples | None:
        """Return the samples: rows, or stacks of columns, where an item has all of them."""
        fold = self.fold
        if fold.is_cut is True or fold.columns > block:
            return None
        out = fold.out.itself if isinstance(fold.out, EitherTensor) else fold.out
        held = [*(held for _, held in self.results), out, *self.inputs]
        return chosen(fold.is_cut, None, Samples.of(fold.results, *held, each=together or 1))


@of_numbers
def _grain(elements: int, cost_ns: float) -> int:
    """Return the items of a thread's share."""
    return max(1, round(SHARE_NS / max(1.0, elements * cost_ns)))


@of_numbers
def _least(first: int, second: int) -> int:
    return min(first, second)


def emit_folded(stored: Stored) -> None:
    """Append the kernel call that stores results of a chain and reduces a value of it, where there is one."""
    if not stored.folds:
        stored.emit()
        return
    results = [(stored.chain.to_store(value, held), held) for value, held in stored.results]
    (value, fold), = stored.folds
    FoldedEmission(stored.chain, results, value=value, fold=fold).emit()
