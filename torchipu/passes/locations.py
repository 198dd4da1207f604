"""Moves variables off chip and shares them out among replicas, as the options say, in a program that is lowered.

Kept by later passes: what is off chip is on its tiles only between the first and the last use in each function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from torchipu.ir.graph import Op, Tensor
from torchipu.ir.mapping import linear
from torchipu.ir.program import (
    AllReduce,
    Call,
    ComputeSet,
    Copy,
    Executable,
    Execute,
    HostCopy,
    If,
    OnIpus,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Sync,
    Variable,
    VertexGroup,
    leaves_of,
)
from torchipu.ir.types import DType, Leg, Role
from torchipu.ops.spec import spec_of
from torchipu.options import Options, TensorLocation
from torchipu.target import Target

OF_NORMS = ("lamb", "lars")
"""Updates that need the norms of whole tensors: of the weights, and of their gradient or direction."""
REMOTE = "remote."  # streams of Streaming Memory
OVERLAP_OF_LOADS = "device_iteration_loop"
"""What goes through IO tiles of itself: the next load runs while this function computes."""

_HOST_SYNC = Sync("host")


def locate(executable: Executable, options: Options, target: Target) -> Executable:
    """Return a program whose variables are where the options want them.

    Args:
        executable: From the lower pass.
        options: The four locations, ``offload_optimiser_state`` and the overlaps of host streams are read.
        target: The machine, for the size of a share of a variable.

    Returns:
        The program with transfers of Streaming Memory around the uses of what is off chip; with sums of gradients
        that leave each replica its share, updates of that share, and the weights gathered after, for what is shared
        out, or before each use for weights that are so themselves; the same object where all is on chip and whole.
        Values are not concerned.

    Source: PopART's tensor locations and replicated tensor sharding, ``ipu_hardware.md`` 4.2 and 4.3.
    """
    locations = {role: place for role, place in places(options).items() if place != TensorLocation()}
    overlaps = {True: options.overlap_inputs, False: options.overlap_outputs}
    if not locations and set(overlaps.values()) == {"none"}:
        return executable
    sent = _sent(executable)
    within_leg = not options.liveness.startswith("off_chip_after_forward")
    links = _link_stashes(executable, locations, sent, within_leg=within_leg)
    moved = {
        variable: links[variable].buffer if variable in links
        else _moved(variable, executable, locations, target, sent, within_leg=within_leg)
        for variable in executable.variables
    }
    changes = {variable: new for variable, new in moved.items() if new is not variable}
    functions = dict(executable.functions)
    wholes: list[Variable] = []
    if executable.replicas > 1:
        functions, wholes = _gathered(functions, changes, executable.replicas)
        functions, norms = _shared_out(functions, changes, target)
        wholes += norms
    functions = {
        name: _rewritten(program, {**changes, **{v: link.seen_by(name) for v, link in links.items()}})
        for name, program in functions.items()
    }
    functions = {name: _with_transfers(program, locations) for name, program in functions.items()}
    for link in links.values():
        functions[link.storer] = _stored(functions[link.storer], link, locations)
    functions = {name: _overlapped(program, overlaps) for name, program in functions.items()}
    variables = (*(moved[variable] for variable in executable.variables), *(v.stash for v in links.values()), *wholes)
    programs = {name: _rewritten(program, changes) for name, program in executable.programs.items()}
    return replace(executable, functions=functions, variables=variables, programs=programs)


def places(options: Options) -> dict[Role, TensorLocation]:
    """Return where tensors of each role lie."""
    # PopTorch's phases leave nothing on the chip for those that follow.
    is_phased = options.execution.endswith("_phased")
    usual = TensorLocation(on_chip=not is_phased)
    states = TensorLocation(on_chip=False) if options.offload_optimiser_state else usual
    return {
        Role.WEIGHT: options.weight_location or usual,
        Role.ACTIVATION: _of_activations(options, usual) if is_phased else options.activation_location or usual,
        Role.ACCUMULATOR: options.accumulator_location or usual,
        Role.OPTIMISER_STATE: options.optimiser_state_location or states,
    }


def _of_activations(options: Options, usual: TensorLocation) -> TensorLocation:
    """Return where activations lie between phases."""
    if options.liveness == "always_live":
        return options.activation_location or TensorLocation()
    place = options.activation_location or usual
    if options.liveness.endswith("no_overlap"):
        return replace(place, io_tiles_to_load=False, io_tiles_to_store=False)
    return place


# --------------------------------------------------------------------------- variables
def _sent(executable: Executable) -> set[Variable]:
    """Return what goes from one IPU to another: of that each replica needs all."""
    copies = (one for program in executable.functions.values() for one in leaves_of(program) if isinstance(one, Copy))
    return {variable for one in copies if one.src.ipu != one.dst.ipu for variable in (one.src, one.dst)}


def _moved(
    variable: Variable, executable: Executable, locations: Mapping[Role, TensorLocation], target: Target,
    sent: set[Variable], *, within_leg: bool,
) -> Variable:
    place = locations.get(variable.role)
    if place is None:
        return variable
    if variable.role is Role.ACTIVATION:
        # A stash: made in one function, by its vertices, and read in another.
        is_stash = place.on_chip is False and _is_stash(variable, executable, within_leg=within_leg)
        is_off_chip = is_stash and variable.num_elements >= place.min_elements_off_chip
        return replace(variable, off_chip=True, depth=1) if is_off_chip else variable
    replicas = executable.replicas
    is_shared = (
        place.replicated_sharding and replicas > 1 and variable.num_elements >= place.min_elements_sharding
        and variable not in sent
    )
    if is_shared:
        share = math.ceil(variable.num_elements / replicas)
        grain = target.vector_width(variable.dtype.device_bytes)
        mapping = linear(share, target.num_tiles, grain, grain)
        variable = replace(variable, shape=(share,), mapping=mapping)
    is_off_chip = not place.on_chip and variable.num_elements >= place.min_elements_off_chip
    return replace(variable, off_chip=True) if is_off_chip else variable


def _is_stash(variable: Variable, executable: Executable, *, within_leg: bool) -> bool:
    """Whether vertices of one function make a variable and another function reads it on the same IPU.

    Args:
        variable: An activation.
        executable: The program.
        within_leg: Whether a forward that reads what another forward made counts, and a backward likewise.
    """
    makers = {name for name, program in executable.functions.items() if variable in set(_written(program))}
    users = {name for name, program in executable.functions.items() if variable in set(_used(program))}
    sent = any(
        isinstance(step, Copy) and step.src.ipu != step.dst.ipu and step.dst is variable
        for name in users for step in leaves_of(executable.functions[name])
    )
    users = {name for name in users if not name.endswith(".send")}
    others = {name for name in users - makers if within_leg or _leg_of(name) not in map(_leg_of, makers)}
    return not sent and len(makers) == 1 and bool(others)


def _leg_of(function: str) -> str:
    """Return the letter of a function's leg: F of ``12F.recompute``."""
    return function.lstrip("0123456789")[:1]


