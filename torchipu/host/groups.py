"""In which order ops are emitted, and which elementwise ones make a chain together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.types import Leg
from torchipu.optable.chain import MAX_OPERANDS
from torchipu.optable.spec import spec_of

MAX_OPS_PAST_OPEN_CHAIN = 4
"""A chain that stays open holds its operands in memory; after this many other ops it is closed."""
FEW_ELEMENTS = 1 << 12
"""Ops of so few elements take longer to call than to compute: they share a call that have nothing else in common."""

_Kind = tuple[tuple[int, ...], bool]
"""Shape of the results, and whether they are part of the update: the same for all ops of a chain."""


@dataclass(slots=True, eq=False)
class _Chain:
    """Elementwise ops that one kernel computes, as long as more may join.

    Attributes:
        kind: What they have in common.
        ops: In order.
        made: Their results.
        read: What they read that none of them makes.
        passed: Ops that were emitted since the last one joined.
    """

    kind: _Kind
    ops: list[Op] = field(default_factory=list)
    made: set[Tensor] = field(default_factory=set)
    read: set[Tensor] = field(default_factory=set)
    passed: int = 0

    def has_room_for(self, op: Op, other: _Chain | None = None) -> bool:
        """Whether an op may join, with all of another chain if there is one: all are of a kind, and operands fit."""
        if _kind_of(op) != self.kind or (other is not None and other.kind != self.kind):
            return False
        made = self.made if other is None else self.made | other.made
        read = self.read if other is None else self.read | other.read
        others = {operand for operand in op.inputs if operand not in made}
        return len(read | others) + len(made) + len(op.outputs) <= MAX_OPERANDS

    def add(self, op: Op) -> None:
        """Take an op in."""
        self.read.update(operand for operand in op.inputs if operand not in self.made)
        self.made.update(op.outputs)
        self.ops.append(op)
        self.passed = 0


@dataclass(slots=True)
class _OpenChains:
    """Chains that do not need one another, and which of them reads or makes what.

    Attributes:
        chains: In order.
        makers: Which makes a value.
        readers: Which reads a value, or makes it; views count as what they show.
        of_kind: Which was the last that grew, by what its ops have in common.
        shown: What a view shows.
    """

    chains: dict[_Chain, None] = field(default_factory=dict)
    makers: dict[Tensor, _Chain] = field(default_factory=dict)
    readers: dict[Tensor, _Chain] = field(default_factory=dict)
    of_kind: dict[_Kind, _Chain] = field(default_factory=dict)
    shown: dict[Tensor, Tensor] = field(default_factory=dict)

    def show(self, op: Op) -> None:
        """Note what a view shows."""
        for result in op.outputs:
            self.shown[result] = self._base(op.inputs[0])

    def _base(self, tensor: Tensor) -> Tensor:
        return self.shown.get(tensor, tensor)

    def needed(self, op: Op) -> dict[_Chain, None]:
        """Return those that make what an op reads, in the order in which it names that."""
        return dict.fromkeys(self.makers[operand] for operand in op.inputs if operand in self.makers)

    def joined(self, op: Op, needed: Iterable[_Chain]) -> _Chain | None:
        """Return the chain that an op shall join: what makes the values that it reads, or else reads one too.

        Chains that it needs several of become one, as far as there is room.
        """
        makers = [chain for chain in needed if chain.has_room_for(op)]
        if makers:
            for other in makers[1:]:
                if makers[0].has_room_for(op, other):
                    self._merge(makers[0], other)
            return makers[0]
        read = [self._base(operand) for operand in op.inputs]
        beside = dict.fromkeys(self.readers[operand] for operand in read if operand in self.readers)
        for chain in reversed(list(beside)):
            if chain.has_room_for(op):
                return chain
        # How many elements there are is asked last: of sizes that change it is a decision.
        alike = self.of_kind.get(_kind_of(op))
        has_room = alike is not None and alike.has_room_for(op)
        return alike if has_room and op.outputs[0].num_elements <= FEW_ELEMENTS else None

    def _merge(self, chain: _Chain, other: _Chain) -> None:
        """Put the ops of one chain behind those of another; neither needs the other."""
        self._forget(other)
        for op in other.ops:
            self.add(op, chain)

    def add(self, op: Op, chain: _Chain | None) -> None:
        """Put an op into a chain, or into one of its own."""
        if chain is None:
            chain = _Chain(_kind_of(op))
            self.chains[chain] = None
        chain.add(op)
        for operand in op.inputs:
            self.readers[self._base(operand)] = chain
        for result in op.outputs:
            self.makers[result] = chain
        self.of_kind[chain.kind] = chain

    def _forget(self, chain: _Chain) -> None:
        del self.chains[chain]
        read = [self._base(tensor) for tensor in chain.read]
        for tensors, place in ((read, self.readers), (chain.made, self.readers), (chain.made, self.makers)):
            for tensor in tensors:
                if place.get(tensor) is chain:
                    del place[tensor]
        if self.of_kind.get(chain.kind) is chain:
            del self.of_kind[chain.kind]

    def close(self, chains: Iterable[_Chain]) -> Iterator[tuple[Op, ...]]:
        """Yield the ops of chains that no more shall join."""
        for chain in list(chains):
            if chain in self.chains:
                self._forget(chain)
                yield tuple(chain.ops)

    def pass_by(self) -> Iterator[tuple[Op, ...]]:
        """Note that an op was emitted meanwhile; yield the chains that this leaves behind."""
        for chain in self.chains:
            chain.passed += 1
        yield from self.close([chain for chain in self.chains if chain.passed > MAX_OPS_PAST_OPEN_CHAIN])


def grouped(ops: Sequence[Op], joins: Callable[[Op], bool]) -> Iterator[tuple[Op, ...]]:
    """Yield chains of ops, and the others one by one; an op that a chain waits for comes before it.

    Several chains grow at a time: an optimiser that does one thing after another to all its weights makes a chain for
    each weight.

    Args:
        ops: In an order in which they can run.
        joins: Whether an op may be part of a chain.
    """
    open_chains = _OpenChains()
    for op in ops:
        needed = open_chains.needed(op)
        if joins(op):
            chain = open_chains.joined(op, needed)
            yield from open_chains.close(one for one in needed if one is not chain)
            open_chains.add(op, chain)
        else:
            spec = spec_of(op)
            # What it writes into may be shown to a chain by any of its operands.
            is_in_place = spec is not None and spec.is_in_place
            yield from open_chains.close(open_chains.chains if is_in_place else needed)
            yield (op,)
            if _is_view(op):
                open_chains.show(op)
            else:
                yield from open_chains.pass_by()
    yield from open_chains.close(open_chains.chains)


def _kind_of(op: Op) -> _Kind:
    return op.outputs[0].shape, op.leg is Leg.UPDATE


def _is_view(op: Op) -> bool:
    spec = spec_of(op)
    return spec is not None and spec.is_view
