"""Invariants that every pass must keep; each breach is a defect of torchipu and raises ``VerifyError``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torchipu.errors import VerifyError
from torchipu.ir.graph import Graph, Op, Tensor, operand_width
from torchipu.ir.mapping import TileMapping
from torchipu.ir.program import (
    AllReduce,
    Call,
    ComputeSet,
    Copy,
    Executable,
    Execute,
    Gather,
    HostCopy,
    If,
    OnIpus,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Sync,
    Variable,
    parts_of,
)
from torchipu.ir.schedule import Action, Schedule
from torchipu.ir.text import format_executable, format_mapping, format_schedule, graph_lines, op_line
from torchipu.ir.types import Leg

CONTEXT_LINES = 10
SCOPES = ("ipu", "replica", "host")
LEG_ORDER = {Leg.FORWARD: 0, Leg.BACKWARD: 1, Leg.UPDATE: 2}


def context(lines: list[str], at: int) -> str:
    """Return about ten lines around one, which is marked by an arrow."""
    begin = max(0, min(at - CONTEXT_LINES // 2, len(lines) - CONTEXT_LINES))
    shown = range(begin, min(len(lines), begin + CONTEXT_LINES))
    return "\n".join(f"{'->' if line == at else '  '} {lines[line]}" for line in shown)


# --------------------------------------------------------------------------- graph
def verify_graph(graph: Graph, after: str = "") -> None:
    """Check a graph: SSA form, operands that fit their inputs, legs and stages in order, updates of inputs.

    Args:
        graph: The graph.
        after: Name of the pass that made it.

    Raises:
        VerifyError: An invariant does not hold.
    """
    made = _GraphCheck(graph, after)
    for position, op in enumerate(graph.ops):
        made.check_op(op, position)
    made.check_ends()
    if any(op.placement for op in graph.ops):
        _check_placement(made)


class _GraphCheck:
    """Which op made which tensor, as far as the graph has been read."""

    def __init__(self, graph: Graph, after: str, names: set[str] | None = None) -> None:
        self.graph = graph
        self.after = after
        self.maker: dict[Tensor, Op | None] = {}
        self.names: set[str] = set() if names is None else names
        for tensor in graph.inputs:
            self.define(tensor, None, None)

    def fail(self, message: str, line: int) -> None:
        raise VerifyError(message, after=self.after, context=context(graph_lines(self.graph), line))

    def fail_at(self, message: str, position: int | None) -> None:
        """Raise with the lines around the op at a position, or around the inputs."""
        self.fail(message, 0 if position is None else op_line(self.graph, position))

    def fail_behind(self, message: str, position: int) -> None:
        """Raise with the lines around the one at a position behind all ops."""
        self.fail(message, op_line(self.graph, len(self.graph.ops)) + position)

    def define(self, tensor: Tensor, op: Op | None, position: int | None) -> None:
        if tensor in self.maker:
            self.fail_at(f"tensor %{tensor.name} is made more than once", position)
        if tensor.name in self.names:
            self.fail_at(f"two tensors are called %{tensor.name}", position)
        if any(not isinstance(size, int) or size < 0 for size in tensor.shape):
            self.fail_at(f"tensor %{tensor.name} has shape {tensor.shape}", position)
        self.maker[tensor] = op
        self.names.add(tensor.name)

    def check_op(self, op: Op, position: int) -> None:
        for tensor in op.inputs:
            if tensor not in self.maker:
                self.fail_at(f"op {op.kind} reads %{tensor.name} before it is made", position)
            maker = self.maker[tensor]
            if maker is not None and LEG_ORDER[maker.leg] > LEG_ORDER[op.leg]:
                self.fail_at(
                    f"op {op.kind} of leg {op.leg.value} reads %{tensor.name} of leg {maker.leg.value}", position,
                )
        width = sum(map(operand_width, op.operands))
        if op.operands and width != len(op.inputs):
            self.fail_at(f"op {op.kind} names {width} operands but has {len(op.inputs)} inputs", position)
        for body in op.bodies:
            self.check_body(body, op)
        for tensor in op.outputs:
            self.define(tensor, op, position)

    def check_body(self, body: Graph, op: Op) -> None:
        """Check a graph that an op runs: it stands by itself, and lies in the op's leg and place."""
        inner = _GraphCheck(body, self.after, self.names)
        for position, member in enumerate(body.ops):
            inner.check_op(member, position)
            if member.leg is not op.leg or member.placement != op.placement:
                inner.fail_at(f"op {member.kind} is in another leg or place than the {op.kind} that runs it", position)
        inner.check_ends()

    def check_ends(self) -> None:
        inputs, written = set(self.graph.inputs), set()
        for position, (state, value) in enumerate(self.graph.updates):
            if state not in inputs:
                self.fail_behind(f"update of %{state.name}, which is no input", position)
            # What forward writes into a weight, for each micro-batch, the optimiser's update finds there.
            maker = self.maker.get(value)
            end = state, maker is not None and maker.leg is Leg.UPDATE
            if end in written:
                self.fail_behind(f"%{state.name} is updated twice", position)
            written.add(end)
            if value not in self.maker:
                self.fail_behind(f"update of %{state.name} from %{value.name}, which is never made", position)
            if (state.shape, state.dtype) != (value.shape, value.dtype):
                self.fail_behind(f"update of %{state.name} changes its shape or dtype", position)
        for tensor in self.graph.outputs:
            if tensor not in self.maker:
                self.fail_behind(f"output %{tensor.name} is never made", len(self.graph.updates))