# --------------------------------------------------------------------------- stashes of what crosses links
@dataclass(frozen=True, slots=True)
class _LinkStash:
    """An activation that crosses links and waits off chip for later functions of its IPU.

    Attributes:
        buffer: What is sent, or arrives, on chip.
        stash: What later functions read.
        storer: The function that stores the one as the other: that which makes it, or reads it first.
    """

    buffer: Variable
    stash: Variable
    storer: str

    def seen_by(self, function: str) -> Variable:
        """Return the variable that a function works on."""
        return self.buffer if function == self.storer or function.endswith(".send") else self.stash


def _link_stashes(
    executable: Executable, locations: Mapping[Role, TensorLocation], sent: set[Variable], *, within_leg: bool,
) -> dict[Variable, _LinkStash]:
    """Return these of a program; ``within_leg`` as for other stashes."""
    place = locations.get(Role.ACTIVATION)
    if place is None or place.on_chip:
        return {}
    functions = executable.functions
    users: dict[Variable, dict[str, None]] = {}
    for name, program in functions.items():
        if not name.endswith(".send"):
            for variable in sent.intersection(_used(program)):
                users.setdefault(variable, {})[name] = None
    found: dict[Variable, _LinkStash] = {}
    for variable in (v for v in executable.variables if v in users and v.role is Role.ACTIVATION):
        storers = [name for name in users[variable] if variable in set(_written(functions[name]))]
        storers = storers or [name for name in users[variable] if name.endswith(Leg.FORWARD.value)]
        legs = [_leg_of(name) for name in users[variable] if name not in storers]
        others = [leg for leg in legs if within_leg or leg != _leg_of(storers[0])] if storers else []
        if variable.num_elements >= place.min_elements_off_chip and len(storers) == 1 and others:
            stash = replace(variable, name=f"{variable.name}.stash", depth=1, off_chip=True)
            found[variable] = _LinkStash(replace(variable, depth=1), stash, storers[0])
    return found


