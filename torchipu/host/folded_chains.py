"""Chains whose only reader is a reduction: the chain reduces the value as it comes, and does not store it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torchipu.host.memory import Memory
from torchipu.host.steps import Step
from torchipu.host.storage import Place
from torchipu.host.uses import Uses
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import DType
from torchipu.optable.chain import needed_nodes
from torchipu.optable.emission import Stored
from torchipu.optable.host_tensor import HostTensor
from torchipu.optable.planner import ChainFold
from torchipu.optable.spec import spec_of


@dataclass(slots=True)
class FoldedChains:
    """Which chains store what, by the buffers of their results.

    Args:
        uses: Who reads what.
        memory: Of all storage.
        emit: Emits what a chain stores once more, and puts it in place of the step that did.

    Attributes:
        stored: The step of each, and what it stores.
    """

    uses: Uses
    memory: Memory
    emit: Callable[[Step, Stored], None]
    stored: dict[int, tuple[Step, Stored]] = field(default_factory=dict)

    def note(self, step: Step, stored: Stored) -> None:
        """Note what a chain stores that has been emitted last."""
        for _, held in stored.results:
            self.stored[held.buffer] = step, stored

    def foldable(self, op: Op, tensor: Tensor, held: HostTensor) -> bool:
        """Whether a chain stores a value, all of an allocation in the order in which it comes, for an op alone.

        Args:
            op: Which reads it.
            tensor: The value, or a view of it.
            held: Where it lies.
        """
        step, stored = self.stored.get(held.buffer, (None, None))
        if step is None or stored is None or stored.folds or held.dtype not in (DType.FLOAT, DType.HALF):
            return False
        if step.endings or self.memory.of(held).place is not Place.ARENA or held.num_elements == 0:
            return False
        shown = [(value, other) for value, other in stored.results if other.buffer == held.buffer]
        if len(shown) != 1 or shown[0][0].kind != "f" or not self.memory.is_all_of(shown[0][1]):
            return False
        is_all = held.is_dense and held.num_elements == shown[0][1].num_elements and held.dtype is shown[0][1].dtype
        values = [value for value, _ in stored.results]
        is_random = any(stored.chain.nodes[number].random is not None for number in needed_nodes(
            stored.chain.nodes, values,
        ))
        return is_all and not is_random and self._is_for(op, tensor)

    def _is_for(self, op: Op, tensor: Tensor) -> bool:
        """Whether an op alone reads a value, its views, and what it is a view of."""
        while (maker := self.uses.makers.get(tensor)) is not None and _is_view(maker):
            tensor = maker.inputs[0]
        waiting = [tensor]
        while waiting:
            one = waiting.pop()
            if one in self.uses.kept:
                return False
            for reader in self.uses.readers.get(one, ()):
                if _is_view(reader):
                    waiting += reader.outputs
                elif reader is not op or sum(operand is one for operand in op.inputs) > 1:
                    return False
        return True

    def fold(self, held: HostTensor, fold: ChainFold, steps: list[Step]) -> bool:
        """Let a chain reduce a value that is foldable, where the reduction is if nothing hinders that.

        Args:
            held: Where the value lies, or would.
            fold: How it is reduced.
            steps: All steps so far.

        Returns:
            Whether the step of the chain is the last one now.
        """
        step, stored = self.stored.pop(held.buffer)
        place = next(place for place, (_, other) in enumerate(stored.results) if other.buffer == held.buffer)
        value = stored.rounded(place) if held.dtype is DType.HALF else stored.results[place][0]
        del stored.results[place]
        stored.folds.append((value, fold))
        self.emit(step, stored)
        if stored.results or not _may_come_last(step, steps):
            return False
        steps.remove(step)
        steps.append(step)
        return True


def _is_view(op: Op) -> bool:
    spec = spec_of(op)
    return spec is not None and spec.is_view


def _may_come_last(step: Step, steps: list[Step]) -> bool:
    """Whether a step reads behind all others what it reads where it is, on the same way through the program."""
    read = {held.buffer for held in step.inputs}
    for other in reversed(steps):
        if other is step:
            return True
        if other.kernel is None or read.intersection(held.buffer for held in other.written):
            return False
    return False
