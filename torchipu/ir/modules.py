"""A graph as the tree of the modules that it was captured from, and graphs whose modules are marked as blocks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from torchipu.ir.graph import Graph, Op, Tensor
from torchipu.ir.types import Leg

HEAD = ""  # the module path of the whole model


def block_name(path: str) -> str:
    """Return the name of the block that begins at a module."""
    return path or "model"


@dataclass(slots=True)
class Module:
    """A module that the forward runs once, in one go.

    Attributes:
        path: Dotted path.
        begin: Position of its first op among the forward ops.
        end: Position after its last.
        cycles: Cycles of its forward and backward ops.
        children: Modules within it, in order.
    """

    path: str
    begin: int
    end: int
    cycles: int = 0
    children: list[Module] = field(default_factory=list)


def modules_of(graph: Graph, cycles: Mapping[Tensor, int]) -> Module:
    """Return the tree of modules whose ops stand together; modules that run twice are left out.

    Args:
        graph: As captured: each op's source names its module.
        cycles: By the first result of each op.
    """
    forward = [op for op in graph.ops if op.leg is Leg.FORWARD]
    places: dict[str, list[int]] = {}
    for position, op in enumerate(forward):
        for path in ancestors(op.source.module):
            places.setdefault(path, []).append(position)
    spent: dict[str, int] = {}
    for op in graph.ops:
        if op.leg is not Leg.UPDATE:
            for path in ancestors(op.source.module):
                spent[path] = spent.get(path, 0) + cycles_of(op, cycles)
    root = Module(HEAD, 0, len(forward), sum(cycles_of(op, cycles) for op in graph.ops if op.leg is not Leg.UPDATE))
    found = {HEAD: root}
    for path, at in sorted(places.items(), key=lambda item: (item[0].count("."), item[1][0])):
        if _is_together(at, forward):
            module = found[path] = Module(path, at[0], at[-1] + 1, spent[path])
            parent = next(found[above] for above in [*ancestors(path)[1:], HEAD] if above in found)
            parent.children.append(module)
    for module in found.values():
        module.children.sort(key=lambda child: child.begin)
    return root


def cycles_of(op: Op, cycles: Mapping[Tensor, int]) -> int:
    """Return the cycles of an op; 0 where it has no result."""
    return cycles.get(op.outputs[0], 0) if op.outputs else 0


def ancestors(path: str) -> list[str]:
    """Return a path and those above it, without the empty one."""
    parts = path.split(".") if path else []
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _is_together(places: Sequence[int], forward: Sequence[Op]) -> bool:
    """Whether no op of another module lies between; ops of no module do not count."""
    within = set(places)
    return all(not forward[place].source.module for place in range(places[0], places[-1] + 1) if place not in within)


def fine_modules(root: Module, largest: float) -> list[Module]:
    """Return modules in order, none within another, each as small as asked for where it has parts.

    Args:
        root: The model.
        largest: Cycles above which a module is replaced by its parts.
    """
    if not root.children or (root.path != HEAD and root.cycles <= largest):
        return [root]
    return [module for child in root.children for module in fine_modules(child, largest)]


def coarse_modules(root: Module, cuts: Sequence[int], largest: float) -> list[Module]:
    """Return modules in order, none within another and none with a cut in it.

    Args:
        root: The model.
        cuts: Positions of forward ops at which a stage begins.
        largest: Cycles above which a module is replaced by its parts.
    """
    is_cut = any(root.begin < cut < root.end for cut in cuts)
    if not root.children or (root.path != HEAD and root.cycles <= largest and not is_cut):
        return [root]
    return [module for child in root.children for module in coarse_modules(child, cuts, largest)]


def with_blocks(graph: Graph, block_by_path: Mapping[str, tuple[str, int]]) -> Graph:
    """Return a graph whose ops carry the blocks that they would have, had these modules been marked with BeginBlock.

    Args:
        graph: As captured from a model without blocks.
        block_by_path: Name and IPU of each module's block; the empty path holds for all ops.
    """
    ops = []
    for op in graph.ops:
        path = next((above for above in [*ancestors(op.source.module), HEAD] if above in block_by_path), None)
        if path is not None and op.leg is not Leg.UPDATE:
            op = replace(op, block=block_by_path[path])
        ops.append(op)
    return replace(graph, ops=tuple(ops))
