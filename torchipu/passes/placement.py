"""Gives every op a block, an IPU and a pipeline stage, from the user's block annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchipu.errors import PlacementError, nearest
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.text import Names, format_op
from torchipu.ir.types import UNKNOWN_SOURCE, Leg, Role, Source
from torchipu.options import Options
from torchipu.target import Target

ONLY_BLOCK = "main"  # of a model without blocks


def place(graph: Graph, options: Options, target: Target) -> Graph:
    """Return a graph in which every op is placed.

    Blocks come in the order of ``options.blocks``, else in the order in which they first run. A block that asks for
    no IPU gets the one after that of the block before it. A stage is a run of blocks on one IPU. A forward op outside
    blocks belongs to the last block before it, or to the first block. A backward op outside blocks follows the
    forward op written on the same line, else the gradients that it reads, else the backward op before it. An update
    op sits with its weight.

    Args:
        graph: A graph as captured.
        options: ``blocks`` and ``num_ipus`` are read.
        target: The machine, for the number of its IPUs.

    Returns:
        The same ops with ``placement`` set, or the same object if it is set already.

    Raises:
        PlacementError: A block is unknown, asks for two IPUs or for one that is not there; no op is in a listed
            block; or a forward edge leads from a later stage back to an earlier one.
    """
    if all(op.placement is not None for op in graph.ops):
        return graph
    names = Names(graph)
    blocks = _stages(_blocks(graph, options, names), options, target)
    block_by_op = _forward_blocks(graph, blocks)
    _check_forward_edges(graph, blocks, block_by_op, names)
    _add_backward_blocks(graph, blocks, block_by_op)
    _add_update_blocks(graph, blocks, block_by_op)
    ops = []
    for op in graph.ops:
        block = blocks[block_by_op[op]]
        ops.append(replace(op, placement=Placement(block.name, block.ipu, block.stage, op.leg)))
    return replace(graph, ops=tuple(ops))


@dataclass(frozen=True, slots=True)
class _Block:
    """A block with its place."""

    name: str
    ipu: int
    stage: int


# --------------------------------------------------------------------------- blocks and stages
def _blocks(graph: Graph, options: Options, names: Names) -> dict[str, int | None]:
    """Return the IPU that each block asks for, in pipeline order."""
    asked: dict[str, int | None] = {}
    for op in _in_forward_order(graph):
        if op.block is None:
            continue
        name, ipu = op.block
        if asked.get(name) is not None and ipu is not None and asked[name] != ipu:
            raise PlacementError(
                f"block {name!r} asks for ipu {ipu} here and for ipu {asked[name]} before", op=format_op(op, names),
                source=op.source, remedy="give the second region a block name of its own",
            )
        asked[name] = ipu if asked.get(name) is None else asked[name]
        if options.blocks is not None and name not in options.blocks:
            raise PlacementError(
                f"block {name!r} is not in options.blocks{nearest(name, options.blocks)}", op=format_op(op, names),
                source=op.source, detail=f"known blocks: {', '.join(options.blocks)}",
                remedy="add it to options.blocks where its stage belongs, or set blocks=None",
            )
    if options.blocks is None:
        return asked or {ONLY_BLOCK: None}
    if not asked and graph.ops:
        raise PlacementError(
            f"options.blocks leaves {len(graph.ops)} ops unplaced: no op of the model is in a block",
            op=format_op(graph.ops[0], names), source=graph.ops[0].source,
            detail=f"known blocks: {', '.join(options.blocks)}",
            remedy="mark the regions of the model with torchipu.Block(name), or set blocks=None",
        )
    return {name: asked[name] for name in options.blocks if name in asked} or {ONLY_BLOCK: None}


def _in_forward_order(graph: Graph) -> Iterable[Op]:
    """Yield forward ops, then backward ops from the last: a block without forward ops still gets its position."""
    yield from (op for op in graph.ops if op.leg is Leg.FORWARD)
    yield from (op for op in reversed(graph.ops) if op.leg is Leg.BACKWARD)


def _stages(asked: Mapping[str, int | None], options: Options, target: Target) -> dict[str, _Block]:
    """Number the stages and give each block its IPU."""
    available = target.num_ipus if options.num_ipus is None else min(options.num_ipus, target.num_ipus)
    blocks: dict[str, _Block] = {}
    ipu, stage = -1, -1
    for name, wanted in asked.items():
        next_ipu = ipu + 1 if wanted is None else wanted
        if not 0 <= next_ipu < available:
            raise _beyond(name, next_ipu, wanted is not None, available, options, target)
        stage += next_ipu != ipu
        ipu = next_ipu
        blocks[name] = _Block(name, ipu, stage)
    return blocks


def _beyond(
    name: str, ipu: int, is_asked: bool, available: int, options: Options, target: Target,
) -> PlacementError:
    """Make the error of a block on an IPU that is not there."""
    ids = "ipu 0 only" if available == 1 else f"ipus 0 to {available - 1}"
    owner = target.name if available == target.num_ipus else f"num_ipus={options.num_ipus}"
    verb = "asks for" if is_asked else "would follow on"
    remedies = ["use an ipu_id that is there" if is_asked else "give ipu_id to the blocks that share an IPU"]
    if available < target.num_ipus:
        remedies.append("raise num_ipus")
    return PlacementError(f"block {name!r} {verb} ipu {ipu}, but {owner} has {ids}", remedy=", or ".join(remedies))


# --------------------------------------------------------------------------- forward
def _forward_blocks(graph: Graph, blocks: Mapping[str, _Block]) -> dict[Op, str]:
    """Fill forward from the last block seen; ops before any block belong to the first."""
    block_by_op: dict[Op, str] = {}
    current = next(iter(blocks))
    for op in graph.ops:
        if op.leg is Leg.FORWARD:
            current = op.block[0] if op.block else current
            block_by_op[op] = current
    return block_by_op


def _check_forward_edges(
    graph: Graph, blocks: Mapping[str, _Block], block_by_op: Mapping[Op, str], names: Names,
) -> None:
    """Refuse a forward op that reads a result of a later stage."""
    maker: dict[Tensor, Op] = {}
    for op in graph.ops:
        if op.leg is not Leg.FORWARD:
            continue
        here = blocks[block_by_op[op]]
        for tensor in op.inputs:
            there = blocks[block_by_op[maker[tensor]]] if tensor in maker else here
            if there.stage > here.stage:
                raise PlacementError(
                    f"block {here.name!r} (stage {here.stage}) reads {names.tensor(tensor)}, which block "
                    f"{there.name!r} of the later stage {there.stage} makes", op=format_op(op, names),
                    source=op.source, block=Placement(here.name, here.ipu, here.stage, op.leg),
                    remedy=f"give this region a block name of its own after {there.name!r}, or list the blocks in "
                    "the order of the data in options.blocks",
                )
        maker.update(dict.fromkeys(op.outputs, op))


# --------------------------------------------------------------------------- backward
def _add_backward_blocks(graph: Graph, blocks: Mapping[str, _Block], block_by_op: dict[Op, str]) -> None:
    """Place backward ops by annotation, by the forward op of the same line, by the gradients they read, or by order.

    A gradient never goes on to a later stage: an op that sums gradients of several stages, as for a weight that they
    share, runs in the earliest of these, where the last of the gradients is ready.
    """
    twin = _block_by_source(block_by_op)
    maker: dict[Tensor, Op] = {}
    current = list(blocks)[-1]
    for op in graph.ops:
        if op.leg is not Leg.BACKWARD:
            continue
        name = op.block[0] if op.block else twin.get(op.source)
        sources = [block_by_op[maker[tensor]] for tensor in op.inputs if tensor in maker]
        if name is not None or not sources:
            # First, so that it wins over another block of the same stage.
            sources.insert(0, name or current)
        current = block_by_op[op] = min(sources, key=lambda block: blocks[block].stage)
        maker.update(dict.fromkeys(op.outputs, op))


def _block_by_source(block_by_op: Mapping[Op, str]) -> Mapping[Source, str | None]:
    """Return the block of the forward ops written on a line of a module; None if there are several blocks."""
    twin: dict[Source, str | None] = {}
    for op, block in block_by_op.items():
        if op.source != UNKNOWN_SOURCE:
            twin[op.source] = block if twin.get(op.source, block) == block else None
    return twin


# --------------------------------------------------------------------------- update
def _add_update_blocks(graph: Graph, blocks: Mapping[str, _Block], block_by_op: dict[Op, str]) -> None:
    """Place update ops with the weight that they read, else with their gradient, else with their neighbours.

    A weight lives where the forward first reads it.
    """
    updates = [op for op in graph.ops if op.leg is Leg.UPDATE]
    if not updates:
        return
    home = _homes(graph, block_by_op)
    # Twice in each direction: a state's op may find its place through another op of the same weight.
    for ops in (updates, updates[::-1], updates, updates[::-1]):
        for op in ops:
            if op in block_by_op:
                continue
            name = _home_of(op, home)
            if name is not None:
                block_by_op[op] = name
                _settle(op, name, home)
    first = next(iter(blocks))
    for op in updates:
        block_by_op.setdefault(op, first)


# Operands that tell most where an update belongs come first.
_TELLING = (Role.WEIGHT, Role.OPTIMISER_STATE, Role.ACCUMULATOR, Role.BUFFER, Role.GRADIENT, Role.ACTIVATION)


def _homes(graph: Graph, block_by_op: Mapping[Op, str]) -> dict[Tensor, str]:
    """Return the block of each state that a forward op reads, and of each result placed so far."""
    home: dict[Tensor, str] = {}
    for leg in (Leg.FORWARD, Leg.BACKWARD):
        for op in graph.ops:
            if op.leg is not leg:
                continue
            for tensor in op.inputs:
                if tensor.role.is_state:
                    home.setdefault(tensor, block_by_op[op])
            home.update(dict.fromkeys(op.outputs, block_by_op[op]))
    return home


def _home_of(op: Op, home: Mapping[Tensor, str]) -> str | None:
    """Return the block of an op's most telling tensor that has one."""
    known = [tensor for tensor in (*op.inputs, *op.outputs) if tensor in home]
    known.sort(key=lambda tensor: _TELLING.index(tensor.role) if tensor.role in _TELLING else len(_TELLING))
    return home[known[0]] if known else None


def _settle(op: Op, name: str, home: dict[Tensor, str]) -> None:
    """Note that an update op's states, results and own operands are at home with it."""
    for tensor in (*op.inputs, *op.outputs):
        # A learning rate serves every weight: it leads nowhere.
        if tensor.role not in (Role.HYPERPARAMETER, Role.CONSTANT):
            home.setdefault(tensor, name)
