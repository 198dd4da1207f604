"""The changes nearest to a program: what a user would try next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchipu.advice.changes import Change, has_float_weights, is_training
from torchipu.advice.trials import Subject, Tried
from torchipu.compiler import Compiled
from torchipu.ir.graph import Graph, Op
from torchipu.ir.modules import Module, fine_modules, modules_of
from torchipu.ir.types import Leg, Role
from torchipu.options import Stage, TensorLocation

USUAL_PROPORTION = 0.6
"""Available memory where the options say nothing. Source: `torchipu.options.Options.available_memory`."""
MOST_PROPORTION, LEAST_PROPORTION = 0.9, 0.05
BLOCKS_TO_RECOMPUTE = 8
"""A model without blocks is recomputed module by module, each about this part of it."""
PIPELINES = ("pipelined", "1f1b", "interleaved")
PARTS_OF_A_STAGE = 3
"""A module that moves is at most this part of a stage, where it can be taken apart."""
PARTS_OF_A_HALF = 6
"""The same of a half of a model that is cut in two."""


@dataclass(frozen=True, slots=True)
class StagePart:
    """A stage, as far as moves need it.

    Attributes:
        ipu: Where it runs.
        blocks: Names of its blocks, in order.
        cycles: Of a micro-batch's forward and backward.
    """

    ipu: int
    blocks: list[str] = field(default_factory=list)
    cycles: int = 0


def stages_in(compiled: Compiled) -> tuple[StagePart, ...]:
    """Return the stages of a program in order."""
    found: dict[int, StagePart] = {}
    for op in compiled.graph.ops:
        if op.placement is None or op.leg is Leg.UPDATE:
            continue
        stage = found.setdefault(op.placement.stage, StagePart(op.placement.ipu))
        if op.leg is Leg.FORWARD and op.placement.block not in stage.blocks:
            stage.blocks.append(op.placement.block)
    functions = compiled.cost.functions
    return tuple(
        StagePart(one.ipu, one.blocks, sum(
            functions[name].cycles for name in (f"{number}F", f"{number}B") if name in functions
        )) for number, one in sorted(found.items())
    )


def nearby(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield the changes nearest to a program, those that change least first.

    Args:
        subject: The program.
        base: The same, compiled.
    """
    yield from moves(subject, base)
    yield from recomputations(subject, base)
    yield from proportions(subject, base)
    yield from more_micro_batches(subject, base)
    yield from states_elsewhere(subject, base)
    yield from other_sizes(subject, base, halves=True)
    yield from second_ipu(subject, base)


