"""Runs a device program tile by tile: each vertex on the bytes of its own tile, by its own tile kernel."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from torchipu._kernels.abi import KernelTrap, run_vertices
from torchipu.device.machine import OVERWRITES, Context, Evaluate, Feed, Machine, fields_by_tensor
from torchipu.device.stores import Place
from torchipu.device.tiles.arena import Arena, bottoms
from torchipu.device.tiles.counts import Count, count, estimates
from torchipu.device.tiles.fields import Field, Move
from torchipu.device.tiles.kernels import Numbering
from torchipu.device.tiles.layout import BITS, Held, lies_on
from torchipu.device.tiles.memory import TileMemory
from torchipu.device.tiles.own_share import OwnShare
from torchipu.device.tiles.prepared import Alike, Preparation, PreparedSet
from torchipu.device.tiles.stores import TileStores
from torchipu.device.tiles.text import format_set
from torchipu.device.tiles.traffic import Traffic, traffic_of
from torchipu.errors import DeviceProgramError, UnsupportedOpError
from torchipu.ir.graph import Op, Tensor
from torchipu.ir.program import Executable, Execute, Program, Repeat, Variable, VertexGroup, parts_of
from torchipu.ir.region import Numbers, Region
from torchipu.ir.types import DType
from torchipu.optable.random_streams import WORDS
from torchipu.target import Target

KEPT_BYTES = 2 << 30
"""Of prepared ops, kept for when they run again."""
SCRATCH_ALIGNMENT = 64

Judge = Callable[
    ["TileMachine", VertexGroup, Place, Sequence[np.ndarray], Sequence[tuple[Variable, np.ndarray]]], None,
]
Prepared = dict[tuple[int, int], PreparedSet | None]


class TileMachine(Machine):
    """A system of IPUs whose tiles hold bytes, with a program.

    Args:
        executable: The program, with addresses.
        evaluate: Computes, in the types of the program, ops that have no vertices: see ``whole``.
        feed: Gives the values of host streams.
        seed: Chooses in which order IPUs run that no sync orders.
        target: The machine.
        tile_bytes: Memory of a tile; None for the target's.

    Attributes:
        tiled: How many supersteps ran vertex by vertex.
        whole: For each op with no vertices of its own, how many supersteps of it one vertex computed on gathered
            operands.
        judge: Given the machine, a set and its place, the operands of its op on the first replica before the first set
            of it, and the results on the tiles after the last one; None to leave them alone.
        traffic: What the compute sets that ran have moved, by set and number of the run in it.
        counts: What the busiest tile of each has received, beside what the cost reader estimates.
    """

    stores: TileStores

    def __init__(
        self, executable: Executable, evaluate: Evaluate, feed: Feed, seed: int = 0, *, target: Target,
        tile_bytes: int | None = None,
    ) -> None:
        self.target, self.tile_bytes = target, tile_bytes or target.tile_memory_bytes
        super().__init__(executable, evaluate, feed, seed)
        self.tiled = 0
        self.whole: dict[str, int] = {}
        self.traffic: dict[tuple[VertexGroup, int], Traffic] = {}
        self.counts: list[Count] = []
        self._estimates = estimates(executable)
        self.judge: Judge | None = None
        self._operands: dict[tuple[Op, object], list[np.ndarray]] = {}
        self._bottoms = bottoms(executable, target.num_tiles)
        self._sets: dict[Op, list[tuple[VertexGroup, int]]] = {}
        for function in executable.functions.values():
            for group, repeats in runs_of(function):
                self._sets.setdefault(group.op, []).append((group, repeats))
        self._prepared: OrderedDict[tuple[Op, int], tuple[Prepared | None, int]] = OrderedDict()
        self._entered: dict[tuple[Variable, object], int] = {}
        self._scratch = np.zeros(0, np.uint8)

    def forget_values(self) -> None:
        """Give back the memory of the tiles; what was counted and how vertices lie is kept."""
        self.stores.release()
        self._scratch = np.zeros(0, np.uint8)

    def text(self) -> str:
        """Return the compute sets of all ops that have run and are still prepared, with their vertices."""
        return "\n".join(
            f"execute {op.kind}.{op.outputs[0].name if op.outputs else op.kind}.{group.number}\n"
            + format_set(group, made, self.tile_bytes)
            for (op, replica), (prepared, _) in self._prepared.items() if prepared is not None and not replica
            for group, _ in self._sets[op] if (made := prepared.get((group.number, 0))) is not None
        )

    def _empty_stores(self) -> TileStores:
        return TileStores(self.executable, self.target.num_tiles, self.tile_bytes)

    # ------------------------------------------------------------------ compute sets
    def _run_group(self, group: VertexGroup, place: Place, at: Context) -> None:
        fields = dict(fields_by_tensor(group))
        completes = self._completes(group, fields, place, at)
        prepared = self._prepare_all(group, fields, place)
        if prepared is None:
            self.whole[group.op.target] = self.whole.get(group.op.target, 0) + 1
            if completes:
                self._run_whole(group, fields, place)
            return
        self.tiled += 1
        if self.judge is not None and group.number == 0 and at.part == 0 and not group.over_shares:
            self._operands[group.op, place.moment] = [
                self._seen(tensor, fields[tensor], place, shares=group.op.kind in OVERWRITES)[0].copy()
                for tensor in group.op.inputs
            ]
        if group.number == 0 and at.part == 0:
            for tensor in group.op.inputs:  # they have to be there, also those of which no vertex reads anything
                self._slot_read(fields[tensor], place, group)
        sets = [one.get((group.number, at.part)) for one in prepared]
        if sets[0] is not None:
            self._count(group, sets[0], at.part)
            self._run_set(group, sets, fields, place)
        if completes:
            self._complete(group, fields, place)

    def _count(self, group: VertexGroup, made: PreparedSet, part: int) -> None:
        """Count what a run of a set moves, the first time that it runs."""
        if (group, part) in self.traffic:
            return
        self.traffic[group, part] = traffic_of(made, self.target.num_tiles, self.tile_bytes)
        if part == 0 and group in self._estimates:
            estimated = self._estimates[group]
            self.counts.append(count(group, made, estimated, self.target.num_tiles, self.tile_bytes))

    def _complete(self, group: VertexGroup, fields: Mapping[Tensor, Variable], place: Place) -> None:
        """Refuse results of which an element is missing, and show the others to the judge."""
        for tensor in group.op.outputs:
            slot = self._entered.pop((fields[tensor], place.moment), None)
            if slot is None and fields[tensor].num_elements:
                raise place.fault(f"is the last set of {group.op.target}, and no vertex has written %{tensor.name}")
            if not group.is_divided(tensor, fields[tensor]):
                self.stores.require_all(fields[tensor], slot or 0, place)
        if self.judge is not None and not group.over_shares:
            results = [(fields[tensor], self.stores.read(fields[tensor], place)[0]) for tensor in group.op.outputs]
            self.judge(self, group, place, self._operands.pop((group.op, place.moment)), results)

    def _prepare_all(
        self, group: VertexGroup, fields: Mapping[Tensor, Variable], place: Place,
    ) -> list[Prepared] | None:
        """Return the runs of all compute sets of an op on each replica; None where one vertex computes the whole op."""
        if group.tiling is None or (group.over_shares and group.count > 1):  # sums over shares go by other levels
            return None
        replicas = self.executable.replicas
        different = range(replicas if group.over_shares else 1)
        found = [self._prepare(group, fields, place, replica) for replica in different]
        made = [one for one in found if one is not None]
        return None if len(made) < len(found) else made * (replicas // len(found))

    def _prepare(
        self, group: VertexGroup, fields: Mapping[Tensor, Variable], place: Place, replica: int,
    ) -> Prepared | None:
        """Return what a replica runs, the same as all others unless it takes its share."""
        op = group.op
        if (op, replica) in self._prepared:
            self._prepared.move_to_end((op, replica))
            return self._prepared[op, replica][0]
        ipu = next(iter(fields.values())).ipu
        arena = Arena(self._bottoms[ipu], self.tile_bytes)
        numbering, sets, first = self._numbering(op, fields, place), self._sets[op], 0
        if group.over_shares:
            part = OwnShare(group, fields, numbering, self.executable.replicas, replica)
            op, fields, numbering, sets, first = part.op, part.fields, part.numbering, part.sets, part.first
        preparation = Preparation(
            op, self.stores.held, fields, numbering, arena, self.tile_bytes, self.stores.new_owner, first,
        )
        try:
            made: Prepared | None = preparation.prepare(sets)
        except UnsupportedOpError:
            made = None
        except DeviceProgramError as error:
            raise place.fault(str(error).partition("\n")[0]) from error
        except MemoryError as error:
            raise place.fault(
                f"gathers more than tile {error} of ipu {ipu} has room for above its variables ({self.tile_bytes} B)"
            ) from error
        self._prepared[group.op, replica] = made, preparation.num_bytes
        while sum(size for _, size in self._prepared.values()) > KEPT_BYTES and len(self._prepared) > 1:
            self._prepared.popitem(last=False)
        return made

    def _numbering(self, op: Op, fields: Mapping[Tensor, Variable], place: Place) -> dict[Tensor, Numbers]:
        """Return for each operand that is a view which element of its variable each of its elements is."""
        found = {}
        for tensor in op.inputs:
            if tensor not in self.executable.views:
                continue
            chain, seen = [], tensor
            while seen in self.executable.views:
                chain.append((self.executable.views[seen], seen))
                seen = self.executable.views[seen].inputs[0]
            size = fields[tensor].num_elements
            if size != seen.num_elements:
                raise place.fault(f"reads %{fields[tensor].name}, of {size} elements, as {list(seen.shape)}")
            numbers = np.arange(size, dtype=np.int64).reshape(seen.shape)
            for view, out in reversed(chain):
                of_numbers = replace(view, outputs=tuple(replace(one, dtype=DType.LONG) for one in view.outputs))
                numbers = np.asarray(self.evaluate(of_numbers, [numbers])[view.outputs.index(out)])
            found[tensor] = numbers.reshape(-1)
        return found

    def _run_set(
        self, group: VertexGroup, sets: Sequence[PreparedSet | None], fields: Mapping[Tensor, Variable], place: Place,
    ) -> None:
        """Run the vertices of a set on all replicas, on each its own."""
        variables = set(fields.values())
        operands = {fields[tensor] for tensor in group.op.inputs}
        divided = {fields[tensor] for tensor in group.op.outputs if group.is_divided(tensor, fields[tensor])}
        first = sets[0]
        assert first is not None
        slots: dict[Held, int] = {}
        for field in first.reads:
            held = field.source
            if held.variable in variables and held not in slots:
                slots[held] = self._slot_read(held.variable, place, group)
        for field in first.writes:
            variable = field.source.variable
            if variable is None:
                continue
            key = (variable, place.moment)
            if key not in self._entered:
                self._entered[key] = self.stores.enter(
                    variable, place, keeps=variable in operands or self._lies_on_one(variable, operands),
                    shares=variable in divided,
                )
            slots[field.source] = self._entered[key]
            self._unsynced[variable] = place.step
        for replica, made in enumerate(sets):
            if made is None:
                continue  # there are fewer shares than replicas
            memory = self.stores.memory(next(iter(variables)).ipu, replica)
            run = _Run(self, memory, slots, place)
            run.move(move for field in made.reads for move in field.moves)
            run.require(made.reads, made.tiles)
            for alike in made.alike:
                words = self._words_of(group.op, alike, made, place, replica)
                run.compute(made, alike, self._room(alike.kernel.scratch_bytes), words)
            run.claim(made.writes)
            run.move(move for field in made.writes for move in field.moves)

    def _lies_on_one(self, result: Variable, operands: Iterable[Variable]) -> bool:
        """Whether a result lies on one of the operands, element on element, so that it overwrites what is read."""
        held = self.stores.held(result)
        return any(lies_on(held, self.stores.held(operand)) for operand in operands)

    def _words_of(self, op: Op, alike: Alike, made: PreparedSet, place: Place, replica: int) -> Numbers:
        """Return the words from which vertices take random bits: ``[vertices, streams, 4]``."""
        words = np.zeros((len(alike.vertices), len(alike.kernel.streams), WORDS), np.uint64)
        for number, stream in enumerate(alike.kernel.streams):
            common = self.words(stream.number, op, place, replica)
            words[:, number] = common
            if stream.numbering is Numbering.VERTEX:
                of_run = common.forked(made.number)
                words[:, number, 0] = [of_run.forked(int(vertex)).seed for vertex in alike.vertices]
            elif stream.numbering is Numbering.RANGE:
                region = made.writes[0].region
                first = made.first + region.begin[region.first[alike.vertices]]
                words[:, number, 2] += first.astype(np.uint64) << np.uint64(32)
        return words.view(np.int64)

    def _slot_read(self, variable: Variable | None, place: Place, group: VertexGroup) -> int:
        assert variable is not None
        entered = self._entered.get((variable, place.moment))
        if entered is not None:
            return entered
        return self.stores.slot_read(variable, place, shares=group.over_shares or group.op.kind in OVERWRITES)

    def _room(self, num_bytes: int) -> np.ndarray:
        """Return scratch of so many bytes, aligned."""
        if len(self._scratch) < num_bytes + SCRATCH_ALIGNMENT:
            self._scratch = np.zeros(num_bytes + SCRATCH_ALIGNMENT, np.uint8)
        skipped = -self._scratch.ctypes.data % SCRATCH_ALIGNMENT
        return self._scratch[skipped : skipped + num_bytes]


class _Run:
    """One run of a compute set on one replica.

    Args:
        machine: Whose.
        memory: Of the IPU.
        slots: Of the variables that are stashes.
        place: For messages.
    """

    def __init__(self, machine: TileMachine, memory: TileMemory, slots: Mapping[Held, int], place: Place) -> None:
        self.stores, self.memory, self.slots, self.place = machine.stores, memory, slots, place

    def _owner(self, held: Held) -> int:
        return held.owner + self.slots.get(held, 0)

    def _shifted(self, places: Numbers, held: Held) -> Numbers:
        slot = self.slots.get(held, 0)
        if slot == 0:
            return places
        return np.where(places >= 0, places + slot * held.spread.largest, places)

    def move(self, moves: Iterable[Move]) -> None:
        """Move what is gathered, or what was made elsewhere."""
        for move in moves:
            sources = self._shifted(move.from_places, move.source)
            targets = self._shifted(move.to_places, move.target)
            wrong = self.memory.move(
                targets, self._owner(move.target), self.memory, sources, self._owner(move.source),
                move.target.element_bytes, move.pad,
            )
            if wrong >= 0:
                raise self.place.fault(self.stores.strange(
                    self.memory, move.source, int(sources[wrong]), int(move.elements[wrong]), self._owner(move.source),
                ))

    def require(self, fields: Sequence[Field], tiles: Numbers) -> None:
        """Refuse to run vertices whose operands are not there."""
        for field in fields:
            base = self._shifted(field.base, field.held)
            wrong = self.memory.stranger(base, field.num_bytes, self._owner(field.held))
            if wrong >= 0:
                held, owner = field.held, self._owner(field.held)
                begin, size = int(base[wrong]), int(field.num_bytes[wrong])
                first = int(np.flatnonzero(self.memory.owners[begin : begin + size] != owner)[0])
                starts = np.cumsum(field.region.counts()) - field.region.counts()
                element = int(field.region.elements()[starts[wrong] + first // held.element_bytes])
                raise self.place.fault(self.stores.strange(
                    self.memory, held, begin + first // held.element_bytes * held.element_bytes, element, owner,
                ))

    def compute(self, made: PreparedSet, alike: Alike, scratch: np.ndarray, words: Numbers) -> None:
        """Run the kernels of vertices that compute the same.

        Args:
            made: The set.
            alike: The vertices.
            scratch: Beside the tile.
            words: ``[vertices, streams, 4]``, from which they take random bits.
        """
        for offset, values, dtype in alike.kernel.constants:
            kept = np.array(values, np.int64 if dtype is DType.LONG else BITS[dtype])
            scratch[offset : offset + kept.nbytes] = kept.view(np.uint8)
        bases = [
            self.memory.base + self._shifted(field.base, field.held)[alike.vertices]
            for field in (*made.reads, *made.writes)
        ]
        bases.append(np.full(len(alike.vertices), scratch.ctypes.data, np.int64))
        bases.append(words.ctypes.data + np.arange(len(alike.vertices)) * words[:1].nbytes)
        tables = [_RunTable(made.writes[number].region, made.first) for number in alike.kernel.rounded]
        bases += [base for table in tables for base in table.bases(alike.vertices)]
        places = np.ascontiguousarray(np.stack(bases, axis=1)[:, alike.field] + alike.offset)
        try:
            run_vertices(alike.kernel.calls, places)
        except KernelTrap as trap:
            tile = int(made.tiles[alike.vertices[trap.step]])
            raise self.place.fault(f"the vertex on tile {tile} stopped: {trap.reason}") from trap

    def claim(self, fields: Sequence[Field]) -> None:
        """Note who has written the bytes of results."""
        for field in fields:
            self.memory.own(self._shifted(field.base, field.held), field.num_bytes, self._owner(field.held))


class _RunTable:
    """The runs of a region, as kernels take them.

    Args:
        region: The region.
        shift: What is added to numbers of elements.
    """

    def __init__(self, region: Region, shift: int) -> None:
        self.first = region.first
        self.runs = np.stack((region.begin + shift, region.count, region.stride), axis=1).astype(np.int64, order="C")
        self.counts = np.diff(region.first).astype(np.int64)

    def bases(self, vertices: Numbers) -> tuple[Numbers, Numbers]:
        """Return for each of some vertices where its runs lie, and where how many they are."""
        runs, counts = self.runs.ctypes.data, self.counts.ctypes.data
        return runs + self.first[vertices] * 3 * 8, counts + vertices * 8


def runs_of(program: Program, times: int = 1) -> list[tuple[VertexGroup, int]]:
    """Return the vertex groups of a program, and how often a tile runs each for one result."""
    if isinstance(program, Execute):
        return [(group, times) for group in program.compute_set.groups]
    if isinstance(program, Repeat) and program.op is None:
        times *= program.count
    return [found for part in parts_of(program) for found in runs_of(part, times)]


def as_large_as_needed(executable: Executable, target: Target) -> int:
    """Return bytes of a tile that hold a program which need not fit: the target's, or twice what it takes."""
    most = max((end for _, end in executable.addresses.values()), default=0)
    return target.tile_memory_bytes if most <= target.tile_memory_bytes else -(-2 * most // 8) * 8