def _stored(program: Program, link: _LinkStash, locations: Mapping[Role, TensorLocation]) -> Program:
    """Return a function that stores its buffer after the last use."""
    body = program.body if isinstance(program, Sequence) else (program,)
    last = max(position for position, step in enumerate(body) if link.buffer in set(_used(step)))
    out = replace(_transfer(link.stash, locations, to_device=False), variable=link.buffer)
    return Sequence((*body[: last + 1], _HOST_SYNC, out, *body[last + 1 :]))


# --------------------------------------------------------------------------- shares of replicas
def _gathered(
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
        used = set(_used(program))
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
        first = [variable for variable in dict.fromkeys(_used(step)) if variable in due]
        if first:
            before = _sync_before(body)
            for variable in first:
                share, gathered = changes[variable], due.pop(variable)
                largest = share.mapping.max_elements_per_tile() * share.dtype.device_bytes
                body += [
                    Sync("ipu"), Copy(share, gathered, share.device_bytes, largest), Sync("replica"),
                    AllReduce((gathered,), False, replicas, "all_gather"),
                ]
            body += before
        body.append(_rewritten(step, whole))
    return Sequence(tuple(body))


def _sync_before(body: list[Program]) -> list[Program]:
    """Take from the end of a body what belongs to the compute set that follows: its sync and its exchange."""
    sync = [body.pop()] if body and isinstance(body[-1], (Sync, Copy)) else []
    if sync and isinstance(sync[0], Copy) and body and isinstance(body[-1], Sync):
        return [body.pop(), *sync]
    return sync


def _shared_out(
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
    for name, program in functions.items():
        if name.startswith("R"):
            done[name] = _scattered(program, gradients)
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
        if isinstance(step, Execute) and shared.intersection(_fields(step)):
            if step.compute_set.op.kind in OF_NORMS and last[step.compute_set.op] is step:
                before = _sync_before(body)
                body += _summed_norms(step, shared, norms, target)
                body += before
            fields = list(_fields(step))
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
    state = next(field for field in _fields(step) if field in shared)
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
        return replace(tensor, shape=(smaller,)) if tensor.num_elements == size else tensor

    part: Op = replace(op, inputs=tuple(map(share, op.inputs)), outputs=tuple(map(share, op.outputs)))
    spec = spec_of(op)
    made = [one for one in spec.lower(part, target) if one.elements > 0] if spec is not None else []
    number = int(compute_set.name.rpartition(".")[2])
    if number >= len(made):
        return step
    vertices = made[number]
    grain = vertices.grain
    runs = linear(vertices.elements, min(vertices.max_tiles or target.num_tiles, target.num_tiles), grain, grain)
    work = vertices.work(runs.max_elements_per_tile())
    cycles = int(vertices.codelet.cycles(target, work))
    groups = tuple(replace(group, runs=runs, work=work, cycles=cycles) for group in compute_set.groups)
    return Execute(replace(compute_set, groups=groups))


def _with_replicas(program: Program, replicas: int) -> Program:
    body = program.body if isinstance(program, Sequence) else (program,)
    return Sequence(tuple(
        replace(step, replicas=replicas) if isinstance(step, AllReduce) else step for step in body
    ))


def _scattered(program: Program, gradients: set[Variable]) -> Program:
    """Let the sums of these gradients leave each replica its share."""
    body: list[Program] = []
    for step in program.body if isinstance(program, Sequence) else (program,):
        if isinstance(step, AllReduce):
            parts = (
                ("reduce_scatter", tuple(v for v in step.variables if v in gradients)),
                ("all_reduce", tuple(v for v in step.variables if v not in gradients)),
            )
            body += [replace(step, variables=chosen, kind=kind) for kind, chosen in parts if chosen]
        else:
            body.append(step)
    return Sequence(tuple(body))


# --------------------------------------------------------------------------- transfers
def _with_transfers(program: Program, locations: Mapping[Role, TensorLocation]) -> Program:
    """Load what is off chip before its first use in a function, and store it after the last if it was written."""
    if not isinstance(program, Sequence):
        return program
    first: dict[Variable, int] = {}
    last: dict[Variable, int] = {}
    for position, step in enumerate(program.body):
        for variable in _used(step):
            if variable.off_chip:
                first.setdefault(variable, position)
                last[variable] = position
    if not first:
        return program
    written = set(_written(program))
    read_first = {variable for variable, position in first.items() if _is_read(program.body[position], variable)}
    body: list[Program] = []
    for position, step in enumerate(program.body):
        loads = [v for v, at in first.items() if at == position and (v in read_first or v.role.is_state)]
        if loads:
            sync = _sync_before(body)
            body += [_HOST_SYNC, *(_transfer(v, locations, to_device=True) for v in loads), *sync]
        body.append(step)
        stores = [v for v, at in last.items() if at == position and v in written]
        if stores:
            body += [_HOST_SYNC, *(_transfer(v, locations, to_device=False) for v in stores)]
    return Sequence(tuple(body))


def _transfer(variable: Variable, locations: Mapping[Role, TensorLocation], *, to_device: bool) -> HostCopy:
    place = locations[variable.role]
    uses_io_tiles = place.io_tiles_to_load if to_device else place.io_tiles_to_store
    overlap = OVERLAP_OF_LOADS if uses_io_tiles else "none"
    return HostCopy(f"{REMOTE}{variable.name}", variable, to_device, overlap)


def _overlapped(program: Program, overlaps: Mapping[bool, str]) -> Program:
    """Let host streams overlap with compute as the options say."""
    if not isinstance(program, Sequence):
        return program
    return Sequence(tuple(
        replace(step, overlap=overlaps[step.to_device])
        if isinstance(step, HostCopy) and step.overlap == "none" and not step.stream.startswith(REMOTE) else step
        for step in program.body
    ))


# --------------------------------------------------------------------------- walks
def _fields(step: Execute) -> Iterator[Variable]:
    for group in step.compute_set.groups:
        yield from group.fields.values()


def _used(program: Program) -> Iterator[Variable]:
    for step in leaves_of(program):
        match step:
            case Execute():
                yield from _fields(step)
            case Copy(src=src, dst=dst):
                yield from (src, dst)
            case HostCopy(variable=variable):
                yield variable
            case AllReduce(variables=variables):
                yield from variables
    if isinstance(program, (If, RepeatWhile)):
        yield program.condition


def _written(program: Program) -> Iterator[Variable]:
    """Yield what vertices, copies on the same IPU and sums write."""
    for step in leaves_of(program):
        match step:
            case Execute(compute_set=compute_set):
                for group in compute_set.groups:
                    yield from (v for name, v in group.fields.items() if name.rstrip("0123456789") == "out")
            case Copy(src=src, dst=dst) if src is not dst:
                yield dst
            case AllReduce(variables=variables):
                yield from variables


def _is_read(program: Program, variable: Variable) -> bool:
    """Whether a step needs what a variable held before."""
    for step in leaves_of(program):
        match step:
            case Execute(compute_set=compute_set):
                names = {n for group in compute_set.groups for n, v in group.fields.items() if v is variable}
                if any(name.rstrip("0123456789") != "out" for name in names):
                    return True
            case Copy(dst=dst, src=src):
                if dst is not variable or src is variable:
                    return True
            case _:
                return True
    return False


def _rewritten(program: Program, changes: Mapping[Variable, Variable]) -> Program:
    """Return a program over other variables."""
    def new(variable: Variable) -> Variable:
        return changes.get(variable, variable)

    def all_new(parts: Iterable[Program]) -> tuple[Program, ...]:
        return tuple(_rewritten(part, changes) for part in parts)

    match program:
        case Sequence(body=body):
            return Sequence(all_new(body))
        case OnIpus(bodies=bodies):
            return OnIpus(all_new(bodies))
        case Repeat(count=count, body=part):
            return Repeat(count, _rewritten(part, changes))
        case If():
            return replace(
                program, condition=new(program.condition), then=_rewritten(program.then, changes),
                otherwise=_rewritten(program.otherwise, changes),
            )
        case RepeatWhile():
            return replace(
                program, condition=new(program.condition), test=_rewritten(program.test, changes),
                body=_rewritten(program.body, changes),
            )
        case Execute(compute_set=compute_set):
            if not any(field in changes for field in _fields(program)):
                return program
            return Execute(_compute_set(compute_set, new))
        case Copy():
            return replace(program, src=new(program.src), dst=new(program.dst))
        case HostCopy():
            return replace(program, variable=new(program.variable))
        case AllReduce():
            return replace(program, variables=tuple(map(new, program.variables)))
        case Call() | Sync():
            return program


def _compute_set(compute_set: ComputeSet, new: Callable[[Variable], Variable]) -> ComputeSet:
    groups: list[VertexGroup] = [
        replace(group, fields={name: new(variable) for name, variable in group.fields.items()})
        for group in compute_set.groups
    ]
    return replace(compute_set, groups=tuple(groups))
