"""What a forward saves for its backward, in one block instead of many tensors.

A network that is written as a loop over steps saves some small values at each of them: to make a tensor of each, to
have autograd keep it, and to look at it again takes longer than computing it. Once both programs have run, the forward
therefore writes such values into one tensor of bytes, and the backward reads them there. Whoever else asks for them,
as compiled autograd does, has them as views of that tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule

from torchipu._kernels.abi import Call
from torchipu.backend.program import Program
from torchipu.host.output_memory import Room
from torchipu.host.packing import Block, Packing


def read_in_block(
    block: torch.Tensor, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype,
) -> torch.Tensor:
    """Return the view of a value of a shape, strides and element type that lies at an offset in bytes."""
    return block[offset:].view(dtype).as_strided(shape, strides, offset // dtype.itemsize)


@dataclass(frozen=True, slots=True)
class SavedBlock:
    """How a forward leaves, and its backward finds, what is saved.

    Attributes:
        forward: Returns the results that the caller gets, what is saved apart, and the block.
        backward: Takes what is saved apart, the block, and the gradients.
        num_results: How many the caller gets.
        rooms: Of each saved value its offset and room in the block; None for one that is saved apart.
    """

    forward: Call
    backward: Call
    num_results: int
    rooms: tuple[tuple[int, Room] | None, ...]

    @classmethod
    def of(cls, forward: Program, backward: Program, saved: slice) -> SavedBlock | None:
        """Return one for programs that have run; None where they need more than that, or too little would be in it.

        Args:
            forward: Returns results and what is saved.
            backward: Takes what is saved and then gradients.
            saved: Places of what is saved, behind all others.
        """
        results, rooms = forward.results[saved], forward.executor.last_rooms()
        if rooms is None or forward.pieces or backward.pieces or saved.stop not in (None, len(forward.results)):
            return None
        others = {result.output for result in forward.results[:saved.start]}
        packing = Packing.of(rooms, {result.output for result in results if result.output is not None} - others)
        if packing is None:
            return None
        in_block = tuple(
            None if one.output is None or packing.offsets[one.output] < 0
            else (packing.offsets[one.output], rooms[one.output]) for one in results
        )
        apart = [place for place, held in enumerate(in_block) if held is None]
        made = [forward.results[place] for place in (*range(saved.start), *(saved.start + place for place in apart))]
        packed = forward.executor.repeated(forward.arguments, [
            *((None if one.output is None else packing.place(one.output), one.argument) for one in made),
            (len(packing.made) - 1, None),
        ], packing)
        read = _reading(backward, in_block, apart, packing.num_bytes)
        return None if packed is None or read is None else cls(packed, read, saved.start, in_block)

    def unpacked(self, saved: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return all saved values, given those that are saved apart and the block."""
        apart, block = iter(saved[:-1]), saved[-1]
        return [next(apart) if held is None else read_in_block(block, *_lying(*held)) for held in self.rooms]

    def reading(self, backward: GraphModule) -> GraphModule:
        """Return a backward's graph that is given what is saved apart, and the block, instead of all that is saved."""
        graph = torch.fx.Graph()
        given = [node for node in backward.graph.nodes if node.op == "placeholder"]
        saved, tangents = given[:len(self.rooms)], given[len(self.rooms):]
        copies = {
            node: graph.node_copy(node) for node, held in zip(saved, self.rooms, strict=True) if held is None
        }
        block = graph.placeholder("saved_block")
        copies |= {node: graph.node_copy(node) for node in tangents}
        for node, held in zip(saved, self.rooms, strict=True):
            if held is not None:
                copies[node] = graph.call_function(read_in_block, (block, *_lying(*held)))
                copies[node].meta = dict(node.meta)
        output = graph.graph_copy(backward.graph, copies)
        graph.output(output)
        return GraphModule(backward, graph)


def _lying(offset: int, room: Room) -> tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]:
    """Return what `read_in_block` takes besides the block."""
    return offset, room.shape, room.strides, room.dtype


def _reading(
    backward: Program, in_block: Sequence[tuple[int, Room] | None], apart: Sequence[int], num_bytes: int,
) -> Call | None:
    """Return a call of a backward that is given what is saved apart, the block, and the gradients."""
    count, behind = len(in_block), len(apart)  # what is saved apart, the block, and the gradients
    moved = {place: number for number, place in enumerate(apart)}
    moved |= {place: behind for place, held in enumerate(in_block) if held is not None}
    rooms = {
        number: held for number, place in enumerate(backward.arguments)
        if place < count and (held := in_block[place]) is not None
    }
    if any(one.argument is not None and moved.get(one.argument) == behind for one in backward.results):
        return None
    results = [
        (one.output, None if one.argument is None else moved.get(one.argument, one.argument - count + behind + 1))
        for one in backward.results
    ]
    places = [moved.get(place, place - count + behind + 1) for place in backward.arguments]
    return backward.executor.repeated(places, results, block=Block(behind, num_bytes, rooms))


@dataclass(frozen=True, slots=True)
class Unpacked:
    """The context of a backward whose forward saved a block, with all saved values as tensors."""

    context: Any
    saved_tensors: Sequence[torch.Tensor]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.context, name)