def _check_placement(made: _GraphCheck) -> None:
    """Check that all ops are placed, a stage has one IPU, and data crosses stages in the leg's direction."""
    ipu_by_stage: dict[int, int] = {}
    for position, op in enumerate(made.graph.ops):
        place = op.placement
        if place is None:
            made.fail_at(f"op {op.kind} is not placed", position)
            return
        if place.leg is not op.leg:
            made.fail_at(f"op {op.kind} of leg {op.leg.value} is placed in leg {place.leg.value}", position)
        if ipu_by_stage.setdefault(place.stage, place.ipu) != place.ipu:
            made.fail_at(f"stage {place.stage} is on ipu {ipu_by_stage[place.stage]} and on ipu {place.ipu}", position)
        for tensor in op.inputs:
            maker = made.maker[tensor]
            if maker is None or maker.placement is None or maker.leg is not op.leg:
                continue
            source = maker.placement.stage
            if (op.leg is Leg.FORWARD and source > place.stage) or (op.leg is Leg.BACKWARD and source < place.stage):
                made.fail_at(
                    f"op {op.kind} in {place.stage}{op.leg.value} reads %{tensor.name} of {source}{op.leg.value}, "
                    "which runs after it", position,
                )


# --------------------------------------------------------------------------- schedule
def verify_schedule(schedule: Schedule, num_stages: int, micro_batches: int, after: str = "") -> None:
    """Check a schedule: each action once, on one IPU a stage, after all that it needs.

    Args:
        schedule: The schedule: of training where it holds both legs, else of the forward or the backward alone.
        num_stages: Stages of the model.
        micro_batches: Micro-batches of one run.
        after: Name of the pass that made it.

    Raises:
        VerifyError: An invariant does not hold.
    """
    times = _times(schedule, after)
    legs = [leg for leg in (Leg.FORWARD, Leg.BACKWARD) if any(action.leg is leg for action in times)] or [Leg.FORWARD]
    wanted = {Action(stage, leg, m) for stage in range(num_stages) for leg in legs for m in range(micro_batches)}
    if len(legs) == 2:
        wanted |= {Action(stage, Leg.UPDATE, None) for stage in range(num_stages)}
    for action in sorted(wanted - times.keys(), key=str):
        _fail_schedule(schedule, f"action {action} is missing", len(schedule.steps) - 1, after)
    for action, (row, _, _) in times.items():
        if action not in wanted:
            _fail_schedule(schedule, f"action {action} has no place in this schedule", row, after)
        for needed in _needs(action, num_stages, micro_batches):
            if needed in wanted and not _is_before(times[needed], times[action]):
                _fail_schedule(schedule, f"{action} does not run after {needed}", row, after)


Time = tuple[int, int, int]  # row, column, position within the cell


def _times(schedule: Schedule, after: str) -> dict[Action, Time]:
    times: dict[Action, Time] = {}
    column_by_stage: dict[int, int] = {}
    for row, step in enumerate(schedule.steps):
        if len(step) != len(schedule.steps[0]):
            _fail_schedule(schedule, f"row {row} has {len(step)} columns", row, after)
        for column, actions in enumerate(step):
            for position, action in enumerate(actions):
                if action in times:
                    _fail_schedule(schedule, f"action {action} runs twice", row, after)
                if column_by_stage.setdefault(action.stage, column) != column:
                    _fail_schedule(schedule, f"stage {action.stage} runs on two IPUs", row, after)
                times[action] = (row, column, position)
    return times


def _needs(action: Action, num_stages: int, micro_batches: int) -> Iterator[Action]:
    """Yield the actions that must come before one."""
    stage, m = action.stage, action.micro_batch
    if action.leg is Leg.FORWARD and stage > 0:
        yield Action(stage - 1, Leg.FORWARD, m)
    if action.leg is Leg.BACKWARD:
        yield Action(stage, Leg.FORWARD, m)
        if stage + 1 < num_stages:
            yield Action(stage + 1, Leg.BACKWARD, m)
    if action.leg is Leg.UPDATE:
        for micro_batch in range(micro_batches):
            yield Action(stage, Leg.FORWARD, micro_batch)
            yield Action(stage, Leg.BACKWARD, micro_batch)


