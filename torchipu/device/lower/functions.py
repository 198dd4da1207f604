"""Ops to the programs of functions: vertices, copies and streams, and the variables that they work on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest

from torchipu.device.compute_sets import copy_set, in_first
from torchipu.device.generic import lower_generic
from torchipu.device.lower import collectives
from torchipu.device.lower.in_flight import Depths
from torchipu.device.lower.side_by_side import RESERVED_TILES, shares_of
from torchipu.device.lower.values import BROADCAST, PHASES, UPDATE, Flow, function_of, ipu_of, is_all_reduce
from torchipu.device.tilings.alone import alone
from torchipu.errors import PlacementError
from torchipu.ir.graph import Graph, Op, Tensor, operand_labels
from torchipu.ir.mapping import TileMapping, linear
from torchipu.ir.program import (
    AllReduce,
    ComputeSet,
    Copy,
    Execute,
    Gather,
    HostCopy,
    If,
    Program,
    Repeat,
    RepeatWhile,
    Sequence,
    Sync,
    Variable,
    VertexGroup,
)
from torchipu.ir.schedule import Schedule
from torchipu.ir.types import Role
from torchipu.ir.vertices import Tiling
from torchipu.optable.codelet import Codelet, Vertices
from torchipu.optable.collective import PROCESSES, is_collective
from torchipu.optable.control import COND, WHILE, carried_of, formals_of, trips_of
from torchipu.optable.spec import spec_of
from torchipu.target import Target

_IPU_SYNC = Sync("ipu")
_REPLICA_SYNC = Sync("replica")
_HOST_SYNC = Sync("host")


def is_on_host(op: Op) -> bool:
    """Whether the host computes an op."""
    spec = spec_of(op)
    return spec is not None and spec.on_host


@dataclass(slots=True)
class _Function:
    """Streams in, sums over replicas, supersteps, streams out, and what is sent when all this has ended."""

    head: list[Program] = field(default_factory=list)
    reduced: list[Variable] = field(default_factory=list)
    averaged: list[Variable] = field(default_factory=list)
    replicas: int = 1
    body: list[Program] = field(default_factory=list)
    tail: list[Program] = field(default_factory=list)
    sends: list[Copy] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Set:
    """One compute set as far as it is the same for all ops of equal kind, shapes and attributes.

    ``runs`` is None where the vertices lie where the result does.
    """

    codelet: str
    runs: TileMapping | None
    num_tiles: int
    work: Mapping[str, int]
    cycles: int
    gathered_bytes: int
    fragments: int
    temporary_bytes: int
    partial_bytes: int
    repeats: int
    tiling: Tiling | None
    writes_interleaved: bool
    control_bytes: int
    state_bytes: int
    count: int = 1


class Lowering:
    """Fills the functions op by op.

    Args:
        flow: Storage and users of the graph's tensors.
        schedule: Gives the distance between a value's making and its last use.
        mappings: Tiles of every tensor.
        target: The machine.
        micro_batches: Micro-batches of the schedule.
    """

    def __init__(
        self, flow: Flow, schedule: Schedule, mappings: Mapping[Tensor, TileMapping], target: Target,
        micro_batches: int,
    ) -> None:
        self.flow = flow
        self.mappings = mappings
        self.target = target
        self.depths = Depths(schedule, micro_batches)
        self.functions: dict[str, _Function] = {}
        self.variables: dict[tuple[Tensor, int], Variable] = {}
        self.code_bytes: dict[str, int] = {}
        self.sets_by_key: dict[object, tuple[_Set, ...]] = {}
        self.linear_by_size: dict[tuple[int, int, int, int, int], TileMapping] = {}
        self.busiest_by_runs: dict[int, int] = {}

    def add(self, op: Op) -> None:
        """Lower an op into the function of its stage and leg."""
        if is_on_host(op):
            self.function(function_of(op)).body += self._round_trip(op)
        if id(op) in self.flow.views:
            return
        if op.bodies:
            self.function(function_of(op)).body += self._control(op)
            return
        name, ipu = function_of(op), ipu_of(op)
        function = self.function(name)
        if is_all_reduce(op):
            # Merged into one, as PopART does: a collective has a high fixed cost.
            kept = function.averaged if op.inputs[0] in self.flow.means else function.reduced
            kept.append(self._variable(self.flow.storage(op.inputs[0]), ipu, name))
            function.replicas = int(str(op.attrs["replicas"]))
            return
        if op.kind == "replica_mean":
            function.body += self._replica_mean(op, name, ipu)
            return
        if is_collective(op):
            function.body += self._collective(op)
            return
        fields = self._fields(op, name, ipu)
        for number, made in enumerate(self._sets(op)):
            function.body += self._superstep([(op, made, number, fields)])

    def add_unit(self, ops: tuple[Op, ...]) -> None:
        """Lower one op, or ops that share the tiles: their compute sets run in the same supersteps, as far as they go.

        A set that a tile runs in several parts has supersteps of its own.
        """
        tiles = self.target.num_tiles
        work = [sum(made.cycles * made.repeats for made in self._sets(op)) for op in ops] if len(ops) > 1 else []
        shares = shares_of(tiles, work, [int(str(op.attrs.get(RESERVED_TILES, 1))) for op in ops]) if work else None
        if shares is None:
            for op in ops:
                self.add(op)
            return
        name, ipu = function_of(ops[0]), ipu_of(ops[0])
        columns, first = [], 0
        for op, share in zip(ops, shares, strict=True):
            fields = self._fields(op, name, ipu)
            columns.append([(op, made, number, fields) for number, made in enumerate(self._sets(op, share, first))])
            first += share
        body = self.function(name).body
        for row in zip_longest(*columns):
            sets = [found for found in row if found is not None]
            together = [found for found in sets if found[1].repeats == 1]
            if together:
                body += self._superstep(together)
            for found in sets:
                if found[1].repeats > 1:
                    body += self._superstep([found])

    def _superstep(self, sets: list[tuple[Op, _Set, int, dict[str, Variable]]]) -> list[Program]:
        """Return the programs of compute sets that run together.

        Args:
            sets: Op, compute set, its number among those of the op, and the op's variables by operand.
        """
        step: list[Program] = [_IPU_SYNC]
        gathers: list[Gather] = []
        groups = []
        for op, made, number, fields in sets:
            runs = made.runs or self.mappings[op.outputs[0]]
            gathered, fragments = made.gathered_bytes, made.fragments
            if made.runs is None and number == 0:
                strayed = self._strayed(op, runs)
                gathered, fragments = gathered + strayed[0], fragments + strayed[1]
            groups.append(VertexGroup(
                made.codelet, fields, runs, op, number, made.count, made.work, made.cycles, made.temporary_bytes,
                made.writes_interleaved, made.partial_bytes, made.control_bytes, made.state_bytes,
                tiling=made.tiling,
            ))
            if gathered:
                operands = dict.fromkeys(
                    self._variable(self.flow.storage(operand), ipu_of(op), function_of(op)) for operand in op.inputs
                )
                read = tuple(operands) or tuple(fields.values())[:1]
                gathers.append(Gather(read, gathered * made.num_tiles, gathered, fragments))
        if gathers:  # ops on tiles of their own gather their operands at the same time
            slowest = max(gathers, key=lambda gather: (gather.max_tile_bytes, gather.fragments))
            step.append(replace(
                slowest, variables=tuple(dict.fromkeys(one for gather in gathers for one in gather.variables)),
                total_bytes=sum(gather.total_bytes for gather in gathers),
            ))
        op, made, number, _ = sets[0]
        label = op.outputs[0].name if op.outputs else op.kind
        step.append(Execute(ComputeSet(f"{op.kind}.{label}.{number}", ipu_of(op), tuple(groups), op)))
        return step if made.repeats == 1 else [Repeat(made.repeats, Sequence(tuple(step)))]

    def _round_trip(self, op: Op) -> list[Program]:
        """Send operands to the host and receive what it makes of them; a view is there already."""
        operands = [self._held(op, operand) for operand in op.inputs]
        results = [] if id(op) in self.flow.views else [self._held(op, result) for result in op.outputs]
        label = op.outputs[0].name if op.outputs else op.kind
        trip: list[Program] = [_HOST_SYNC]
        trip += [HostCopy(f"{label}.in{number}", operand, to_device=False) for number, operand in enumerate(operands)]
        if results:
            trip.append(_HOST_SYNC)
        trip += [HostCopy(f"{label}.out{number}", result, to_device=True) for number, result in enumerate(results)]
        return trip

    def _replica_mean(self, op: Op, name: str, ipu: int) -> list[Program]:
        """Return the programs of a mean over a group of replicas: a copy of each one's own, then the collective."""
        src = self._variable(self.flow.storage(op.inputs[0]), ipu, name)
        dst = self._variable(self.flow.storage(op.outputs[0]), ipu, name)
        largest = dst.mapping.max_elements_per_tile() * dst.dtype.device_bytes
        group = int(str(op.attrs["group_size"]))
        copy = Copy(src, dst, dst.device_bytes, largest, reads=op.inputs[0])
        return [_IPU_SYNC, copy, _REPLICA_SYNC, AllReduce((dst,), True, group)]

    def _collective(self, op: Op) -> list[Program]:
        """Return the programs of a collective over processes, of which each has an IPU at least."""
        processes = int(str(op.attrs[PROCESSES]))
        if self.target.is_system and processes > self.target.num_ipus:
            raise PlacementError(
                f"{processes} processes need {processes} IPUs at least, but {self.target.name} has "
                f"{self.target.num_ipus}", op=op.target, source=op.source, block=op.placement,
                remedy=f"run {self.target.num_ipus} processes or less, or choose a larger target",
            )
        operands, results = ([self._held(op, one) for one in side] for side in (op.inputs, op.outputs))
        programs, needed = collectives.programs_of(op, operands, results)
        for variable in needed:
            held = Tensor(variable.name, variable.shape, variable.dtype, variable.role)
            self.variables[held, variable.ipu] = variable
        return programs

    # ------------------------------------------------------------------ control flow
    def _control(self, op: Op) -> list[Program]:
        """Return the programs of an op that runs graphs."""
        bodies = [(body, self._within(op, body)) for body in op.bodies]
        if op.target == COND:
            branches = [
                Sequence((*program, *self._moves(op, zip(body.outputs, op.outputs, strict=True))))
                for body, program in bodies
            ]
            return [_IPU_SYNC, If(self._held(op, op.inputs[0]), branches[0], branches[1], op)]
        carried = op.outputs[: len(carried_of(op))]
        begin = self._moves(op, zip(carried_of(op), carried, strict=True))
        body, program = bodies[-1]
        if op.target == WHILE:
            test, tested = bodies[0]
            moves = self._moves(op, zip(body.outputs, carried, strict=True))
            condition = self._held(op, test.outputs[0])
            return [*begin, RepeatWhile(Sequence((*tested, _IPU_SYNC)), condition, Sequence((*program, *moves)), op)]
        if not trips_of(op):
            return begin
        formals = formals_of(op, body)
        taken = self._rows(op, [(held, formal) for formal, held, is_row in formals if is_row], taken=True)
        stacked = list(zip(body.outputs, op.outputs, strict=True))[len(carried) :]
        put = self._rows(op, stacked, taken=False)
        moves = self._moves(op, zip(body.outputs, carried, strict=False))
        return [*begin, Repeat(trips_of(op), Sequence((*taken, *program, *put, *moves)), op)]

    def _within(self, op: Op, body: Graph) -> list[Program]:
        """Return the programs of a body; streams that it is the first to need begin the function all the same."""
        function = self.function(function_of(op))
        around, function.body = function.body, []
        for member in body.ops:
            self.add(member)
        program, function.body = function.body, around
        return program

    def _held(self, op: Op, tensor: Tensor) -> Variable:
        return self._variable(self.flow.storage(tensor), ipu_of(op), function_of(op))

    def _moves(self, op: Op, pairs: Iterable[tuple[Tensor, Tensor]]) -> list[Program]:
        """Copy values into the storage of others."""
        moves: list[Program] = []
        for source, target in pairs:
            src, dst = self._held(op, source), self._held(op, target)
            if src is not dst and dst.num_elements:
                largest = dst.mapping.max_elements_per_tile() * dst.dtype.device_bytes
                moves += [_IPU_SYNC, Copy(src, dst, dst.device_bytes, largest, reads=source)]
        return moves

    def _rows(self, op: Op, pairs: Iterable[tuple[Tensor, Tensor]], *, taken: bool) -> list[Program]:
        """Copy a row out of each table, or into it."""
        moves: list[Program] = []
        for source, target in pairs:
            src, dst = self._held(op, source), self._held(op, target)
            row = dst if taken else src
            if row.num_elements:
                largest = row.mapping.max_elements_per_tile() * row.dtype.device_bytes
                moves += [_IPU_SYNC, Copy(
                    src, dst, row.device_bytes, largest, table="src" if taken else "dst", reads=source,
                )]
        return moves

    def _strayed(self, op: Op, runs: TileMapping) -> tuple[int, int]:
        """Return the bytes and fragments that the busiest tile fetches of operands that lie, or are ordered, otherwise.

        Only for vertices that lie where the result does and read their operands element by element.
        """
        total = fragments = 0
        result = op.outputs[0]
        for operand in op.inputs:
            if operand.num_elements != result.num_elements or operand.num_elements == 1:
                continue
            is_permuted = operand in self.flow.permuted
            if is_permuted or self.mappings[self.flow.storage(operand)] is not runs:
                share = self._busiest(runs)
                total += share * operand.dtype.device_bytes
                # What travels below a word travels with its neighbours.
                fragments += max(1, int(share**0.5)) if is_permuted else 2
        return total, fragments

    def _busiest(self, runs: TileMapping) -> int:
        key = id(runs)
        if key not in self.busiest_by_runs:
            self.busiest_by_runs[key] = runs.max_elements_per_tile()
        return self.busiest_by_runs[key]

    def function(self, name: str) -> _Function:
        """Return a function by name, new where there is none."""
        return self.functions.setdefault(name, _Function())

    def add_ends(self) -> None:
        """Add what follows from the graph's ends: results to the host, states from other IPUs."""
        for tensor in self.flow.results():
            maker = self.flow.maker.get(tensor)
            if maker is not None:  # else the host has it
                tail, held = self.function(maker).tail, self.flow.storage(tensor)
                overlap = self.flow.overlaps.get(held, "none")
                copy = HostCopy(tensor.name, self._home(held), to_device=False, overlap=overlap)
                tail += [*([] if tail else [_HOST_SYNC]), copy]
        for state, value in self.flow.returned:
            self._return_state(state, value)

    def _return_state(self, state: Tensor, value: Tensor) -> None:
        """Copy the next value of a state, made elsewhere, to where the state lives."""
        ipu = self.flow.home.get(state, 0)
        src, dst = self._home(self.flow.storage(value)), self._variable(state, ipu, None)
        maker = self.flow.maker.get(value)
        if maker is None:
            return
        largest = dst.mapping.max_elements_per_tile() * dst.dtype.device_bytes
        copy = Copy(src, dst, dst.device_bytes, largest)
        function = self.function(maker)
        if src.ipu == dst.ipu:
            function.tail[:0] = [_IPU_SYNC, copy]
        else:
            function.sends.append(copy)

    def finished(self) -> dict[str, Program]:
        """Return the functions by name, those that send after those that compute."""
        done: dict[str, Program] = {}
        for name, function in self.functions.items():
            if name != BROADCAST:
                sums = tuple(
                    AllReduce(tuple(variables), mean, function.replicas)
                    for variables, mean in ((function.reduced, False), (function.averaged, True)) if variables
                )
                done[name] = Sequence((*function.head, *sums, *function.body, *function.tail))
        for name, function in self.functions.items():
            if function.sends:
                done[BROADCAST if name == BROADCAST else f"{name}.send"] = Sequence(tuple(function.sends))
        return done

    # ------------------------------------------------------------------ variables
    def _fields(self, op: Op, name: str, ipu: int) -> dict[str, Variable]:
        """Bind operands and results to variables on the op's IPU."""
        fields: dict[str, Variable] = {}
        for label, operand in zip(operand_labels(op), op.inputs, strict=False):
            fields[label] = self._variable(self.flow.storage(operand), ipu, name)
        for index, result in enumerate(op.outputs):
            label = "out" if index == 0 else f"out{index}"
            fields[label] = self._variable(self.flow.storage(result), ipu, name)
        return fields

    def _home(self, tensor: Tensor) -> Variable:
        return self._variable(tensor, self.flow.home.get(tensor, 0), None)

    def _variable(self, tensor: Tensor, ipu: int, user: str | None) -> Variable:
        """Return the variable that holds a tensor on an IPU, with the copies that fill it when it is new."""
        found = self.variables.get((tensor, ipu))
        if found is not None:
            return found
        is_home = self.flow.home.get(tensor, ipu) == ipu
        variable = Variable(
            tensor.name if is_home else f"{tensor.name}.ipu{ipu}", tensor.shape, tensor.dtype, ipu,
            self.mappings[tensor], tensor.role, self._depth(tensor, ipu, is_home),
        )
        self.variables[tensor, ipu] = variable
        if tensor.role is Role.INPUT and tensor in self.flow.inputs and user is not None:
            head = self.function(user).head
            overlap = self.flow.overlaps.get(tensor, "none")
            copy = HostCopy(tensor.name, variable, to_device=True, overlap=overlap)
            head += [*([] if head else [_HOST_SYNC]), copy]
        elif not is_home:
            self._send(tensor, variable)
        return variable

    def _send(self, tensor: Tensor, variable: Variable) -> None:
        """Fill a variable on another IPU: after the function that makes its value, or before everything."""
        if tensor.role in (Role.CONSTANT, Role.HYPERPARAMETER):
            return  # the host writes each IPU's copy when the program is loaded
        home = self._home(tensor)
        largest = variable.mapping.max_elements_per_tile() * variable.dtype.device_bytes
        copy = Copy(home, variable, variable.device_bytes, largest)
        self.function(self.flow.maker.get(tensor, BROADCAST)).sends.append(copy)

    def _depth(self, tensor: Tensor, ipu: int, is_home: bool) -> int:
        """Return how many micro-batches of a value are held at once."""
        maker = self.flow.maker.get(tensor)
        uses = tuple(self.flow.uses.get((tensor, ipu), ()))
        if tensor.role is Role.INPUT and tensor in self.flow.inputs:
            maker = uses[0] if uses else None
        if maker is None or tensor.role.is_state or maker.startswith((*PHASES.values(), UPDATE)):
            return 1
        return self.depths.of(maker, uses, arrives_later=not is_home and tensor not in self.flow.inputs)

    # ------------------------------------------------------------------ compute sets
    def _sets(self, op: Op, tiles: int | None = None, first_tile: int = 0) -> tuple[_Set, ...]:
        """Return the compute sets of an op on some of the tiles, None for all; ops that are alike share them."""
        key = (
            op.target, op.kind, op.operands, tuple([(t.shape, t.dtype) for t in op.inputs]),
            tuple([(t.shape, t.dtype) for t in op.outputs]), repr(op.attrs) if op.attrs else "", tiles, first_tile,
        )
        found = self.sets_by_key.get(key)
        if found is None:
            spec = spec_of(op)
            target = self.target if tiles is None else replace(self.target, num_tiles=tiles)
            vertices = lower_generic(op, target) if spec is None else spec.lower(op, target)
            if not any(one.elements for one in vertices) and not is_on_host(op):
                # An op that has nothing to do, such as a sort of single elements, gives its operand all the same.
                vertices = in_first([copy_set(target, one.num_elements, one.dtype) for one in op.outputs], alone)
            made = [self._set(op, one, target.num_tiles, first_tile) for one in vertices if one.elements > 0]
            is_tiled = all(one.tiling is not None for one in made)
            found = tuple(
                replace(one, count=len(made), tiling=one.tiling if is_tiled else None) for one in made
            )
            self.sets_by_key[key] = found
        return found

    def _set(self, op: Op, vertices: Vertices, num_tiles: int, first_tile: int) -> _Set:
        """Spread vertices over the tiles and evaluate the cycle formula on the busiest."""
        codelet: Codelet = vertices.codelet
        self.code_bytes[codelet.name] = max(codelet.code_bytes, self.code_bytes.get(codelet.name, 0))
        runs, follows = self._runs(op, vertices, num_tiles, first_tile)
        work = vertices.work(self._busiest(runs))
        temporary = max(vertices.temporary_bytes, vertices.gathered_bytes)
        return _Set(
            codelet.name, None if follows else runs, len(runs.runs), work, int(codelet.cycles(self.target, work)),
            vertices.gathered_bytes, max(1, vertices.fragments), temporary, vertices.partial_bytes, vertices.repeats,
            vertices.tiling, codelet.writes_interleaved, codelet.control_bytes, codelet.state_bytes,
        )

    def _runs(self, op: Op, vertices: Vertices, num_tiles: int, first_tile: int) -> tuple[TileMapping, bool]:
        """Return the tiles of an iteration space, and whether they are those of the result."""
        result = op.outputs[0] if op.outputs else None
        tiles = min(vertices.max_tiles or num_tiles, num_tiles)
        if (
            result is not None and vertices.max_tiles is None and vertices.elements == result.num_elements
            and vertices.grain == self.target.vector_width(result.dtype.device_bytes)
        ):
            return self.mappings[result], True
        key = (vertices.elements, tiles, vertices.grain, vertices.grain, first_tile)
        if key not in self.linear_by_size:
            self.linear_by_size[key] = linear(*key)
        return self.linear_by_size[key], False