# --------------------------------------------------------------------------- stages
def moves(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield moves of a block, or of a module where a stage has one block, from the longest stage to its neighbours."""
    compiled = base.compiled
    if compiled is None or subject.options.execution not in (*PIPELINES, "sharded"):
        return
    stages = stages_in(compiled)
    if len(stages) < 2:
        return
    longest = max(range(len(stages)), key=lambda number: stages[number].cycles)
    beside = [number for number in (longest - 1, longest + 1) if 0 <= number < len(stages)]
    for other in sorted(beside, key=lambda number: stages[number].cycles):
        change = (
            _moved_block(stages, longest, other) if len(stages[longest].blocks) > 1
            else _moved_module(compiled, stages, longest, other)
        )
        if change is not None:
            yield change


def _moved_block(stages: Sequence[StagePart], stage: int, other: int) -> Change:
    block = stages[stage].blocks[-1 if other > stage else 0]
    blocks = [[name for name in one.blocks if name != block] for one in stages]
    blocks[other] = [block, *blocks[other]] if other > stage else [*blocks[other], block]
    made = tuple(Stage(tuple(names), one.ipu) for names, one in zip(blocks, stages, strict=True))
    return Change(
        f"block {block!r} from ipu {stages[stage].ipu} to ipu {stages[other].ipu}",
        f"stages={written(made)}", {"stages": made, "blocks": None},
    )


def _moved_module(compiled: Compiled, stages: Sequence[StagePart], stage: int, other: int) -> Change | None:
    """Return the move of the module at the border, with what its stage does beyond it."""
    graph = compiled.graph
    forward = [op for op in graph.ops if op.leg is Leg.FORWARD]
    mine = [position for position, op in enumerate(forward) if _stage_of(op) == stage]
    inside = [module for module in _parts(compiled, len(stages) * PARTS_OF_A_STAGE)
              if module.path and all(_stage_of(op) == stage for op in forward[module.begin : module.end])]
    if len(inside) < 2 or not mine:
        return None
    module = inside[-1] if other > stage else inside[0]
    gone = [p for p in mine if p >= module.begin] if other > stage else [p for p in mine if p < module.end]
    if len(gone) == len(mine):
        return None
    name = stages[other].blocks[0 if other > stage else -1]
    ipu = stages[other].ipu
    names = frozenset(forward[position].outputs[0].name for position in gone if forward[position].outputs)
    return Change(
        f"module {module.path} from ipu {stages[stage].ipu} to ipu {ipu}",
        f"torchipu.BeginBlock(model.get_submodule({module.path!r}), {name!r}, {ipu})", {},
        blocks={module.path: (name, ipu)}, moved=names,
    )


def _stage_of(op: Op) -> int:
    return -1 if op.placement is None else op.placement.stage


def _parts(compiled: Compiled, count: int) -> list[Module]:
    root = modules_of(compiled.graph, compiled.cost.cycles_by_result)
    return fine_modules(root, root.cycles / count)


def second_ipu(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield the cut of a model on one IPU that gives half of its cycles to another."""
    compiled = base.compiled
    if compiled is None or len(base.memory) > 1 or _blocks(compiled.graph) or subject.options.num_ipus == 1:
        return
    modules = [module for module in _parts(compiled, 2 * PARTS_OF_A_HALF) if module.path]
    if len(modules) < 2:
        return
    total, held, cut = sum(module.cycles for module in modules), 0, 1
    for number, module in enumerate(modules[:-1], start=1):
        held += module.cycles
        cut = number
        if 2 * held >= total:
            break
    paths = {
        module.path: (modules[0].path, 0) if number < cut else (modules[cut].path, 1)
        for number, module in enumerate(modules)
    }
    yield Change(
        f"module {modules[cut].path} and what follows it on a second IPU",
        "torchipu.autopipeline(model, inputs, 2).accept()", _filled(subject), blocks=paths,
    )


def _filled(subject: Subject) -> dict[str, Any]:
    """Return options under which two stages have enough micro-batches."""
    options = subject.options
    if not is_training(subject.graph) or options.gradient_accumulation >= 3:
        return {}
    return {"execution": "sharded"} if subject.again is None else {"gradient_accumulation": 4}


# --------------------------------------------------------------------------- memory
def recomputations(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield recomputation where there is none, and none where there is some."""
    compiled = base.compiled
    if compiled is None or not is_training(subject.graph):
        return
    if any("recomputed_from" in op.attrs for op in compiled.graph.ops):
        yield _setting("nothing is recomputed", recompute="none")
        return
    if len(stages_in(compiled)) > 1:
        yield _setting("every stage but the last is recomputed", recompute="stage")
        return
    blocks = _blocks(compiled.graph)
    if len(blocks) > 1:
        yield _setting("blocks are recomputed from their inputs", recompute=tuple(blocks))
        return
    modules = [module.path for module in _parts(compiled, BLOCKS_TO_RECOMPUTE) if module.path]
    if len(modules) > 1 and not blocks:
        again = modules[:-1]  # the backward of the last one follows its forward at once
        yield Change(
            f"{shortened(again)} recomputed from their inputs",
            f"recompute={written(tuple(again))}, with torchipu.BeginBlock(module, path, 0) for each",
            {"recompute": tuple(again)}, blocks={path: (path, 0) for path in modules},
        )


def proportions(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield less and more memory for the temporary values of products and convolutions."""
    ipus = range(len(base.memory))
    given = subject.options.available_memory or {}
    now = max(given.get(ipu, USUAL_PROPORTION) for ipu in ipus) if ipus else USUAL_PROPORTION
    for word, share in (("less", now / 2), ("more", now * 1.5)):
        share = round(min(MOST_PROPORTION, max(LEAST_PROPORTION, share)), 3)
        if share != now:
            yield Change(
                f"{word} memory for temporary values of products: {share:g} of a tile",
                f"available_memory={dict.fromkeys(ipus, share)}", {"available_memory": dict.fromkeys(ipus, share)},
                flags=f"--available-memory {share:g}",
            )


def states_elsewhere(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield optimiser states off chip, and shared out over replicas."""
    options = subject.options
    if not any(tensor.role is Role.OPTIMISER_STATE for tensor in subject.graph.inputs):
        return
    place = options.optimiser_state_location
    is_sharded = place is not None and place.replicated_sharding
    if options.replicas * subject.instances > 1 and not is_sharded:
        on_chip = not options.offload_optimiser_state and (place is None or place.on_chip)
        location = TensorLocation(on_chip=on_chip, replicated_sharding=True)
        changed = {"optimiser_state_location": location, "offload_optimiser_state": False}
        yield Change(
            "optimiser states shared out over the replicas",
            f"optimiser_state_location=torchipu.TensorLocation(on_chip={on_chip}, replicated_sharding=True)", changed,
        )
    if not options.offload_optimiser_state and (place is None or place.on_chip):
        yield _setting("optimiser states in Streaming Memory between updates", offload_optimiser_state=True)


def smaller_states(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield halves where optimiser states, accumulators and weights are floats."""
    if base.compiled is None or subject.again is None or not is_training(subject.graph):
        return
    roles = {tensor.role for tensor in base.compiled.graph.inputs if tensor.dtype.device_bytes == 4}
    if Role.OPTIMISER_STATE in roles and subject.options.first_moment_type == "weight":
        yield _setting("first moments of the optimiser in halves", first_moment_type="half")
    if Role.ACCUMULATOR in roles and subject.options.accumulator_type == "gradient":
        yield _setting("gradients accumulated in halves", accumulator_type="half")


def in_halves(subject: Subject) -> Iterator[Change]:
    """Yield the model in halves."""
    if has_float_weights(subject.graph):
        yield Change("weights, activations and what is kept for them in halves", "model.half()", is_half=True)


# --------------------------------------------------------------------------- micro-batches
def more_micro_batches(subject: Subject, base: Tried) -> Iterator[Change]:
    """Yield twice as many micro-batches in a pipeline, or in an update."""
    if is_training(subject.graph):
        count = 2 * subject.options.gradient_accumulation
        if subject.again is not None or subject.options.gradient_accumulation > 1:
            yield _setting("twice the micro-batches of an update", gradient_accumulation=count)
    elif len(base.memory) > 1 and subject.again is not None:
        yield _setting("twice the micro-batches of a call", device_iterations=2 * subject.options.device_iterations)


def other_sizes(subject: Subject, base: Tried, *, halves: bool) -> Iterator[Change]:
    """Yield micro-batches of half, or twice, the samples."""
    size = samples_of(subject.graph)
    if subject.again is None or (halves and (size < 2 or size % 2)) or not size:
        return
    samples = size // 2 if halves else size * 2
    yield Change(
        f"micro-batches of {samples} sample{'s' * (samples > 1)} instead of {size}", f"micro-batches of {samples}",
        samples=samples, flags=f"--micro-batch {samples}",
    )


def samples_of(graph: Graph) -> int:
    """Return the first size of the first input of a graph; 0 where no input has a size."""
    return next((one.shape[0] for one in graph.inputs if one.role is Role.INPUT and one.shape), 0)


# --------------------------------------------------------------------------- words
def _setting(words: str, **settings: Any) -> Change:
    option = ", ".join(f"{name}={written(value)}" for name, value in settings.items())
    simple = all(isinstance(value, (str, int, float)) for value in settings.values())
    flags = " ".join(f"--set {name}={value}" for name, value in settings.items()) if simple else ""
    return Change(words, option, settings, flags=flags)


def written(value: object) -> str:
    """Return a value of an option as Python."""
    if isinstance(value, Stage):
        return f"torchipu.options.Stage({value.blocks!r}, {value.ipu!r})"
    if isinstance(value, tuple):
        return f"[{', '.join(map(written, value))}]"
    return repr(value)


def shortened(names: Sequence[str], most: int = 3) -> str:
    """Return names with commas, and how many there are beyond some."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _blocks(graph: Graph) -> Mapping[str, None]:
    """Return the blocks that the user has marked, in order."""
    return dict.fromkeys(op.block[0] for op in graph.ops if op.block is not None and op.leg is Leg.FORWARD)
