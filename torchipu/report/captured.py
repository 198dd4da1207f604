"""What a placed graph holds, for people: ops by leg, ops without a record of their own, and ops by block."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torchipu.ir.graph import Graph, walk_ops
from torchipu.ir.types import Leg, Role

_LETTERS = {Leg.FORWARD: "forward", Leg.BACKWARD: "backward", Leg.UPDATE: "update"}


@dataclass(frozen=True, slots=True)
class BlockShare:
    """The ops of one block.

    Attributes:
        block: Its name.
        ipu: Its IPU.
        stage: Its pipeline stage.
        ops_by_leg: Number of ops in each leg.
    """

    block: str
    ipu: int
    stage: int
    ops_by_leg: dict[Leg, int]


@dataclass(frozen=True, slots=True)
class Captured:
    """What was captured.

    Attributes:
        name: Name of the graph.
        ops_by_leg: Number of ops in each leg.
        num_weight_elements: Elements of all weights.
        generic: Number of ops that run through the generic codelet, by ATen overload.
        blocks: By stage, then IPU.
    """

    name: str
    ops_by_leg: dict[Leg, int]
    num_weight_elements: int
    generic: dict[str, int]
    blocks: tuple[BlockShare, ...]

    def text(self) -> str:
        """Return the findings for people."""
        num_ops = sum(self.ops_by_leg.values())
        legs = ", ".join(f"{count} {_LETTERS[leg]}" for leg, count in self.ops_by_leg.items())
        lines = [f"captured   {self.name}: {num_ops} ops ({legs}), {self.num_weight_elements:,} weights"]
        generic = ", ".join(f"{count} x {target}" for target, count in sorted(self.generic.items()))
        lines.append(f"generic    {sum(self.generic.values())} of {num_ops} ops{': ' if generic else ''}{generic}")
        width = max((len(share.block) for share in self.blocks), default=0)
        for number, share in enumerate(self.blocks):
            ops = ", ".join(f"{count} {_LETTERS[leg]}" for leg, count in share.ops_by_leg.items())
            title = "placement" if number == 0 else ""
            lines.append(f"{title:<11}{share.block:<{width}}  ipu {share.ipu}  stage {share.stage}  {ops}")
        return "\n".join(lines)


def captured(graph: Graph) -> Captured:
    """Count what a graph holds."""
    by_place: dict[tuple[int, int, str], Counter[Leg]] = {}
    for op in graph.ops:
        if op.placement is not None:
            place = (op.placement.stage, op.placement.ipu, op.placement.block)
            by_place.setdefault(place, Counter())[op.leg] += 1
    return Captured(
        name=graph.name,
        ops_by_leg=in_order_of_legs(Counter(op.leg for op in graph.ops)),
        num_weight_elements=sum(tensor.num_elements for tensor in graph.inputs if tensor.role is Role.WEIGHT),
        generic=dict(Counter(op.target for op in walk_ops(graph.ops) if op.kind == "generic")),
        blocks=tuple(
            BlockShare(block, ipu, stage, in_order_of_legs(counts))
            for (stage, ipu, block), counts in sorted(by_place.items(), key=lambda item: item[0])
        ),
    )


def in_order_of_legs(counts: Counter[Leg]) -> dict[Leg, int]:
    """Return the counts as forward, backward, update, without the legs that do not occur."""
    return {leg: counts[leg] for leg in _LETTERS if counts[leg]}
