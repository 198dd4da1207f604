"""Runs a device program in the order of its schedule, op by op, with a store for each variable, replica and slot.

It holds the program to what an IPU asks of it: each IPU works on its own variables between syncs, in an order that a
seed chooses; values are there before they are read, in the slot of their micro-batch; each stream is read once. An op
is computed once, when its last compute set has run, by a function that is given.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Members
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from torchipu.device import shares
from torchipu.device.stores import LASTING, Moment, Place, Stores, Values
from torchipu.errors import DeviceProgramError
from torchipu.ir.graph import Op, Tensor, operand_labels
from torchipu.ir.program import (
    AllReduce,
    Call,
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
    VertexGroup,
    parts_of,
)
from torchipu.ir.types import Role
from torchipu.optable.random_streams import ROUNDING_STREAM, Seeding, Words, draws

Draw = Callable[[int], Words]
"""Gives what a stream of random bits begins from."""


class Evaluate(Protocol):
    """Computes the results of an op from its operands, on one replica; where random bits decide, from streams too."""

    def __call__(
        self, op: Op, inputs: Members[np.ndarray], draw: Draw | None = None, /,
    ) -> Members[np.ndarray]: ...  # pragma: no cover


Feed = Callable[[str, Moment, int], np.ndarray]
"""Gives the value of a stream for a moment and a replica; LookupError where it has no more."""
REMOTE = "remote."
OVERWRITES = ("fill_zero",)
"""Kinds of ops whose operand is only where the result goes."""
START = Moment(0, None)


@dataclass(frozen=True, slots=True)
class Context:
    """Where the walk is.

    Attributes:
        function: Function that runs.
        moment: What for.
        ipu: The IPU whose column this is, or None where IPUs meet.
        is_partial: Whether another run of the same compute sets completes the op.
        part: Which of these runs it is.
        trips: Of the loops of the user's around, the outermost first.
    """

    function: str = "main"
    moment: Moment = START
    ipu: int | None = None
    is_partial: bool = False
    part: int = 0
    trips: tuple[int, ...] = ()


class Machine:
    """A system of IPUs with a program.

    Args:
        executable: The program.
        evaluate: Computes ops.
        feed: Gives the values of host streams.
        seed: Chooses in which order IPUs run that no sync orders.

    Attributes:
        seeding: From what the streams of random bits begin.
        results: What was streamed to the host: ``[replicas, ...]`` by stream and moment.
        micro_batches: Those that ran, also where the host gets nothing that it did not give.
        supersteps: How many compute sets ran.
        after_step: Called when a compute set, a copy, a stream or a sum has run.
    """

    def __init__(self, executable: Executable, evaluate: Evaluate, feed: Feed, seed: int = 0) -> None:
        self.executable = executable
        self.evaluate = evaluate
        self.feed = feed
        self.seeding = Seeding()
        self.stores = self._empty_stores()
        self.results: dict[tuple[str, Moment], Values] = {}
        self.micro_batches: set[Moment] = set()
        self.supersteps = 0
        self.after_step: Callable[[], object] | None = None
        self._given: Mapping[str, np.ndarray] = {}
        self._before: dict[tuple[str, int], Values] = {}
        self._random = random.Random(seed)
        self._remote: dict[tuple[str, Moment | None], Values] = {}
        self._fed: set[tuple[str, Moment, int]] = set()
        self._unsynced: dict[Variable, str] = {}
        self._pending: dict[int, tuple[str, str]] = {}
        self._has_host: set[int] = set()
        self._is_cycle_open = False
        self._variables = frozenset(executable.variables)
        self._first_fields: dict[tuple[int, Moment], Mapping[str, Variable]] = {}
        self._done: dict[tuple[int, Moment], int] = {}
        self._begun: dict[tuple[int, Moment], tuple[VertexGroup, Place]] = {}

    def _empty_stores(self) -> Stores:
        """Return what holds the variables."""
        return Stores(self.executable)

    # ------------------------------------------------------------------ the host
    def load(self, values: Mapping[str, np.ndarray]) -> None:
        """Write states, constants and hyper-parameters, as the host does before the program runs.

        Args:
            values: By name of the tensor: the value of every replica.
        """
        self._given = values
        for variable in self.executable.variables:
            name = variable.name
            if variable.role in LASTING:
                name = name.removesuffix(f".ipu{variable.ipu}")
            if name not in values or not (variable.role.is_state or variable.role in LASTING):
                continue
            copies = self._copies(variable, values[name])
            if variable.off_chip:
                self._remote[variable.name, None] = copies
            else:
                self.stores.load(variable, copies)

    def _copies(self, variable: Variable, value: np.ndarray) -> Values:
        """Return what each replica holds of a value: all of it, or its share; values may be given one a replica."""
        if value.shape == (self.executable.replicas, *variable.shape):
            return value
        if variable.num_elements < value.size:
            return shares.split(value, self.executable.replicas)
        return np.broadcast_to(value, (self.executable.replicas, *variable.shape))

    def states(self) -> dict[str, Values]:
        """Return what the states hold: ``[replicas, ...]`` by name of the variable."""
        return {
            variable.name: self._remote[variable.name, None] if variable.off_chip else self.stores.final(variable)
            for variable in self.executable.variables if variable.role.is_state
        }

    def known(self, tensor: Tensor, moment: Moment) -> list[np.ndarray]:
        """Return what the host knows of a tensor that no op makes: an input, a constant, or a state.

        Args:
            tensor: Of the graph that was placed.
            moment: The micro-batch.

        Returns:
            The value of each replica; one share of it where replicas share it out.
        """
        replicas = range(self.executable.replicas)
        if tensor.role is Role.INPUT:
            return [self.feed(tensor.name, moment, replica) for replica in replicas]
        before = self._before.get((tensor.name, moment.iteration))
        if before is not None:
            return list(before)
        given = self._given[tensor.name]
        return list(given) if given.shape == (len(replicas), *tensor.shape) else [given for _ in replicas]

    def run(self) -> None:
        """Run the program once.

        Raises:
            DeviceProgramError: It does what no IPU may.
        """
        for _ in self._walk(self.executable.programs["main"], Context()):
            pass
        for group, place in self._begun.values():
            which = f"compute set {group.number} of the {group.count} of {group.op.kind}"
            raise place.fault(f"is {which}, and the program ends before the next")

    # ------------------------------------------------------------------ control flow
    def _walk(self, program: Program, at: Context) -> Iterator[None]:
        """Run a program; yields between steps, so that columns of other IPUs may come in between."""
        match program:
            case Sequence(body=body):
                for part in body:
                    yield from self._walk(part, at)
            case Repeat():
                yield from self._repeat(program, at)
            case Call(function=function, micro_batch=micro_batch):
                moment = Moment(at.moment.iteration, micro_batch)
                if micro_batch is not None:
                    self.micro_batches.add(moment)
                within = replace(at, function=function, moment=moment)
                yield from self._walk(self.executable.functions[function], within)
                if at.ipu is not None:
                    self.stores.forget(self._off_chip(at.ipu), f"it is off chip, and was not loaded since {function}")
            case OnIpus(bodies=bodies):
                if self._is_cycle_open and self.executable.num_ipus > 1:
                    raise DeviceProgramError(f"{at.function}: a cycle begins with no sync of all IPUs after the last")
                self._is_cycle_open = True
                columns = [self._walk(body, replace(at, ipu=ipu)) for ipu, body in enumerate(bodies)]
                while columns:
                    column = self._random.choice(columns)
                    if next(column, column) is column:
                        columns.remove(column)
                    yield
            case If(condition=condition, then=then, otherwise=otherwise):
                yield from self._walk(then if self._holds(condition, at) else otherwise, at)
            case RepeatWhile(test=test, condition=condition, body=body):
                for trip in itertools.count():
                    within = replace(at, trips=(*at.trips, trip))
                    yield from self._walk(test, within)
                    if not self._holds(condition, within):
                        break
                    yield from self._walk(body, within)
            case Sync(scope=scope):
                self._sync(scope, at)
            case _:
                self._step(program, at)
                if self.after_step is not None:
                    self.after_step()
                yield

    def _off_chip(self, ipu: int) -> list[Variable]:
        return [variable for variable in self.executable.variables if variable.off_chip and variable.ipu == ipu]

    def _repeat(self, loop: Repeat, at: Context) -> Iterator[None]:
        for trip in range(loop.count):
            if at.function == "main":
                within = replace(at, moment=Moment(trip, None))
                if self.executable.returned and trip:
                    held, returned = self.states(), {tensor.name for tensor in self.executable.returned}
                    self._before |= {(name, trip): held[name] for name in returned if name in held}
            elif loop.op is not None:
                within = replace(at, trips=(*at.trips, trip))
            else:
                within = replace(at, is_partial=at.is_partial or trip < loop.count - 1, part=trip)
            yield from self._walk(loop.body, within)

    def _holds(self, condition: Variable, at: Context) -> bool:
        values = self.stores.read(condition, Place(at.function, f"condition %{condition.name}", at.moment))
        if values.all() != values.any():
            raise DeviceProgramError(f"{at.function}: replicas do not agree on the condition %{condition.name}")
        return bool(values.all())

    def _sync(self, scope: str, at: Context) -> None:
        ipus = range(self.executable.num_ipus) if at.ipu is None else (at.ipu,)
        for ipu in ipus:
            self._pending.pop(ipu, None)
        for variable in [one for one in self._unsynced if one.ipu in ipus]:
            del self._unsynced[variable]
        if scope == "host":
            self._has_host.update(ipus)
        if scope == "replica" and at.ipu is None:
            self._is_cycle_open = False

    # ------------------------------------------------------------------ steps
    def _step(self, program: Program, at: Context) -> None:
        match program:
            case Execute(compute_set=compute_set):
                self.supersteps += 1
                place = Place(at.function, compute_set.name, at.moment, compute_set.op.source, at.trips)
                self._begin("compute", (compute_set.ipu,), place)
                for group in compute_set.groups:
                    self._run_group(group, replace_source(place, group.op), at)
            case Copy(src=src, dst=dst):
                place = Place(at.function, f"copy %{src.name} -> %{dst.name}", at.moment)
                self._begin("exchange" if src.ipu == dst.ipu else "links", (src.ipu, dst.ipu), place)
                self._copy(program, place, at)
            case Gather(variables=variables):
                place = Place(at.function, f"gather %{variables[0].name}", at.moment)
                self._begin("exchange", [variable.ipu for variable in variables], place)
                self._own(variables, at, place)
                self._synced(variables, place)
            case HostCopy(variable=variable, stream=stream):
                place = Place(at.function, f"stream {stream!r}", at.moment)
                self._begin("host", (variable.ipu,), place)
                self._own((variable,), at, place)
                self._stream(program, place)
            case AllReduce(variables=variables, kind=kind):
                place = Place(at.function, f"{kind} of %{variables[0].name}", at.moment)
                self._begin("links", [variable.ipu for variable in variables], place)
                self._own(variables, at, place)
                self._synced(variables, place)
                self._reduce(program, place)

    def _begin(self, kind: str, ipus: Members[int], place: Place) -> None:
        """Refuse to begin while an IPU does something else: a sync has to come first, one with the host for streams.

        Args:
            kind: ``compute``, ``exchange``, ``host`` or ``links``.
            ipus: Those that take part.
            place: Where this is.
        """
        for ipu in ipus:
            before = self._pending.get(ipu)
            if before is not None and (before[0] != kind or kind == "compute"):
                raise place.fault(f"begins with no sync on ipu {ipu} since {before[1]}")
            if kind == "host" and ipu not in self._has_host:
                raise place.fault(f"begins with no sync of ipu {ipu} with the host")
            if kind != "exchange":  # what is gathered is computed with right away
                self._pending[ipu] = (kind, place.step)
            if kind != "host":
                self._has_host.discard(ipu)

    def _own(self, variables: Members[Variable], at: Context, place: Place) -> None:
        """Refuse what an IPU does with the memory of another one."""
        for variable in variables:
            if at.ipu is not None and variable.ipu != at.ipu:
                raise place.fault(f"ipu {at.ipu} uses %{variable.name}, which lies on ipu {variable.ipu}")

    def _synced(self, variables: Members[Variable], place: Place) -> None:
        """Refuse to read what was written since the last sync."""
        for variable in variables:
            if variable in self._unsynced:
                raise place.fault(f"reads %{variable.name} with no sync since {self._unsynced[variable]} wrote it")

    def _run_group(self, group: VertexGroup, place: Place, at: Context) -> None:
        fields = dict(fields_by_tensor(group))
        if self._completes(group, fields, place, at):
            self._run_whole(group, fields, place)

    def _run_whole(self, group: VertexGroup, fields: Mapping[Tensor, Variable], place: Place) -> None:
        """Compute an op at once and write its results."""
        for tensor, values in zip(group.op.outputs, self._computed(group, fields, place), strict=True):
            self.stores.write(fields[tensor], values, place, shares=group.is_divided(tensor, fields[tensor]))

    def _completes(
        self, group: VertexGroup, fields: Mapping[Tensor, Variable], place: Place, at: Context,
    ) -> bool:
        """Whether a compute set is the last of its op; refuse one that is not the next, or that reads too early."""
        self._own(tuple(group.fields.values()), at, place)
        for variable in group.fields.values():
            if variable not in self._variables:
                raise place.fault(f"uses %{variable.name}, which is no variable of the program")
        op, key = group.op, (id(group.op), at.moment)
        due = self._done.get(key, 0)
        if group.number != due:
            raise place.fault(f"is compute set {group.number} of {op.kind}, but set {due} is the next of them")
        if not due:
            self._first_fields[key] = group.fields
        for label, variable in group.fields.items():
            begun = self._first_fields[key].get(label, variable)
            if begun != variable:
                raise place.fault(f"takes %{variable.name} as {label}, and set 0 of {op.kind} took %{begun.name}")
        self._synced([variable for tensor, variable in fields.items() if tensor in set(op.inputs)], place)
        results = [variable for tensor, variable in fields.items() if tensor not in set(op.inputs)]
        self._unsynced.update(dict.fromkeys(results, place.step))
        if not at.is_partial:  # else more runs of the set follow
            self._done[key] = (due + 1) % group.count
            self._begun[key] = group, place
        if not self._done.get(key, 0):
            self._begun.pop(key, None)
        return group.number == group.count - 1 and not at.is_partial

    def _computed(self, group: VertexGroup, fields: Mapping[Tensor, Variable], place: Place) -> list[Values]:
        """Return the results of an op on all replicas."""
        op = group.op
        takes_shares = group.over_shares or op.kind in OVERWRITES
        operands = [self._seen(tensor, fields[tensor], place, shares=takes_shares) for tensor in op.inputs]
        operands = [
            shares.own_of_each(values) if group.is_divided(tensor, fields[tensor]) else values
            for tensor, values in zip(op.inputs, operands, strict=True)
        ]
        made = [
            self.evaluate(op, [operand[r] for operand in operands], *self._draw_if_any(op, place, r))
            for r in range(self.executable.replicas)
        ]
        results = [np.stack([np.asarray(value) for value in values]) for values in zip(*made, strict=True)]
        return [
            shares.among_nan(values, fields[tensor].shape) if group.is_divided(tensor, fields[tensor]) else values
            for tensor, values in zip(op.outputs, results, strict=True)
        ]

    def words(self, stream: int, op: Op, place: Place, replica: int) -> Words:
        """Return what a stream of random bits of an op begins from.

        Args:
            stream: Its number.
            op: The op.
            place: What it runs for.
            replica: Which runs it.
        """
        moment = place.moment
        return self.seeding.words(stream, op.leg, replica, moment.iteration, moment.micro_batch, place.trips)

    def draw_for(self, op: Op, place: Place, replica: int) -> Draw:
        """Return what gives the streams of an op; see `words`."""
        return lambda stream: self.words(stream, op, place, replica)

    def _draw_if_any(self, op: Op, place: Place, replica: int) -> tuple[Draw, ...]:
        is_drawing = draws(op) or ROUNDING_STREAM in op.attrs
        return (self.draw_for(op, place, replica),) if is_drawing else ()

    def _seen(self, tensor: Tensor, variable: Variable, place: Place, *, shares: bool = False) -> Values:
        """Return a tensor from the variable that holds it, through the views between them."""
        values = self.stores.read(variable, place, shares=shares)
        if shares and variable.num_elements < tensor.num_elements and tensor not in self.executable.views:
            return values  # a share
        chain: list[tuple[Op, Tensor]] = []
        seen = tensor
        while seen in self.executable.views:
            op = self.executable.views[seen]
            chain.append((op, seen))
            seen = op.inputs[0]
        if values[0].size != seen.num_elements:
            raise place.fault(f"reads %{variable.name}, of {values[0].size} elements, as {list(seen.shape)}")
        values = values.reshape(len(values), *seen.shape)
        for op, out in reversed(chain):
            number = op.outputs.index(out)
            values = np.stack([np.asarray(self.evaluate(op, [value])[number]) for value in values])
        return values

    def _copy(self, copy: Copy, place: Place, at: Context) -> None:
        src, dst = copy.src, copy.dst
        if src.ipu != dst.ipu and at.ipu is not None:
            raise place.fault(f"crosses from ipu {src.ipu} to ipu {dst.ipu} with no sync between them")
        self._own((src, dst), at, place)
        self._synced((src,), place)
        if copy.table:
            self._copy_row(copy, place, at)
            return
        if copy.reads is not None:
            values = self._seen(copy.reads, src, place)
        else:
            values = self.stores.read(src, place)
        replicas, is_share = self.executable.replicas, False
        count = values[0].size  # of a view perhaps not all that its source has, or more
        if count < dst.num_elements and count == -(-dst.num_elements // replicas):
            values, is_share = shares.among_nan(values.reshape(replicas, -1), dst.shape), True
        elif count != dst.num_elements:
            raise place.fault(
                f"moves {copy.total_bytes} B between {list(src.shape)} and {list(dst.shape)}, and does not say which"
            )
        self.stores.write(dst, values, place, shares=is_share)
        self._unsynced[dst] = place.step

    def _copy_row(self, copy: Copy, place: Place, at: Context) -> None:
        """Move one row out of a table, or into it."""
        table, row = (copy.src, copy.dst) if copy.table == "src" else (copy.dst, copy.src)
        if not at.trips:
            raise place.fault(f"takes the row of a trip of %{table.name}, and no loop is around it")
        read = self._seen(copy.reads, copy.src, place) if copy.reads is not None else self.stores.read(copy.src, place)
        trip = at.trips[-1]
        rows = read if copy.table == "src" else np.empty((1, *table.shape))
        count = row.num_elements if copy.table == "src" else read[0].size  # one may be moved that is part of a source
        if rows.ndim < 2 or trip >= rows.shape[1] or count * rows.shape[1] != rows[0].size:
            raise place.fault(f"takes row {trip} of %{table.name}, {list(rows.shape[1:])}, as {list(row.shape)}")
        if copy.table == "src":
            self.stores.write(row, read[:, trip], place)
        else:
            self.stores.write_row(table, trip, read, place)
        self._unsynced[copy.dst] = place.step

    def _stream(self, copy: HostCopy, place: Place) -> None:
        variable, stream = copy.variable, copy.stream
        if stream.startswith(REMOTE):
            self._transfer(copy, place)
            return
        if not copy.to_device:
            self._synced((variable,), place)
            if (stream, place.moment) in self.results:
                raise place.fault("was written before for the same micro-batch")
            self.results[stream, place.moment] = self.stores.read(variable, place)
            return
        key = (stream, place.moment, variable.ipu)
        if key in self._fed:
            raise place.fault(f"is read a second time for the same micro-batch by ipu {variable.ipu}")
        self._fed.add(key)
        try:
            values = [self.feed(stream, place.moment, replica) for replica in range(self.executable.replicas)]
        except LookupError as error:
            raise place.fault("has no more data: the program reads it too often") from error
        self.stores.write(variable, np.stack(values), place)
        self._unsynced[variable] = place.step

    def _transfer(self, copy: HostCopy, place: Place) -> None:
        """Move a variable to or from its buffer in Streaming Memory."""
        name = copy.stream.removeprefix(REMOTE)
        moment = None if copy.variable.role.is_state else place.moment
        if not copy.to_device:
            self._synced((copy.variable,), place)
            self._remote[name, moment] = self.stores.read(copy.variable, place)
            return
        if (name, moment) not in self._remote:
            raise place.fault(f"loads %{name} from Streaming Memory, where nobody has stored it")
        self.stores.write(copy.variable, self._remote[name, moment], place)
        self._unsynced[copy.variable] = place.step

    def _reduce(self, step: AllReduce, place: Place) -> None:
        replicas, size = self.executable.replicas, step.replicas
        if step.kind not in ("all_reduce", "reduce_scatter", "all_gather") or replicas % size:
            raise place.fault(
                f"{step.kind} over {size} replicas is not taken by the machine yet, which runs {replicas} of them"
            )
        for variable in step.variables:
            values = self.stores.read(variable, place, shares=step.kind == "all_gather")
            if step.kind == "all_gather":
                self.stores.write(variable, shares.gathered(values), place)
                continue
            groups = values.reshape(replicas // size, size, -1)
            total = groups.mean(1, keepdims=True) if step.mean else groups.sum(1, keepdims=True)
            sums = np.broadcast_to(total, groups.shape).reshape(values.shape).copy()
            is_share = step.kind == "reduce_scatter"
            if is_share:
                sums = shares.among_nan(shares.own_of_each(sums), variable.shape)
            self.stores.write(variable, sums, place, shares=is_share)


def num_steps(executable: Executable) -> int:
    """Return how many compute sets, copies, streams and sums a program runs; of choices and loops with a test, once."""

    def count(program: Program) -> int:
        match program:
            case Call(function=function):
                return count(executable.functions[function])
            case Repeat(count=times, body=body):
                return times * count(body)
            case Execute() | Copy() | Gather() | HostCopy() | AllReduce():
                return 1
        return sum(count(part) for part in parts_of(program))

    return count(executable.programs["main"])


def replace_source(place: Place, op: Op) -> Place:
    """Return a place with the line of an op."""
    return replace(place, source=op.source) if op.source != place.source else place


def fields_by_tensor(group: VertexGroup) -> list[tuple[Tensor, Variable]]:
    """Return the variable of each operand and result of a group's op."""
    op, fields = group.op, group.fields
    pairs = [(tensor, fields[label]) for label, tensor in zip(operand_labels(op), op.inputs, strict=False)]
    return pairs + [(tensor, fields["out" if index == 0 else f"out{index}"]) for index, tensor in enumerate(op.outputs)]
