"""Shares of replicas: gathered before use, updated as shares, with sums that leave each replica its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torchipu.device.locations.uses import fields_of, over_others, sync_before, used_by
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.mapping import linear
from torchipu.ir.program import (
    AllReduce,
    Copy,
    Execute,
    Program,
    Sequence,
    Sync,
    Variable,
    leaves_of,
)
from torchipu.ir.types import DType, Role
from torchipu.optable.spec import spec_of
from torchipu.target import Target

ACCUMULATIONS = ("accumulate", "accumulate_mean")
OF_NORMS = ("lamb", "lars")
"""Updates that need the norms of whole tensors: of the weights, and of their gradient or direction."""


def with_whole_weights(
    functions: Mapping[str, Program], changes: Mapping[Variable, Variable], replicas: int,
) -> tuple[dict[str, Program], list[Variable]]:
    """Let forwards and backwards gather weights of which each replica has a share, right before the first use.

    Returns:
        The functions, and the variables that hold what was gathered: one for each weight and function, which lasts no
        longer than the function needs it.
    """
    shared = [
        variable for variable, new in changes.items()
        if variable.role is Role.WEIGHT and new.num_elements != variable.num_elements
    ]
    done = dict(functions)
    wholes: list[Variable] = []
    for name, program in functions.items():
        used = set(used_by(program))
        here = [variable for variable in shared if variable in used]
        if not here or name.startswith("U") or not isinstance(program, Sequence):
            continue
        whole = {
            variable: replace(variable, name=f"{variable.name}.whole.{name}", role=Role.ACTIVATION) for variable in here
        }
        wholes += whole.values()
        done[name] = _with_gathers(program, whole, changes, replicas)
    return done, wholes


def _with_gathers(
    program: Sequence, whole: Mapping[Variable, Variable], changes: Mapping[Variable, Variable], replicas: int,
) -> Program:
    """Return a function that gathers before the first use of each weight what it then reads."""
    body: list[Program] = []
    due = dict(whole)
    for step in program.body:
        first = [variable for variable in dict.fromkeys(used_by(step)) if variable in due]
        if first:
            before = sync_before(body)
            for variable in first:
                share, gathered = changes[variable], due.pop(variable)
                largest = share.mapping.max_elements_per_tile() * share.dtype.device_bytes
                body += [
                    Sync("ipu"), Copy(share, gathered, share.device_bytes, largest), Sync("replica"),
                    AllReduce((gathered,), False, replicas, "all_gather"),
                ]
            body += before
        body.append(over_others(step, whole))
    return Sequence(tuple(body))


def with_shares(
    functions: dict[str, Program], changes: Mapping[Variable, Variable], target: Target,
) -> tuple[dict[str, Program], list[Variable]]:
    """Let updates work on shares, sums leave shares, and weights be gathered.

    Returns:
        The functions, and the variables of the norms that replicas add up.
    """
    shared = {variable for variable, new in changes.items() if new.num_elements != variable.num_elements}
    norms: list[Variable] = []
    if not shared:
        return functions, norms
    done: dict[str, Program] = {}
    gradients: set[Variable] = set()
    for name, program in functions.items():
        if name.startswith("U"):
            rewritten, read, weights = _update_of_shares(program, shared, changes, target, norms)
            gradients |= read
            gathered = (Sync("replica"), AllReduce(tuple(weights), False, 0, "all_gather")) if weights else ()
            done[name] = Sequence((*rewritten.body, *gathered))
    replicas = next((s.replicas for p in functions.values() for s in leaves_of(p) if isinstance(s, AllReduce)), 1)
    done = {name: _with_replicas(program, replicas) for name, program in done.items()}
    accumulators = {variable: new for variable, new in changes.items() if variable.role is Role.ACCUMULATOR}
    accumulators = {variable: new for variable, new in accumulators.items() if variable in shared}
    for name, program in functions.items():
        if name.startswith("R"):
            done[name] = _scattered(program, gradients, set(accumulators))
        elif name.startswith("N") and not name.endswith(".send"):
            done[name] = _norms_of_shares(program, gradients, replicas, target)
        elif name not in done:
            done[name] = _accumulating_shares(program, accumulators, replicas, target)
    return {name: done.get(name, program) for name, program in functions.items()}, norms


def _update_of_shares(
    program: Program, shared: set[Variable], changes: Mapping[Variable, Variable], target: Target,
    norms: list[Variable],
) -> tuple[Sequence, set[Variable], list[Variable]]:
    """Return an update whose compute sets with shared states take a share, its gradients, and its weights."""
    gradients: set[Variable] = set()
    weights: dict[Variable, None] = {}
    body: list[Program] = []
    steps = program.body if isinstance(program, Sequence) else (program,)
    last = {step.compute_set.op: step for step in steps if isinstance(step, Execute)}
    for step in steps:
        if isinstance(step, Execute) and shared.intersection(fields_of(step)):
            if step.compute_set.op.kind in OF_NORMS and last[step.compute_set.op] is step:
                before = sync_before(body)
                body += _summed_norms(step, shared, norms, target)
                body += before
            fields = list(fields_of(step))
            whole = (field for field in fields if field.role is Role.WEIGHT and field not in shared)
            weights.update(dict.fromkeys(whole))
            size = max(field.num_elements for field in fields if field in shared)
            gradients |= {
                field for field in fields
                if field.role in (Role.GRADIENT, Role.ACCUMULATOR, Role.ACTIVATION) and field.num_elements == size
            }
            smaller = max(changes[field].num_elements for field in fields if field in shared)
            step = _smaller(step, size, smaller, target)
        body.append(step)
    return Sequence(tuple(body)), gradients, list(weights)


def _summed_norms(step: Execute, shared: set[Variable], norms: list[Variable], target: Target) -> list[Program]:
    """Return the steps that add up over the replicas the squares that each of them has of its share."""
    state = next(field for field in fields_of(step) if field in shared)
    sums = replace(
        state, name=f"{state.name}.norms", shape=(2,), dtype=DType.FLOAT, role=Role.GRADIENT,
        mapping=linear(2, target.num_tiles, 2, 2),
    )
    norms.append(sums)
    return [Sync("replica"), AllReduce((sums,), False, 0)]


def _smaller(step: Execute, size: int, smaller: int, target: Target) -> Execute:
    """Return a compute set whose vertices go over a share of the elements."""
    compute_set = step.compute_set
    op = compute_set.op

    def share(tensor: Tensor) -> Tensor:
        is_divided = tensor.num_elements == size and tensor.role is not Role.HYPERPARAMETER
        return replace(tensor, shape=(smaller,)) if is_divided else tensor

    part: Op = replace(op, inputs=tuple(map(share, op.inputs)), outputs=tuple(map(share, op.outputs)))
    spec = spec_of(op)
    made = [one for one in spec.lower(part, target) if one.elements > 0] if spec is not None else []
    number = int(compute_set.name.rpartition(".")[2])
    if number >= len(made):
        return Execute(replace(compute_set, groups=tuple(replace(g, over_shares=True) for g in compute_set.groups)))
    vertices = made[number]
    grain = vertices.grain
    runs = linear(vertices.elements, min(vertices.max_tiles or target.num_tiles, target.num_tiles), grain, grain)
    work = vertices.work(runs.max_elements_per_tile())
    cycles = int(vertices.codelet.cycles(target, work))
    groups = tuple(
        replace(group, runs=runs, work=work, cycles=cycles, over_shares=True) for group in compute_set.groups
    )
    return Execute(replace(compute_set, groups=groups))


def _with_replicas(program: Program, replicas: int) -> Program:
    body = program.body if isinstance(program, Sequence) else (program,)
    return Sequence(tuple(
        replace(step, replicas=replicas) if isinstance(step, AllReduce) else step for step in body
    ))


def _norms_of_shares(program: Program, gradients: set[Variable], replicas: int, target: Target) -> Program:
    """Return a function that adds up squares of what each replica has of a gradient, then those of all replicas."""
    body: list[Program] = []
    squares: dict[Variable, None] = {}
    for step in program.body if isinstance(program, Sequence) else (program,):
        if isinstance(step, Execute) and gradients.intersection(fields_of(step)):
            (group,) = step.compute_set.groups
            size = group.op.inputs[0].num_elements
            step = _smaller(step, size, -(-size // replicas), target)
            squares[group.fields["out"]] = None
        body.append(step)
    if squares:
        body += [Sync("replica"), AllReduce(tuple(squares), False, replicas)]
    return Sequence(tuple(body))


def _accumulating_shares(
    program: Program, accumulators: Mapping[Variable, Variable], replicas: int, target: Target,
) -> Program:
    """Return a function that adds up gradients over the replicas before it adds a share of them to an accumulator."""
    body: list[Program] = []
    scattered: set[Variable] = set()
    for step in program.body if isinstance(program, Sequence) else (program,):
        found = _accumulation(step, accumulators)
        if found is None or not isinstance(step, Execute):
            body.append(step)
            continue
        accumulator, gradient = found
        if gradient not in scattered:  # weights may have the same gradient
            before = sync_before(body)
            mean = step.compute_set.op.kind == "accumulate_mean"
            body += [Sync("replica"), AllReduce((gradient,), mean, replicas, "reduce_scatter"), *before]
            scattered.add(gradient)
        body.append(_smaller(step, accumulator.num_elements, accumulators[accumulator].num_elements, target))
    return Sequence(tuple(body))


def _accumulation(step: Program, accumulators: Mapping[Variable, Variable]) -> tuple[Variable, Variable] | None:
    """Return the accumulator of which each replica has a share, and the gradient, where a step adds the one up."""
    if not isinstance(step, Execute) or step.compute_set.op.kind not in ACCUMULATIONS:
        return None
    (group,) = step.compute_set.groups
    accumulator = group.fields["accumulator"]
    return (accumulator, group.fields["gradient"]) if accumulator in accumulators else None


def _scattered(program: Program, gradients: set[Variable], done: set[Variable]) -> Program:
    """Let the sums of these gradients leave each replica its share, and leave out those that are done."""
    body: list[Program] = []
    for step in program.body if isinstance(program, Sequence) else (program,):
        if isinstance(step, AllReduce):
            parts = (
                ("reduce_scatter", tuple(v for v in step.variables if v in gradients and v not in done)),
                ("all_reduce", tuple(v for v in step.variables if v not in gradients and v not in done)),
            )
            body += [replace(step, variables=chosen, kind=kind) for kind, chosen in parts if chosen]
        else:
            body.append(step)
    return Sequence(tuple(body))
