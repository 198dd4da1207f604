"""Gives every op a block, an IPU and a pipeline stage, from the user's block annotations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torchipu.errors import PlacementError, nearest
from torchipu.ir.graph import Graph, Op, Placement, Tensor
from torchipu.ir.text import Names, format_op
from torchipu.ir.types import UNKNOWN_SOURCE, Leg, Role, Source
from torchipu.optable.spec import spec_of
from torchipu.options import Options, Stage, format_stages
from torchipu.target import TARGETS, Target

ONLY_BLOCK = "main"  # of a model without blocks

# Ops of the update that concern all weights run in one place: with the loss, whose scale some of them hold.
OF_ALL_WEIGHTS = frozenset({"add_sums", "join_counts", "clip_scale", "unscale", "adapt_loss_scale"})


def place(graph: Graph, options: Options, target: Target, instances: int = 1) -> Graph:
    """Return a graph in which every op is placed.

    Blocks come in the order of ``options.stages`` or ``options.blocks``, else in the order in which they first run. A
    block that asks for no IPU gets the one after that of the block before it; one of ``options.stages`` the IPU of its
    stage, which without a word of its own is the stage's number. A stage is a run of blocks on one IPU, and in phased
    execution an entry of ``options.stages``. A forward op outside
    blocks belongs to the last block before it, or to the first block. A backward op outside blocks follows the
    forward op written on the same line, else the gradients that it reads, else the backward op before it. An update
    op sits with its weight.

    Args:
        graph: A graph as captured.
        options: ``stages``, ``blocks``, ``execution``, ``replicas`` and ``num_ipus`` are read.
        target: The machine, for the number of its IPUs.
        instances: Processes, each with ``replicas`` of its own: of a system all of them share the IPUs.

    Returns:
        The same ops with ``placement`` set, or the same object if it is set already.

    Raises:
        PlacementError: A block is unknown, asks for two IPUs or for one that is not there; no op is in a listed
            block; or a forward edge leads from a later stage back to an earlier one.
    """
    if all(op.placement is not None for op in graph.ops):
        return graph
    names = Names(graph)
    blocks = _stages(_blocks(graph, options, names), options, target, instances if target.is_system else 1)
    block_by_op = _forward_blocks(graph, blocks)
    _check_forward_edges(graph, blocks, block_by_op, names)
    _add_backward_blocks(graph, blocks, block_by_op)
    _add_update_blocks(graph, blocks, block_by_op)
    ops = []
    for op in graph.ops:
        block = blocks[block_by_op[op]]
        ops.append(_placed(op, Placement(block.name, block.ipu, block.stage, op.leg)))
    return replace(graph, ops=tuple(ops))


def _placed(op: Op, placement: Placement) -> Op:
    """Return an op at a place; what it runs is there too."""
    bodies = tuple(replace(body, ops=tuple(_placed(member, placement) for member in body.ops)) for body in op.bodies)
    return replace(op, placement=placement, bodies=bodies)


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
    option, listed, known = _listed(options)
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
        if listed is not None and name not in listed:
            raise PlacementError(
                f"block {name!r} is not in options.{option}{nearest(name, listed)}", op=format_op(op, names),
                source=op.source, detail=known,
                remedy=f"add it to options.{option} where its stage belongs, or set {option}=None",
            )
    if listed is None:
        return asked or {ONLY_BLOCK: None}
    if not asked and graph.ops:
        raise PlacementError(
            f"options.{option} leaves {len(graph.ops)} ops unplaced: no op of the model is in a block",
            op=format_op(graph.ops[0], names), source=graph.ops[0].source, detail=known,
            remedy=f"mark the regions of the model with torchipu.Block(name), or set {option}=None",
        )
    return {name: asked[name] for name in listed if name in asked} or {ONLY_BLOCK: None}


def _listed(options: Options) -> tuple[str, tuple[str, ...] | None, str]:
    """Return the option that lists the blocks, the blocks, and what to show of them in an error."""
    if options.stages is not None:
        blocks = tuple(block for stage in options.stages for block in stage.blocks)
        return "stages", blocks, format_stages(options.stages)
    return "blocks", options.blocks, f"known blocks: {', '.join(options.blocks or ())}"


def _in_forward_order(graph: Graph) -> Iterable[Op]:
    """Yield forward ops, then backward ops from the last: a block without forward ops still gets its position."""
    yield from (op for op in graph.ops if op.leg is Leg.FORWARD)
    yield from (op for op in reversed(graph.ops) if op.leg is Leg.BACKWARD)


def _stages(
    asked: Mapping[str, int | None], options: Options, target: Target, instances: int,
) -> dict[str, _Block]:
    """Number the stages and give each block its IPU."""
    replicas = options.replicas * instances
    in_all = target.num_ipus // replicas
    available = in_all if options.num_ipus is None else min(options.num_ipus, in_all)
    if available == 0:
        processes = "" if instances == 1 else f" ({instances} processes with {options.replicas} each)"
        raise PlacementError(
            f"{replicas} replicas of the model{processes} need {replicas} IPUs at least, but {target.name} has "
            f"{target.num_ipus}", remedy=f"{_fewer(target.num_ipus, instances)}{_larger_system(target, replicas)}",
        )
    blocks: dict[str, _Block] = {}
    entries = enumerate(options.stages or ())
    listed = {block: (number, entry) for number, entry in entries for block in entry.blocks}
    ipu, stage, before = -1, -1, -1
    for name, wanted in asked.items():
        number, entry = listed.get(name, (before, None))
        next_ipu = ipu + 1 if wanted is None else wanted
        if entry is not None:
            next_ipu = next((one for one in (entry.ipu, wanted) if one is not None), number)
        if not 0 <= next_ipu < available:
            raise _beyond(name, next_ipu, entry is not None or wanted is not None, available, replicas, options, target)
        if entry is not None and number == before and next_ipu != ipu:
            raise PlacementError(
                f"block {name!r} asks for ipu {next_ipu}, but its stage {number} is on ipu {ipu}",
                detail=format_stages(options.stages or (), number, f"ipu {ipu} and ipu {next_ipu}"),
                remedy="give the stage an ipu, or the block a stage of its own",
            )
        stage += next_ipu != ipu or (_is_phased(options) and entry is not None and number != before)
        ipu, before = next_ipu, number
        blocks[name] = _Block(name, ipu, stage)
    return blocks


def _is_phased(options: Options) -> bool:
    return options.execution in ("serial_phased", "parallel_phased")


def _fewer(num_ipus: int, instances: int) -> str:
    """Say how many replicas of one IPU there may be."""
    each = num_ipus // instances
    return f"set replicas to {each} or less" if each else f"use {num_ipus} processes or less"


def _larger_system(target: Target, num_ipus: int) -> str:
    """Name the smallest system of the same IPUs that has so many, after what else may be done."""
    alike = [
        other for other in TARGETS.values()
        if other.is_system and other.num_ipus >= num_ipus
        and (other.clock_hz, other.num_tiles, other.amp_macs_fp8)
        == (target.clock_hz, target.num_tiles, target.amp_macs_fp8)
    ]
    return f", or target to {min(alike, key=lambda one: one.num_ipus).name!r}" if alike else ""


def _beyond(
    name: str, ipu: int, is_asked: bool, available: int, replicas: int, options: Options, target: Target,
) -> PlacementError:
    """Make the error of a block on an IPU that is not there."""
    ids = "ipu 0 only" if available == 1 else f"ipus 0 to {available - 1}"
    owner = target.name if available == target.num_ipus else f"num_ipus={options.num_ipus}"
    if replicas > 1 and available == target.num_ipus // replicas:
        owner = f"a replica of {replicas} on the {target.num_ipus} IPUs of {target.name}"
    verb = "asks for" if is_asked else "would follow on"
    remedies = ["use an ipu_id that is there" if is_asked else "give ipu_id to the blocks that share an IPU"]
    if replicas > 1:
        remedies.append("use fewer replicas")
    if available < target.num_ipus // replicas:
        remedies.append("raise num_ipus")
    elif target.is_system and (larger := _larger_system(target, (ipu + 1) * replicas)):
        remedies.append(larger.removeprefix(", or ").replace("target", "set target", 1))
    return PlacementError(f"block {name!r} {verb} ipu {ipu}, but {owner} has {ids}", remedy=", or ".join(remedies))


# --------------------------------------------------------------------------- forward
def _forward_blocks(graph: Graph, blocks: Mapping[str, _Block]) -> dict[Op, str]:
    """Fill forward from the last block seen; ops before any block belong to the first.

    Where a later block writes into what an earlier one has a view of, torch takes the view again after the write, still
    with the earlier block's name: such a view lies with what it is a view of. It may also come after ops of a block
    behind its own: what follows without a block belongs to that one, and where a block of views alone is taken for the
    later one, a view lies with the earliest of those that read it.
    """
    block_by_op: dict[Op, str] = {}
    block_by_result: dict[Tensor, str] = {}
    current = next(iter(blocks))
    for op in graph.ops:
        if op.leg is not Leg.FORWARD:
            continue
        block = op.block[0] if op.block else current
        is_view = _is_view(op)
        seen = block_by_result.get(op.inputs[0], block) if is_view else block
        if blocks[seen].stage > blocks[block].stage:
            block = seen
        elif not is_view or blocks[block].stage >= blocks[current].stage:
            current = block
        block_by_op[op] = block
        block_by_result.update(dict.fromkeys(op.outputs, block))
    _bring_views_to_readers(blocks, block_by_op)
    return block_by_op


def _is_view(op: Op) -> bool:
    spec = spec_of(op)
    return spec is not None and spec.is_view


def _bring_views_to_readers(blocks: Mapping[str, _Block], block_by_op: dict[Op, str]) -> None:
    """Place views of later stages than the ops that read them with these."""
    reader: dict[Tensor, str] = {}  # the earliest
    for op in reversed(list(block_by_op)):
        if _is_view(op):
            readers = [reader[tensor] for tensor in op.outputs if tensor in reader]
            block_by_op[op] = min([block_by_op[op], *readers], key=lambda block: blocks[block].stage)
        here = block_by_op[op]
        for tensor in op.inputs:
            reader[tensor] = min(here, reader.get(tensor, here), key=lambda block: blocks[block].stage)


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
                stages = [
                    Stage(tuple(b.name for b in blocks.values() if b.stage == number), ipu)
                    for number, ipu in sorted({block.stage: block.ipu for block in blocks.values()}.items())
                ]
                raise PlacementError(
                    f"block {here.name!r} (stage {here.stage}) reads {names.tensor(tensor)}, which block "
                    f"{there.name!r} of the later stage {there.stage} makes", op=format_op(op, names),
                    source=op.source, block=Placement(here.name, here.ipu, here.stage, op.leg),
                    detail=format_stages(stages, here.stage, f"reads what stage {there.stage} makes"),
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
    block_by_op.update({op: list(blocks)[-1] for op in updates if op.kind in OF_ALL_WEIGHTS})
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
