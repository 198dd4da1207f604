"""What torch expects of the results of a graph: their types, their strides, and whose memory they lie in."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchipu.capture.joint_graph import shares_memory
from torchipu.host.border import as_type, resolved
from torchipu.host.output_memory import OutputMemory
from torchipu.ir.guards import Numbers
from torchipu.ir.sizes import settled
from torchipu.ir.types import Role


class Kind(enum.Enum):
    """What a result is in the FX graph."""

    COMPUTED = "computed"
    INPUT = "input"  # handed back as it is
    VIEW = "view"  # which AOT autograd makes anew, from what it is a view of and the result's strides and offset


def handed_back(gm: GraphModule, is_dynamic: bool) -> tuple[Kind, ...]:
    """Tell what each result is; where all sizes are known, AOT autograd plays views again by their ops instead."""
    has_views = is_dynamic or not torch._functorch.config.view_replay_for_aliased_outputs

    def kind(member: object) -> Kind:
        if not isinstance(member, Node):
            return Kind.COMPUTED
        if member.op == "placeholder":
            return Kind.INPUT
        is_view = isinstance(member.target, torch._ops.OpOverload) and member.target.is_view
        return Kind.VIEW if has_views and is_view else Kind.COMPUTED

    (returned,) = next(node for node in gm.graph.nodes if node.op == "output").args
    return tuple(map(kind, returned))


@dataclass(frozen=True, slots=True)
class Layout:
    """What torch expects of a result: element type, and strides when they are not row-major.

    Attributes:
        dtype: The element type.
        strides: In elements; None for row-major.
        offset: Of the first element in its memory; None if that is of no account, and the strides dense then.
    """

    dtype: torch.dtype
    strides: tuple[int, ...] | None
    offset: int | None = None

    def is_as_made(self, dtype: torch.dtype, strides: tuple[int, ...] | None = None) -> bool:
        """Whether a fresh result of a type, with these strides or row-major, is as torch expects it."""
        return dtype is self.dtype and self.strides == strides and not self.offset

    def placed(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor with these strides, and this offset, that has the same elements."""
        if self.offset is None:
            if self.strides is None:
                return value.contiguous()
            if value.stride() == self.strides:
                return value
            return torch.empty_strided(value.shape, self.strides, dtype=value.dtype).copy_(value)
        strides = value.contiguous().stride() if self.strides is None else self.strides
        if value.stride() == strides and value.storage_offset() == self.offset:
            return value
        end = self.offset + 1 + sum((size - 1) * stride for size, stride in zip(value.shape, strides, strict=True))
        memory = torch.empty(end if value.numel() else self.offset, dtype=value.dtype)
        # By number: elements may lie on one another, as those of an expanded tensor.
        numbers = torch.arange(len(memory)).as_strided(value.shape, strides, self.offset)
        memory[numbers.reshape(-1)] = value.reshape(-1)
        return memory.as_strided(value.shape, strides, self.offset)