def _is_before(first: Time, second: Time) -> bool:
    """Whether a result is there in time: from an earlier row, or from earlier in the same cell."""
    return first[0] < second[0] or (first[:2] == second[:2] and first[2] < second[2])


def _fail_schedule(schedule: Schedule, message: str, row: int, after: str) -> None:
    raise VerifyError(message, after=after, context=context(format_schedule(schedule).split("\n"), row))


# --------------------------------------------------------------------------- mapping
def verify_mapping(
    mapping: TileMapping, num_elements: int, num_tiles: int, grain: int = 1, after: str = "", name: str = "mapping",
) -> None:
    """Check that a mapping covers each element once, in order, on tiles that exist, without splitting grains.

    Args:
        mapping: The mapping.
        num_elements: Elements of the variable.
        num_tiles: Tiles of the IPU.
        grain: Elements that must stay together.
        after: Name of the pass that made it.
        name: What is mapped, for the message.

    Raises:
        VerifyError: An invariant does not hold.
    """
    position = 0
    for tile, begin, end in mapping.runs:
        fault = ""
        if not 0 <= tile < num_tiles:
            fault = f"tile {tile} does not exist: there are {num_tiles}"
        elif end <= begin:
            fault = f"run {begin}..{end} on tile {tile} is empty"
        elif begin != position:
            fault = f"element {min(begin, position)} is mapped {'twice' if begin < position else 'nowhere'}"
        elif begin % grain:
            fault = f"run {begin}..{end} on tile {tile} splits a grain of {grain} elements"
        if fault:
            raise VerifyError(f"{name}: {fault}", after=after, context=_mapping_context(mapping, begin))
        position = end
    if position != num_elements:
        raise VerifyError(
            f"{name}: {position} of {num_elements} elements are mapped", after=after,
            context=_mapping_context(mapping, position),
        )


def verify_mappings(mappings: Mapping[Tensor, TileMapping], num_tiles: int, after: str = "") -> None:
    """Check the mapping of each tensor: see ``verify_mapping``."""
    for tensor, mapping in mappings.items():
        verify_mapping(mapping, tensor.num_elements, num_tiles, after=after, name=f"%{tensor.name}")


def _mapping_context(mapping: TileMapping, element: int) -> str:
    """Show the runs around an element."""
    at = next((index for index, run in enumerate(mapping.runs) if run[1] >= element), len(mapping.runs) - 1)
    near = mapping.runs[max(0, at - 4) : at + 5]
    return "\n".join([format_mapping(mapping)[:200], *(f"tile {tile}: {begin}..{end}" for tile, begin, end in near)])


# --------------------------------------------------------------------------- executable
def verify_executable(executable: Executable, after: str = "", num_tiles: int | None = None) -> None:
    """Check an executable: known variables and functions, work on the right IPU, states that do not overlap.

    Args:
        executable: The executable.
        after: Name of the pass that made it.
        num_tiles: Tiles of an IPU; mappings are checked against it where given.

    Raises:
        VerifyError: An invariant does not hold.
    """
    check = _ExecutableCheck(executable, after)
    for variable in executable.variables:
        if not 0 <= variable.ipu < executable.num_ipus:
            check.fail(f"variable %{variable.name} is on ipu {variable.ipu} of {executable.num_ipus}")
        if num_tiles is not None:
            verify_mapping(variable.mapping, variable.num_elements, num_tiles, 1, after, f"variable %{variable.name}")
    for programs in (executable.functions, executable.programs):
        for name, program in programs.items():
            check.check_program(program, name)
    check.check_calls()
    check.check_addresses()