@dataclass(frozen=True, slots=True)
class Shown:
    """How a value of a captured graph lies, in numbers of the IR.

    Attributes:
        dtype: The element type.
        shape: Sizes.
        strides: In elements.
        offset: Of the first element in its memory.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, fake: torch.Tensor, read: Callable[[Any], Any] = int) -> Shown:
        """Return how a fake value lies.

        Args:
            fake: The value.
            read: Returns a number of torch's as one of the IR.
        """
        sizes, strides = (tuple(map(read, numbers)) for numbers in (fake.shape, fake.stride()))
        return cls(fake.dtype, sizes, strides, read(fake.storage_offset()))

    def settled(self, numbers: Numbers) -> Shown:
        """Return it with plain numbers."""
        shape, strides, offset = (settled(one, numbers) for one in (self.shape, self.strides, self.offset))
        is_plain = shape is self.shape and strides is self.strides and offset is self.offset
        return self if is_plain else Shown(self.dtype, shape, strides, offset)

    def is_row_major(self) -> bool:
        """Whether elements lie row-major without gaps."""
        return self._lies_in(range(len(self.shape) - 1, -1, -1)) or 0 in self.shape

    def is_dense(self) -> bool:
        """Whether the elements fill their memory without gaps or overlaps, in any order of the dimensions."""
        return self._lies_in(sorted(range(len(self.shape)), key=lambda dim: (self.strides[dim], self.shape[dim])))

    def is_that_of(self, value: torch.Tensor) -> bool:
        """Whether a value has these sizes, and where that counts these strides."""
        if value.shape != self.shape:
            return False
        if value.stride() == self.strides or 0 in self.shape:
            return True
        pairs = zip(self.shape, value.stride(), self.strides, strict=True)
        return all(given == expected for size, given, expected in pairs if size != 1)

    def _lies_in(self, order: Iterable[int]) -> bool:
        expected = 1
        for dim in order:
            if self.shape[dim] != 1:
                if self.strides[dim] != expected:
                    return False
                expected *= self.shape[dim]
        return True


def layout_of(shown: Shown | None, *, is_view: bool = False) -> Layout | None:
    """Return what torch expects; unless it is a view, strides with gaps or overlaps count as row-major."""
    if shown is None:
        return None
    strides = None if shown.is_row_major() else shown.strides
    if is_view:
        return Layout(shown.dtype, strides, shown.offset)
    return Layout(shown.dtype, strides if shown.is_dense() else None)


@dataclass(frozen=True, slots=True)
class Piece:
    """A result that lies in the memory of an argument, as the gradient of an operand of ``cat`` does.

    Attributes:
        argument: Number of the argument.
        base: How that lies where the offset is that of the result.
        shown: How the result lies.
    """

    argument: int
    base: Shown
    shown: Shown

    def of(self, arguments: Sequence[Any]) -> torch.Tensor:
        """Return it as part of the argument, which is copied where it lies in another way than was expected."""
        base: torch.Tensor = arguments[self.argument]
        if not self.base.is_that_of(base):
            base = torch.empty_strided(self.base.shape, self.base.strides, dtype=base.dtype).copy_(base)
        offset = base.storage_offset() + self.shown.offset - self.base.offset
        return base.as_strided(self.shown.shape, self.shown.strides, offset)


@dataclass(frozen=True, slots=True)
class Result:
    """Where a result comes from: an output of the program, an argument, or neither.

    Attributes:
        constant: The value, for one that is no tensor of the program.
        output: Number of the program's output.
        argument: Number of the argument.
        piece: How it lies in the memory of an argument, for one that is made of that.
        in_parts: Whether the argument is complex, and this the pairs of its parts.
        visible: Whether the caller may write into it, so that it must not share memory with anything else.
        apart: Whether it is saved for the backward and a copy in the model, so that whoever writes into an argument
            or a visible result must not reach it.
        fake: What torch expects of it.
    """

    constant: object = None
    output: int | None = None
    argument: int | None = None
    piece: Piece | None = None
    in_parts: bool = False
    visible: bool = False
    apart: bool = False
    fake: Layout | None = None

    def pick(self, arguments: Sequence[Any], outputs: Sequence[torch.Tensor]) -> Any:
        """Return the value."""
        if self.output is not None:
            return outputs[self.output]
        if self.piece is not None:
            return self.piece.of(arguments)
        if self.argument is None:
            return self.constant
        return resolved(arguments[self.argument]) if self.in_parts else arguments[self.argument]

    def own(self, value: torch.Tensor, taken: set[int], memory: OutputMemory) -> torch.Tensor:
        """Return the value in torch's type and strides, in memory of its own; enter that into ``taken``.

        Args:
            value: The value.
            taken: Addresses of the memory of others.
            memory: Where a copy lies.
        """
        layout = self.fake
        if layout is not None:
            value = layout.placed(as_type(value, layout.dtype, memory))
        if memory_of(value) in taken:
            if value.layout is not torch.strided or value.is_complex() or value.is_neg():
                value = value.clone()
            else:
                (value,) = memory.copies([value], [value.dtype])
            value = value if layout is None or layout.offset is None else layout.placed(value)
        taken.add(memory_of(value))
        return value


def memory_of(value: torch.Tensor) -> int:
    """Return the address of the memory that a value lies in."""
    return value.untyped_storage().data_ptr()


def inputs_shown(gm: GraphModule) -> frozenset[int]:
    """Return the places of placeholders that a result is a view of, whose offset in their memory is the result's."""
    places = {node: place for place, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")}
    found = set()
    (returned,) = next(node for node in gm.graph.nodes if node.op == "output").args
    for member in returned:
        node = member
        while isinstance(node, Node) and isinstance(node.target, torch._ops.OpOverload) and node.target.is_view:
            node = node.args[0]
        if isinstance(node, Node) and node is not member and node in places:
            found.add(places[node])
    return frozenset(found)


def kept_apart(gm: GraphModule, num_results: int | None) -> frozenset[int]:
    """Return the places of results saved for the backward that share no memory with what the caller has.

    Where the model copies what it then reads, as ``x.clone() * weight`` does, the copy stays as it was when the caller,
    or the model itself, writes into the original; passes over the graph know no copies.

    Args:
        gm: ATen graph of a forward.
        num_results: How many of its results, from the first, reach the caller; None for all.
    """
    (returned,) = next(node for node in gm.graph.nodes if node.op == "output").args
    if num_results is None or num_results == len(returned):
        return frozenset()
    bases = [_base_of(member) for member in returned]
    seen = {node for node in gm.graph.nodes if node.op == "placeholder"} | set(bases[:num_results])
    return frozenset(place for place in range(num_results, len(bases)) if bases[place] not in seen)


def _base_of(member: Any) -> Any:
    """Return the value in whose memory a result lies."""
    while isinstance(member, Node):
        shown = member.args[0] if member.target is operator.getitem else member  # a view may have several results
        if not isinstance(shown, Node) or not shares_memory(shown):
            break
        member = shown.args[0]
    return member


def pieces_of_gradients(gm: GraphModule, roles: Sequence[Role]) -> dict[int, int]:
    """Return by number the results that only show elements of a gradient that the backward is given, with its place.

    Eager PyTorch hands back such views too. What is saved by the forward is not shown: the caller might write into it.

    Args:
        gm: ATen graph of a backward.
        roles: Of its placeholders.
    """
    gradients = {
        node: place for place, node in enumerate(n for n in gm.graph.nodes if n.op == "placeholder")
        if roles[place] is Role.GRADIENT
    }
    (returned,) = next(node for node in gm.graph.nodes if node.op == "output").args
    found = {}
    for place, member in enumerate(returned):
        base = _base_of(member)
        if base is member or base not in gradients:
            continue
        shown, given = (node.meta.get("val") for node in (member, base))
        if _is_plain(shown) and _is_plain(given) and shown.dtype is given.dtype:
            found[place] = gradients[base]
    return found


def _is_plain(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and not value.is_complex()


@dataclass(frozen=True, slots=True)
class Part:
    """A result that lies in the memory of another one, as a view does that the model returns beside its tensor.

    Attributes:
        whole: Number of the result that has the memory.
        shape: Sizes.
        strides: In elements.
        offset: Of the first element.
    """

    whole: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def of(self, whole: torch.Tensor) -> torch.Tensor:
        """Return it as part of the other result."""
        return whole.as_strided(self.shape, self.strides, self.offset)


def parts_of_results(gm: GraphModule) -> dict[int, Part]:
    """Return by number the results that lie in the memory of another one that fills it.

    AOT autograd itself tells only of those that want a gradient.

    Args:
        gm: ATen graph with static sizes.
    """
    (returned,) = next(node for node in gm.graph.nodes if node.op == "output").args
    values = {
        place: member.meta["val"] for place, member in enumerate(returned)
        if isinstance(member, Node) and member.op != "placeholder" and isinstance(member.meta.get("val"), torch.Tensor)
    }
    inputs = {
        node.meta["val"].untyped_storage()._cdata for node in gm.graph.nodes
        if node.op == "placeholder" and isinstance(node.meta.get("val"), torch.Tensor)
    }
    whole: dict[int, int] = {}
    for place, value in values.items():
        memory = value.untyped_storage()
        if memory._cdata not in inputs and value.is_contiguous() and value.nbytes == memory.nbytes() > 0:
            whole.setdefault(memory._cdata, place)
    found = {}
    for place, value in values.items():
        other = whole.get(value.untyped_storage()._cdata, place)
        if other != place and value.dtype is values[other].dtype:
            found[place] = Part(other, tuple(value.shape), tuple(value.stride()), int(value.storage_offset()))
    return found