class _ExecutableCheck:
    """Walks the programs of an executable."""

    def __init__(self, executable: Executable, after: str) -> None:
        self.executable = executable
        self.after = after
        self.variables = {variable.name: variable for variable in executable.variables}
        if len(self.variables) != len(executable.variables):
            self.fail("two variables have the same name")

    def fail(self, message: str, name: str = "") -> None:
        """Raise, showing the text around the function or the variable in question."""
        lines = format_executable(self.executable).split("\n")
        heads = (f"function {name} {{", f"program {name} {{")
        at = next((index for index, line in enumerate(lines) if line in heads), 0)
        raise VerifyError(message, after=self.after, context=context(lines, at))

    def check_program(self, program: Program, name: str) -> None:
        match program:
            case Sequence(body=body):
                for part in body:
                    self.check_program(part, name)
            case Repeat(count=count, body=part):
                if count < 1:
                    self.fail(f"{name} repeats {count} times", name)
                self.check_program(part, name)
            case If(condition=condition) | RepeatWhile(condition=condition):
                self._check_known(condition, name)
                if condition.num_elements != 1:
                    self.fail(f"{name} decides by %{condition.name}, which has {condition.num_elements} elements", name)
                for part in parts_of(program):
                    self.check_program(part, name)
            case OnIpus(bodies=bodies):
                self._check_side_by_side(bodies, name)
            case Execute(compute_set=compute_set):
                self._check_compute_set(compute_set, name)
            case Call(function=function):
                if function not in self.executable.functions:
                    self.fail(f"{name} calls {function!r}, which does not exist", name)
            case Sync(scope=scope):
                if scope not in SCOPES:
                    self.fail(f"{name} syncs the unknown scope {scope!r}", name)
            case _:
                for variable in touched(program):
                    self._check_known(variable, name)

    def _check_known(self, variable: Variable, name: str) -> None:
        if self.variables.get(variable.name) is not variable:
            self.fail(f"{name} uses %{variable.name}, which is no variable of the executable", name)

    def _check_compute_set(self, compute_set: ComputeSet, name: str) -> None:
        for group in compute_set.groups:
            for variable in group.fields.values():
                self._check_known(variable, name)
                if variable.ipu != compute_set.ipu:
                    self.fail(
                        f"compute set {compute_set.name} on ipu {compute_set.ipu} uses %{variable.name} "
                        f"of ipu {variable.ipu}", name,
                    )

    def _check_side_by_side(self, bodies: tuple[Program, ...], name: str) -> None:
        """Each body keeps to one IPU, and no two bodies share one."""
        owner: dict[int, int] = {}
        for position, body in enumerate(bodies):
            self.check_program(body, name)
            ipus = ipus_of(body, self.executable.functions)
            if len(ipus) > 1:
                self.fail(f"body {position} of a pipeline cycle in {name} touches ipus {sorted(ipus)}", name)
            for ipu in ipus:
                if owner.setdefault(ipu, position) != position:
                    self.fail(f"two bodies of a pipeline cycle in {name} run on ipu {ipu}", name)

    def check_calls(self) -> None:
        """No function calls itself, directly or through others."""
        state: dict[str, str] = {}

        def visit(name: str) -> None:
            if state.get(name) == "open":
                self.fail(f"function {name} calls itself", name)
            if name in state:
                return
            state[name] = "open"
            for called in called_functions(self.executable.functions[name]):
                visit(called)
            state[name] = "done"

        for name in self.executable.functions:
            visit(name)

    def check_addresses(self) -> None:
        """Addresses belong to variables and fit them; states that share a tile do not overlap."""
        for name, (begin, end) in self.executable.addresses.items():
            if name not in self.variables:
                self.fail(f"an address is given for %{name}, which is no variable")
            if not 0 <= begin <= end:
                self.fail(f"%{name} has addresses {begin}..{end}")
        for ipu in range(self.executable.num_ipus):
            self._check_overlap([
                variable for variable in self.executable.variables
                if variable.ipu == ipu and variable.role.is_state and not variable.off_chip
                and variable.name in self.executable.addresses
            ])

    def _check_overlap(self, states: list[Variable]) -> None:
        """Go up through the addresses and remember, for each tile, which state ends last."""
        addresses = self.executable.addresses
        last: dict[int, tuple[int, str]] = {}
        for variable in sorted(states, key=lambda variable: addresses[variable.name]):
            begin, end = addresses[variable.name]
            for tile in variable.mapping.tiles:
                last_end, name = last.get(tile, (0, ""))
                if last_end > begin:
                    self.fail(f"%{name} and %{variable.name} overlap in tile {tile}")
                last[tile] = (end, variable.name)


def touched(program: Program) -> tuple[Variable, ...]:
    """Return the variables that a copy, a host copy or an all-reduce names."""
    match program:
        case Copy(src=src, dst=dst):
            return (src, dst)
        case HostCopy(variable=variable):
            return (variable,)
        case AllReduce(variables=variables) | Gather(variables=variables):
            return variables
    return ()


def ipus_of(program: Program, functions: Mapping[str, Program]) -> set[int]:
    """Return the IPUs that a program touches, through its calls too."""
    match program:
        case Sequence() | OnIpus() | Repeat() | If() | RepeatWhile():
            return set().union(*(ipus_of(part, functions) for part in parts_of(program)))
        case Call(function=function):
            return ipus_of(functions[function], functions) if function in functions else set()
        case Execute(compute_set=compute_set):
            return {compute_set.ipu}
    return {variable.ipu for variable in touched(program)}


def called_functions(program: Program) -> Iterator[str]:
    """Yield the functions that a program calls itself."""
    if isinstance(program, Call):
        yield program.function
    for part in parts_of(program):
        yield from called_functions(part)
